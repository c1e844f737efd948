"""One data set of many workers: what is in it, that it can be made again, and who makes it."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, make_dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings

from lab.servers import wait_until
from lab.site import Site, linked_pages
from scrapy_redisq.errors import RedisqError, RowRefused, SinkMismatch, SinkUnavailable
from scrapy_redisq.files.dataset import Dataset
from scrapy_redisq.files.folders import Folder, open_folder
from scrapy_redisq.pipelines import DatasetPipeline
from scrapy_redisq.settings.settings import RedisqSettings
from tests.harness.command import Redisq
from tests.harness.crawl import Run, constants, together, wait_until_joined
from tests.harness.in_loop import in_a_loop, until
from tests.harness.pipelines import opened, write_all
from tests.sinks.conftest import Store

SECONDS = "scrapy_redisq.pipelines.file_batch.FilePipeline.batch_seconds"
TOGETHER, LAST = "items of", "this was the last worker to leave"


@dataclass
class Book:
    url: str
    price: Decimal | None = None
    tags: tuple[str, ...] = ()
    published: date | None = None


def dataset(*outputs: Path | str, spider: str = "books", **settings: Any) -> Dataset:
    given = Settings({"REDISQ_DATASET": list(map(str, outputs)), **settings})
    return Dataset(RedisqSettings.read(given), spider, given)


def write(output: Path | str, *batches: dict[str, Any], **settings: Any) -> None:
    """A worker's batches: items by the last digit of their keys."""
    write_all(DatasetPipeline, *batches, REDISQ_DATASET=[str(output)], **settings)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]


def parts(path: Path) -> list[Path]:
    return sorted(path.with_name(f"{path.name}.parts").glob("2*.jsonl"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A data set of one item, which is in a part."""
    output = tmp_path / "books.jsonl"
    write(output, {"1": {"n": 1}})
    return output


class TestTogether:
    def test_each_item_once(self, tmp_path: Path) -> None:
        """Of the items of one key the one that was written last is there, in the order of time. The
        parts have the keys, and to do it again changes nothing."""
        out = tmp_path / "books.jsonl"
        write(out, {"1": {"n": "old"}, "2": {"n": 2}}, {"3": {}})
        write(out, {"1": {"n": "new\nline — \u2028"}, "4": {"n": [{"m": None}]}})
        together = dataset(out).put_together()
        assert together == (4, 5, 3, [])
        expected = [{"n": 2}, {}, {"n": "new\nline — \u2028"}, {"n": [{"m": None}]}]
        assert lines(out) == expected
        keys = [line["redisq_key"][-1] for path in parts(out) for line in lines(path)]
        assert keys == ["1", "2", "3", "1", "4"]
        first = out.read_bytes()
        assert dataset(out).is_current()
        out.unlink()
        dataset(out).put_together()
        assert out.read_bytes() == first

    def test_csv(self, tmp_path: Path) -> None:
        """The columns are the fields of all items; a text is as it is, other values are JSON."""
        both = tmp_path / "books.jsonl", tmp_path / "out" / "books.csv"
        write(both[0], {"1": Book("ü,\"'", Decimal("5.10"), ("a", "b"), date(2026, 9, 1))})
        write(both[0], {"2": {"pages": 2**70, "used": True, "url": "u\r\nv"}, "3": {"pages": None}})
        assert dataset(*both).put_together().items == 3
        assert both[1].read_bytes().startswith(b"url,price,tags,published,pages,used\r\n")
        rows = list(csv.DictReader(io.StringIO(both[1].read_bytes().decode(), newline="")))
        nothing = dict.fromkeys(("url", "price", "tags", "published", "pages", "used"), "")
        book = {"url": "ü,\"'", "price": "5.10", "tags": '["a","b"]', "published": "2026-09-01"}
        assert rows == [
            {**nothing, **book},
            {**nothing, "url": "u\r\nv", "pages": str(2**70), "used": "true"},
            nothing,
        ]
        assert len(lines(both[0])) == 3

    @pytest.mark.parametrize("fields", [["url", "colour"], {"url": "URL", "colour": "Colour"}])
    def test_chosen_fields(self, tmp_path: Path, fields: Any) -> None:
        """FEED_EXPORT_FIELDS holds as for Scrapy's feeds; a field that no item has is told."""
        both = tmp_path / "books.jsonl", tmp_path / "books.csv"
        write(both[0], {"1": {"n": 1, "url": "u"}, "2": {"n": 2}})
        together = dataset(*both, FEED_EXPORT_FIELDS=fields).put_together()
        assert together.missing == ["colour"]
        url, colour = dict(fields).values() if isinstance(fields, dict) else fields
        assert lines(both[0]) == [{url: "u"}, {}]
        assert both[1].read_text() == f"{url},{colour}\nu,\n,\n"

    def test_half_a_part_does_not_count(self, out: Path, tmp_path: Path) -> None:
        """The rest of a killed worker is passed over. It is removed where it is a whole data set,
        and a line of another program is named."""
        (part,) = parts(out)
        part.with_name(f".{part.name}.tmp").write_text('{"redisq_key":"00')
        half = tmp_path / ".books.jsonl.1234.tmp"
        half.touch()
        dataset(out).put_together()
        assert lines(out) == [{"n": 1}]
        assert not half.exists()
        part.with_name("2foreign.jsonl").write_text('{"n":1}\n')
        with pytest.raises(SinkMismatch, match=r"line 1 of .*books\.jsonl\.parts/2foreign\.jsonl"):
            dataset(out).put_together()
        assert lines(out) == [{"n": 1}]
        assert len(list(tmp_path.iterdir())) == 2
        part.with_name("2foreign.jsonl").write_bytes(part.read_bytes()[:-2])  # copied half
        with pytest.raises(SinkMismatch, match="line 1 of "):
            dataset(out).put_together()

    def test_two_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Who was overtaken by another process, which knew more parts, does it again."""
        both = tmp_path / "books.jsonl", tmp_path / "books.csv"
        write(both[0], {"1": {"n": 1}})
        slow, made = dataset(*both), Dataset._made

        def overtaken(self: Dataset, base: str, *arguments: Any) -> Any:
            if base == both[1].name:
                monkeypatch.setattr(Dataset, "_made", made)
                write(both[0], {"2": {"n": 2}})
                dataset(*both).put_together()
            yield from made(self, base, *arguments)

        monkeypatch.setattr(Dataset, "_made", overtaken)
        assert slow.put_together().items == 2
        assert lines(both[0]) == [{"n": 1}, {"n": 2}]
        assert both[1].read_bytes() == b"n\r\n1\r\n2\r\n"
        assert len(list(tmp_path.iterdir())) == 3

    def test_overtaken_at_the_last_line(self, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An upload, or the write to the disk, takes longer than all that the other one does."""
        slow, put = dataset(out), Folder.put_lines

        def overtaken(self: Folder, name: str, made: Iterable[bytes]) -> None:
            last = list(made)
            monkeypatch.setattr(Folder, "put_lines", put)
            write(out, {"2": {"n": 2}})
            dataset(out).put_together()
            self.put_lines(name, last)

        monkeypatch.setattr(Folder, "put_lines", overtaken)
        assert slow.put_together().items == 2
        assert lines(out) == [{"n": 1}, {"n": 2}]

    @in_a_loop
    async def test_parts_that_are_shown_late(
        self, out: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The last worker waits for parts of others, which NFS shows late."""
        async with opened(DatasetPipeline, REDISQ_DATASET=[str(out)]) as pipeline:
            last = pipeline._put_together(unless_current=False, written=2)
            waiting = asyncio.ensure_future(last)
            await until(out.exists, "what is there is put together")
            await pipeline.write([pipeline.row({"n": 2}, "2" * 32)])
            await waiting
        assert lines(out) == [{"n": 1}, {"n": 2}]
        assert "lacks items" not in caplog.text

    @in_a_loop
    async def test_nobody_can_put_it_together(
        self, out: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The log says what is wrong, and what to do; the items are in their parts."""
        (part,) = parts(out)
        part.with_name("1.jsonl").write_text("{}\n")
        async with opened(DatasetPipeline, REDISQ_DATASET=[str(out)]) as pipeline:
            await pipeline._put_together(unless_current=False)
        assert "is not put together, and stays as it was" in caplog.text
        assert "scrapy redisq dataset" in caplog.text
        assert not out.exists()

    def test_parts_are_read_one_by_one(self, tmp_path: Path) -> None:
        """On a disk no part is in memory before it is asked for."""
        for name in "12":
            (tmp_path / name).write_text(name)
        files = open_folder(str(tmp_path), {}, "REDISQ_DATASET").read("", ["1", "2"])
        assert next(files) == ("1", b"1")
        (tmp_path / "2").write_text("changed")
        assert [*files] == [("2", b"changed")]

    def test_no_room_for_the_index(self, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error says where its temporary file is."""

        def full(self: Dataset, *arguments: Any) -> Any:
            raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(Dataset, "_look_through", full)
        with pytest.raises(SinkUnavailable, match=r"\(TMPDIR\): database or disk is full"):
            dataset(out).put_together()

    def test_object_store(self, store: Store) -> None:
        """The same in a bucket."""
        out = "s3://books/%(spider)s/all.jsonl"
        write(out, {"1": {"n": 1}, "2": {"n": 2}}, {"1": {"n": 3}}, **store.settings)
        made = dataset(out, **store.settings)
        assert made.put_together() == (2, 3, 2, [])
        assert made.is_current()
        assert store.client().cat_file("books/books/all.jsonl") == b'{"n":2}\n{"n":3}\n'


class TestBadInput:
    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"REDISQ_DATASET": "books.xml"}, "REDISQ_DATASET"),
            ({"REDISQ_DATASET": "%(time)s.csv"}, "REDISQ_DATASET"),
            ({"REDISQ_DATASET": ""}, "ends in .jsonl or .csv"),
            ({"REDISQ_DATASET": "%(run)s.csv"}, "REDISQ_RUN names the run"),
            ({"REDISQ_DATASET": "/proc/books.csv"}, "written to /proc/ (REDISQ_DATASET)"),
            ({"REDISQ_DATASET": "nope://x/books.csv"}, "REDISQ_DATASET"),
        ],
    )
    def test_at_start(self, settings: dict[str, Any], words: str) -> None:
        """The error names the setting."""
        given = Settings(settings)
        with pytest.raises(RedisqError) as caught:
            Dataset(RedisqSettings.read(given), "books", given).check()
        assert words in str(caught.value)

    def test_key_fields(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """They tell items of a class apart, whatever their places; each item has to have them."""
        out = tmp_path / "books.jsonl"
        monkeypatch.setattr(DatasetPipeline, "key_fields", ("shop", "id"))
        other = make_dataclass("Other", [("shop", str), ("id", int)])
        books = [{"shop": "a", "id": 1, "n": n} for n in range(2)]
        write(out, {"1": books[0], "2": {"shop": "a", "id": "1"}, "4": other("a", 1)})
        write(out, {"3": books[1]})
        assert dataset(out).put_together().items == 3
        assert lines(out) == [{"shop": "a", "id": "1"}, {"shop": "a", "id": 1}, books[1]]
        for lacking in {"shop": "a"}, {"shop": "a", "id": None}:
            with pytest.raises(RowRefused, match="'id': it is in key_fields"):
                write(out, {"4": lacking})


class TestCrawls:
    def settings(self, *outputs: Path, **more: Any) -> dict[str, Any]:
        return {
            "ITEM_PIPELINES": json.dumps({"scrapy_redisq.pipelines.DatasetPipeline": 300}),
            "REDISQ_DATASET": ",".join(map(str, outputs)),
            **constants({SECONDS: 0.3}),
            "REDISQ_LEASE_TTL": 1.5,
            **more,
        }

    def test_killed_while_it_puts_together(
        self, crawl: Run, redisq: Redisq, tmp_path: Path
    ) -> None:
        """The next start does it when it finds the run complete, or begins the next run; and so
        does the command."""
        out, pipe = tmp_path / "all.jsonl", tmp_path / "all.jsonl.parts" / "3.jsonl"
        with Site(linked_pages(5, delay=0.1)) as site:
            given = self.settings(out, REDISQ_RUN="first")
            dying = crawl("follow", site, given)
            wait_until(lambda: parts(out), 20, "a part")
            os.mkfifo(pipe)  # to read it takes until somebody writes
            dying.wait_for(LAST)
            dying.kill()
            assert not out.exists()
            pipe.unlink()
            again = crawl("follow", site, given).wait()
            assert "Nothing to do" in again.log
            assert len(lines(out)) == 5, again.log

            def undo() -> None:
                out.unlink()
                (pipe.parent / "_together").unlink()

            undo()
            begins = crawl("follow", site, {**given, "REDISQ_RUN": "second"}).wait()
            assert begins.log.count(TOGETHER) == 2
            undo()
            told = redisq("dataset", "follow", REDISQ_DATASET=str(out))
            assert "all.jsonl: 5 items of " in told.out, told
        assert len(lines(out)) == 5
        none = redisq("dataset", "other", REDISQ_DATASET=f"{tmp_path}/%(spider)s.csv")
        assert (none.code, "there are no items in" in none.err) == (1, True)

    def test_folders_that_are_not_one(self, crawl: Run, tmp_path: Path) -> None:
        """The last worker says that parts of others are missing. Items of former runs take the
        place of none."""
        outs = [tmp_path / str(number) / "all.csv" for number in range(2)]
        given = {
            **constants({SECONDS: 0.3, f"{DatasetPipeline.__module__}.SHOWN_AFTER": 0.0}),
            "REDISQ_MAX_LEASES": 1,
            "CONCURRENT_REQUESTS": 1,
        }
        for out in outs:
            write(out, {str(number): {"url": "former"} for number in range(100)})
        with Site(linked_pages(20, delay=0.05)) as site:
            with together(tmp_path) as gate:
                workers = [
                    crawl("follow", site, {**self.settings(out), **given, **gate}) for out in outs
                ]
                wait_until_joined(workers)
            logs = "".join(worker.wait().log for worker in workers)
        assert "the workers have written 20 lines, and " in logs
