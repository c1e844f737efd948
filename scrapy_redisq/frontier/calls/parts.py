"""Which part of a frontier a key belongs to, for people who ask what takes the memory."""

from __future__ import annotations

PARTS: dict[str, tuple[str, ...]] = {
    "queues": ("ready", "levels", "queue", "delayed", "post", "posted"),
    "leases": ("leases", "busy", "tokens", "workers", "worker"),
    "seen": ("seen", "trash", "ended"),
    "dead": ("dead", "letters"),
    "slots": (
        *("slot", "limits", "aside", "paused", "ruled"),
        *("robots", "robots_until"),
    ),
    "series": ("series", "marks", "actions", "history", "histories"),
    "run": ("meta", "counts", "reaped"),
}
"""The first words of the keys of each part."""

_PART_OF = {word: part for part, words in PARTS.items() for word in words}

MANY = frozenset({"levels", "queue", "leases", "worker", "tokens", "seen", "slot", "series"})
"""Words of which there are several keys; of all others there is one."""

SINGLE = tuple(word for word in _PART_OF if word not in MANY)


def word_of(rest: str) -> str:
    """The first word of a key without its prefix."""
    return rest.partition(":")[0]


def part_of(rest: str) -> str:
    """The part that a key, without its prefix, belongs to; "run" if it is none of the known."""
    return _PART_OF.get(word_of(rest), "run")


def is_queue(rest: str) -> bool:
    """Whether it is a list of requests."""
    return word_of(rest) == "queue"
