"""Moves the requests of an old frontier, and what it has seen, into one of this package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scrapy.http import Request

from scrapy_redisq.control import Frontier, Pushed
from scrapy_redisq.control.seeds import NamedRequest
from scrapy_redisq.control.words import counted, utc
from scrapy_redisq.dupefilter import scrapy_redis_fingerprint
from scrapy_redisq.errors import FrontierError, Unserializable
from scrapy_redisq.ops.migration.old_frontier import Entry, OldFrontier
from scrapy_redisq.ops.migration.pickles import PickleReader
from scrapy_redisq.ops.migration.requests import RequestClasses, named_request

NOTED = "migrate"
"""In the action log of a frontier that requests were moved to."""


def check_target(frontier: Frontier) -> None:
    """Raise `FrontierError` if others crawl in the frontier, or have crawled what was moved.

    A frontier with requests that were moved there is taken: so an interrupted call goes on.
    """
    status = frontier.status()
    if status["state"] == "absent":
        return
    alive = sum(worker["alive"] for worker in status["workers"])
    moved = any(
        action["what"] == NOTED and utc(action["at"]) >= status["began"]
        for action in frontier.actions()
    )
    unfinished = status["queued"] + status["delayed"] + status["leased"]
    if alive:
        why = f"has {counted(alive, 'live worker')}: stop them first"
    elif moved and status["state"] == "complete":
        why = "has crawled what was moved there: a further run would crawl all of it again"
    elif unfinished and not moved:
        why = f"has {counted(unfinished, 'unfinished request')} of its own"
    else:
        return
    raise FrontierError(f"frontier {frontier.name!r} {why}; --add adds to it all the same")


@dataclass
class Moved:
    """The outcome so far. ``reasons``: how many requests were refused for each reason; ``seen``:
    fingerprints that were taken over."""

    found: int = 0
    pushed: int = 0
    duplicates: int = 0
    refused: int = 0
    seen: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


class Migration:
    """Moves all of ``old`` to ``frontier``.

    ``seen``: what the old set of fingerprints has is taken over, too. ``delete``: what was taken is
    deleted there. ``dry_run``: nothing is written anywhere. ``refuse`` is called with what is known
    of a refused request (its URL, or the beginning of its bytes), and the reason.
    """

    def __init__(
        self,
        old: OldFrontier,
        frontier: Frontier,
        classes: RequestClasses,
        refuse: Callable[[str, str], None],
        *,
        seen: bool,
        delete: bool,
        dry_run: bool,
    ) -> None:
        self._old = old
        self._frontier = frontier
        self._classes = classes
        self._refuse = refuse
        self._seen = self._unchecked = seen
        self._delete = delete
        self._dry_run = dry_run
        self._left: set[bytes] = set()
        """Fingerprints of refused requests: they are pushed by a later call, and new then."""
        self.moved = Moved()

    def run(self) -> Moved:
        """Move everything. Raises as `Frontier.push`, and `FrontierError` if the old fingerprints
        are others."""
        with PickleReader() as reader:
            for batch in self._old.batches():
                self._move(batch, reader)
        # Requests first: whatever has been seen before is a duplicate.
        if self._seen:
            for members in self._old.fingerprints():
                taken = [one for one in members if one not in self._left]
                if not self._dry_run:
                    self._frontier.record_seen(taken)
                    if self._delete:
                        self._old.forget(taken)
                self.moved.seen += len(taken)
        return self.moved

    def _move(self, batch: Sequence[Entry], reader: PickleReader) -> None:
        requests: list[NamedRequest] = []
        entries: list[Entry] = []
        for entry in batch:
            request = self._read(entry, reader)
            if request is not None:
                requests.append(request)
                entries.append(entry)
        if self._unchecked:
            self._check_fingerprints([one.request for one in requests])
        self.moved.found += len(batch)
        pushed = Pushed()
        if self._dry_run:
            pushed.errors = self._frontier.refused(requests)
            pushed.accepted = len(requests) - len(pushed.errors)
        else:
            self._push(requests, pushed)
        for number, why in pushed.errors:
            wrong = requests[number - 1].request
            self._leave(wrong.url, why, scrapy_redis_fingerprint(wrong))
        self.moved.pushed += pushed.accepted
        self.moved.duplicates += pushed.duplicates
        if self._delete and not self._dry_run:
            refused = {number - 1 for number, _ in pushed.errors}
            self._old.delete([one for at, one in enumerate(entries) if at not in refused])

    def _push(self, requests: Sequence[NamedRequest], pushed: Pushed) -> None:
        """Push them, noted as moved: see `check_target`."""
        frontier, by = self._frontier, self._frontier.by
        frontier.by = ""
        try:
            frontier.push(requests, result=pushed)
        finally:
            frontier.by = by
            frontier.note(NOTED, self._old.queue.name, pushed.accepted)

    def _read(self, entry: Entry, reader: PickleReader) -> NamedRequest | None:
        """The request of an entry; None if it is refused."""
        fields, refused, fault = reader.read(entry.data)
        why = fault or ", ".join(refused)
        if fields is not None and not why:
            try:
                return named_request(fields, entry.data, entry.score, self._classes)
            except Unserializable as error:
                why = str(error)
        url = (fields or {}).get("url")
        self._leave(
            url if isinstance(url, str) else f"{entry.data[:40]!r}", why, _fingerprint(fields)
        )
        return None

    def _leave(self, what: str, why: str, fingerprint: bytes | None) -> None:
        self._refuse(what, why)
        self.moved.refused += 1
        self.moved.reasons[why] += 1
        if fingerprint is not None:
            self._left.add(fingerprint)

    def _check_fingerprints(self, requests: Sequence[Request]) -> None:
        """Raise `FrontierError` if the old set knows none of the requests that were filtered."""
        filtered = [scrapy_redis_fingerprint(one) for one in requests if not one.dont_filter]
        self._unchecked = not filtered
        if filtered and not self._old.knows_any(filtered):
            raise FrontierError(
                f"{self._old.seen.name} knows none of the requests that were filtered by it: its "
                f"fingerprints are not those of scrapy-redis 0.9; --seen queue leaves them"
            )


def _fingerprint(fields: dict[str, Any] | None) -> bytes | None:
    """Of what is known of a refused request."""
    try:
        known = {name: fields[name] for name in ("url", "method", "body") if name in fields}  # type: ignore[index,operator]
        return scrapy_redis_fingerprint(Request(**known))
    except Exception:  # it may be anything
        return None
