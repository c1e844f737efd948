"""Entries that are no requests, and requests that are no ordinary ones."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lab.site import Answer, linked_pages
from scrapy_redisq.control import DeadLetter
from scrapy_redisq.serialization.entry_format import FORMAT
from tests.faults.oracle import assert_survived
from tests.faults.rig import Rig

URL, KIND, CALLBACK, META = "ukcm"
MAX_ENTRY = 1 << 20


class Touch:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def packed(fields: Any) -> bytes:
    """An entry of the current format that no worker died with."""
    return bytes([0, FORMAT]) + msgspec.msgpack.encode(fields)


def corrupt(kind: int, good: bytes, url: str, touch: Path, chance: random.Random) -> bytes:
    """One of six kinds of entries that are no requests."""
    match kind % 6:
        case 0:
            return good[: chance.randrange(len(good))]
        case 1:
            return b"\0" + chance.randbytes(chance.randrange(1, 300))
        case 2:
            depth = chance.randrange(1_000, 100_000)
            return (
                bytes([0, FORMAT, 0x82])
                + b"".join(map(msgspec.msgpack.encode, (URL, "x", META)))
                + b"\x91" * depth
            )
        case 3:
            head = bytes([0, FORMAT, 0x81]) + msgspec.msgpack.encode(URL)
            return head + b"\xdb\xff\xff\xff\xff" + b"x" * 2 * MAX_ENTRY
        case 4:
            return b"\0" + pickle.dumps(Touch(touch))
        case _:
            wrong = [{URL: 1}, {URL: url, META: []}, {URL: [url]}, [url], url, {ord(URL): url}, {}]
            return packed(chance.choice(wrong))


def mix_in(rig: Rig, spider: str, entries: list[bytes], *, counted: bool = True) -> None:
    """Push all pages, and put ``entries`` at random places among them, past all checks.

    ``counted``: as if somebody had enqueued them. A worker counts what is no request at all.
    """
    with rig.frontier(spider) as frontier, rig.server.client() as client:
        frontier.push(f"{rig.site.url}/{number}" for number in range(rig.pages))
        (queue,) = client.scan_iter(f"redisq:{{{spider}:0}}:queue:*")
        mixed = client.lrange(queue, 0, -1)
        for entry in entries:
            mixed.insert(rig.random.randrange(len(mixed)), entry)
        client.delete(queue)
        for start in range(0, len(mixed), 100):
            client.rpush(queue, *mixed[start : start + 100])
        if counted:
            client.hincrby(f"redisq:{{{spider}:0}}:counts", "created", len(entries))


def traps(rig: Rig, *names: str) -> tuple[Path, dict[str, str]]:
    """The file that is there when a module of these names was imported, and an environment in which
    they can be."""
    touched, modules = rig.folder / "imported", rig.folder / "modules"
    modules.mkdir()
    for name in names:
        (modules / f"{name}.py").write_text(f"open({str(touched)!r}, 'w').close()\n")
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(modules)]))
    return touched, {"PYTHONPATH": path}


def all_undecodable(rig: Rig, entries: list[bytes]) -> list[DeadLetter]:
    """Wait for the end of a crawl with these entries among its pages; -> their dead letters."""
    rig.finish()
    number = len(entries)
    assert_survived(rig, refetch=0, dead=number, more_created=number, name="fed")
    with rig.frontier("fed") as frontier:
        letters = list(frontier.dead())
    assert len(letters) == number
    assert all(letter.reason == "undecodable" and letter.detail for letter in letters)
    return letters


def test_f34_corrupt_entries(rig: Rig) -> None:
    """100 corrupt entries among the pages: each a dead letter with a reason, and no code runs."""
    rig.set_up()
    touched = rig.folder / "touched"
    url = f"{rig.site.url}/1"
    good = packed({URL: url, META: {"depth": 1}})
    entries = [corrupt(kind, good, url, touched, rig.random) for kind in range(100)]
    mix_in(rig, "fed", entries, counted=False)
    rig.fleet(spider="fed")
    all_undecodable(rig, entries)
    assert not touched.exists()
    pickle.loads(entries[4][1:])  # had anybody unpickled it, this would have been the trace
    assert touched.exists()


@pytest.mark.smoke
def test_f74_meta_that_names_code(rig: Rig) -> None:
    """A page that redirects, with a ``referrer_policy`` that Scrapy would import for that: refused
    when it is pushed; a dead letter where it is written by hand. Nothing is imported, and the
    workers live on."""

    def page(path: str) -> Answer | None:
        return Answer(status=302, headers={"Location": "/1"}) if path == "/away" else pages(path)

    pages = linked_pages(60)
    rig.set_up(pages=60, page=page)
    touched, environment = traps(rig, "trap")
    url = f"{rig.site.url}/away"
    metas: list[dict[str, Any]] = [
        {"referrer_policy": policy} for policy in ("trap.Policy", "os.abort", "signal.pause")
    ]
    metas += [{"ftp_local_filename": "x"}, {"playwright_page_init_callback": "trap.init"}]
    with rig.frontier("fed") as frontier:
        pushed = frontier.push({"url": url, "meta": meta} for meta in metas)
    assert len(pushed.errors) == len(metas)
    assert all("REDISQ_META_KEYS" in text for _, text in pushed.errors)
    entries = [packed({URL: url, META: meta}) for meta in metas]
    mix_in(rig, "fed", entries)
    rig.fleet(spider="fed", environment=environment)
    letters = all_undecodable(rig, entries)
    assert all("REDISQ_META_KEYS" in letter.detail for letter in letters)
    assert not touched.exists()


def test_f36_links_of_one_page(rig: Rig) -> None:
    """20,000 links on one page."""
    number = int(rig.size.pick(2_000, 20_000))
    pages = linked_pages(number)
    links = "".join(f'<a href="/{n}"></a>' for n in range(number))

    def page(path: str) -> Answer | None:
        return Answer(f"<html>{links}</html>") if path == "/0" else pages(path)

    rig.set_up(pages=number, page=page)
    rig.fleet()
    rig.finish()
    assert_survived(rig, refetch=0)
