"""The state of a URL: whether it was seen, and where its request is now."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any
from urllib.parse import urlsplit

from scrapy.http import Request

from scrapy_redisq.control.dead_letters import DeadLetter, LetterMethods
from scrapy_redisq.control.frontier_status import config_of
from scrapy_redisq.control.past import PastMethods
from scrapy_redisq.control.seeds import SeedReader
from scrapy_redisq.control.words import utc
from scrapy_redisq.errors import FrontierError, RedisqError, Undecodable, reason
from scrapy_redisq.frontier import admin
from scrapy_redisq.frontier.config import PRIORITY_SLOT, FrontierConfig
from scrapy_redisq.frontier.names import slot_name
from scrapy_redisq.frontier.operations import parse_lease
from scrapy_redisq.frontier.seen import exact_member, seen_filter
from scrapy_redisq.serialization.identity import of_recurring
from scrapy_redisq.serialization.request_fields import loads_fields

MOST_LOOKED_AT = 100_000
"""Requests that a search goes through: about half a second, a millisecond of Redis at a time."""

EVERYTHING, FORGOTTEN = 2**53, 30
"""More than a history holds; records of it that are looked at together."""

OWN_FILTERS = {"bloom", "exact"}
WAITS = {"queued", "delayed", "leased"}
"""States of what is fetched anyway."""

OF_ITS_PLACE = (
    *("worker", "since", "due", "due_in", "before", "priority", "deliveries"),
    *("letter", "reason", "detail", "at", "status"),
)
"""Fields of a request that was found, None elsewhere."""


@dataclass(frozen=True)
class _Asked:
    """One request that is asked about."""

    url: str
    slot: str
    shard: int
    fingerprint: bytes
    config: FrontierConfig
    run: str


def _members_of(fingerprint: bytes) -> set[str]:
    """What a request is known by, also one that comes again."""
    return {exact_member(known_by) for known_by in (fingerprint, of_recurring(fingerprint))}


class _Incomparable(Exception):
    """Raised when the fingerprinter, which may be the project's, fails on what was found."""


class UrlMethods(LetterMethods, PastMethods):
    """The part of `Frontier` that is about single URLs."""

    _seeds: SeedReader

    def url(self, url: str, *, slot: str | None = None) -> dict[str, Any]:
        """The state of a GET request of ``url``: see docs/operate/watching.md for the fields.

        ``slot`` if its requests have a ``download_slot`` of their own. At most `MOST_LOOKED_AT`
        requests of the slot are looked at, a portion at a time. Raises `FrontierError` if there is
        no frontier or the fingerprinter fails on ``url``, `SettingError` for another fingerprinter
        than the crawl's, ValueError for what is no URL.
        """
        asked = self._asked(url, slot)
        known = self._run(
            admin.ask_seen(
                self.name,
                asked.shard,
                asked.run,
                asked.fingerprint,
                seen_filter(asked.config),
                filtered=asked.config.dupefilter in OWN_FILTERS,
            )
        )
        seen = True if known.start else known.seen
        found, looked, through = self._search(asked)
        history = self.history_of(asked.shard, asked.fingerprint)
        told: dict[str, Any] = {
            "url": url,
            "slot": asked.slot,
            "shard": asked.shard,
            "fingerprint": asked.fingerprint.hex(),
            "state": "seen" if seen else "unknown",
            "seen": seen,
            "certain": not (seen and asked.config.backend != "exact" and not known.start),
            **dict.fromkeys(OF_ITS_PLACE),
            "looked_through": through,
            "looked_at": looked,
            "history": history,
        }
        if found:
            told.update(found)
        elif history and (history["run"], history["outcome"]) == (asked.run, "done"):
            told["state"] = "done"
        return told

    def forget(self, url: str, *, slot: str | None = None) -> bool:
        """Let the next link to ``url`` be followed, as if it was never seen; -> was it seen?

        Workers that have met it in the last minutes may take it for seen until they have met some
        100,000 others. Raises `FrontierError` where the dupefilter cannot forget, and as `url`
        does.
        """
        asked = self._asked(url, slot)
        self._check_forgets(asked.config)
        members = [*_members_of(asked.fingerprint)]
        forget = admin.forget_seen(self.name, asked.shard, asked.run, members)
        seen = self._run(forget)
        was_seen = any(seen)
        self.note("forget", url, int(was_seen))
        return was_seen

    def forget_host(self, host: str) -> int:
        """As `forget` does, of each URL of ``host`` that the history (REDISQ_HISTORY) has; -> how
        many of these were seen. Raises `FrontierError` also if there is no history: a dupefilter
        has no URLs.
        """
        meta, config = self._meta_and_config()
        self._check_forgets(config)
        host, forgotten, is_empty = host.lower(), 0, True
        for shard in self._shards():
            records = self._records(shard, EVERYTHING)
            while portion := [*islice(records, FORGOTTEN)]:
                is_empty = False
                known_by = [
                    self._members_of(id, record["url"])
                    for id, record in portion
                    if _host_of(record["url"]) == host
                ]
                members = [*chain(*known_by)]
                forget = admin.forget_seen(self.name, shard, meta.get("run", ""), members)
                seen = self._run(forget) if members else []
                were_seen = dict(zip(members, seen, strict=True))
                forgotten += sum(any(map(were_seen.get, of_url)) for of_url in known_by)
        if is_empty:
            raise FrontierError(
                f"frontier {self.name!r} has no history, so nobody knows which URLs of {host} were "
                "seen: name the URLs, or set REDISQ_HISTORY before they are fetched"
            )
        self.note("forget", host, forgotten)
        return forgotten

    def _members_of(self, id: str, url: str) -> set[str]:
        """What a dupefilter may know a request by: its ``id`` in the history, and for a start
        request, which has an identity of its own there, the fingerprint of links to it."""
        try:
            return {id, *_members_of(self._seeds.fingerprint_of(Request(url)))}
        except Exception:  # of the project's fingerprinter: then no link has one
            return {id}

    def _check_forgets(self, config: FrontierConfig) -> None:
        if config.dupefilter != "exact":
            kind = "a Bloom filter" if config.dupefilter == "bloom" else "of another project"
            raise FrontierError(
                f"the dupefilter of frontier {self.name!r} is {kind} and cannot forget a URL: "
                "ExactDupeFilter can (DUPEFILTER_CLASS, from the next run on). --fetch has a URL "
                "fetched past it"
            )

    def _meta_and_config(self) -> tuple[dict[str, str], FrontierConfig]:
        meta = self._meta(self._status(0))
        if not meta:
            raise self._absent()
        config = config_of(meta)
        self._seeds.check_fingerprinter(config.fingerprinter)
        return meta, config

    def _asked(self, url: str, slot: str | None) -> _Asked:
        meta, config = self._meta_and_config()
        try:
            seed = self._seeds.read(url)
        except (RedisqError, ValueError, TypeError):
            raise
        except Exception as error:
            raise FrontierError(
                f"nobody can tell what {url} is known by: the project's fingerprinter "
                f"(REQUEST_FINGERPRINTER_CLASS) fails on it ({reason(error)})"
            ) from error
        if config.scheduling == "priority":
            slot = PRIORITY_SLOT
        slot = seed.slot if slot is None else slot_name(slot)
        return _Asked(
            url=url,
            slot=slot,
            shard=config.shard_of(self.name, slot),
            fingerprint=seed.fingerprint or b"",
            config=config,
            run=meta.get("run", ""),
        )

    def _search(self, asked: _Asked) -> tuple[dict[str, Any] | None, int, bool]:
        """(what was found, how many requests were looked at, whether that was all)."""
        text = "" if self._seeds.has_own_fingerprinter else telling_part(asked.url)
        looked, through = 0, True
        # Once more to the leases: it may have been claimed since they were looked at.
        for place in (*admin.PLACES, "leases"):
            cursor = ""
            while True:
                call = admin.find(self.name, asked.shard, place, asked.slot, text, cursor)
                cursor, n, found = self._run(call)
                looked += n
                for who, which, data in found:
                    try:
                        told = self._told(asked, place, who, which, data)
                    except _Incomparable:
                        through = False
                        continue
                    if told:
                        return told, looked, True
                if cursor == "refused":
                    through = False
                if cursor in {"", "refused"}:
                    break
                if looked >= MOST_LOOKED_AT:
                    return None, looked, False
        return None, looked, through

    def _told(
        self, asked: _Asked, place: str, who: str, which: str, data: bytes
    ) -> dict[str, Any] | None:
        """The request that was found, as `url` tells it; None if it is another request."""
        if place == "letters":
            letter = DeadLetter.of(f"{asked.shard}-{which}", data)
            is_meant = letter.slot == asked.slot and self._is_same(asked, letter.entry)
            return _of_letter(letter) if is_meant else None
        if place == "queues":
            told = {"state": "queued", "priority": int(who), "before": int(which)}
            return {**told, "deliveries": data[0]} if self._is_same(asked, data[1:]) else None
        lease = parse_lease(which, data)
        if not self._is_same(asked, lease.entry):
            return None
        told = {"priority": lease.priority, "deliveries": lease.deliveries}
        if place == "delayed":
            left = int(which) / 1e6
            return {"state": "delayed", "due": utc(time.time() + left), "due_in": left, **told}
        _, _, at = which.partition(".")
        since = utc(int(at) / 1e6) if re.fullmatch("[0-9]{1,17}", at) else None
        return {"state": "leased", "worker": who, "since": since, **told}

    def _is_same(self, asked: _Asked, entry: bytes) -> bool:
        try:
            fields = loads_fields(entry)
            request = Request(fields["url"], method=fields["method"], body=fields.get("body", b""))
        except (Undecodable, ValueError, TypeError):
            return False
        try:
            return self._seeds.fingerprint_of(request) == asked.fingerprint
        except Exception as error:
            raise _Incomparable from error


def telling_part(url: str) -> str:
    """The longest piece of a URL's path and query that no way of writing the same URL changes; ""
    if there is none. Whatever has the same fingerprint by Scrapy's fingerprinter has it, too."""
    parts = urlsplit(url)
    text = re.sub(r"%[0-9A-Fa-f]{2}", " ", f"{parts.path}?{parts.query}")
    return max(re.findall(r"[A-Za-z0-9_.-]{2,100}", text), key=len, default="")


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _of_letter(letter: DeadLetter) -> dict[str, Any]:
    names = ("reason", "detail", "worker", "priority", "deliveries")
    told = {name: getattr(letter, name) for name in names}
    at, status = utc(letter.at), letter.status or None
    return {"state": "dead", "letter": letter.id, "at": at, "status": status, **told}
