"""URLs that this process has just met, so that repeated links cost a look-up and nothing more."""

from __future__ import annotations


class SeenCache:
    """The last ``size`` to ``2 * size`` keys: two generations, the older forgotten at once."""

    def __init__(self, size: int = 50_000) -> None:
        self._size = size
        self._young: set[object] = set()
        self._old: set[object] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._young or key in self._old

    def add(self, key: object) -> None:
        if len(self._young) >= self._size:
            self._old, self._young = self._young, set()
        self._young.add(key)

    def clear(self) -> None:
        self._young.clear()
        self._old.clear()
