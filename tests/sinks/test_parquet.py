"""Parquet files: what is in them, and that they are whole."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field, make_dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pydantic
import pytest

from lab.servers import free_port
from scrapy_redisq import files
from scrapy_redisq.errors import RedisqError, RowRefused, SinkMismatch, SinkUnavailable
from scrapy_redisq.files import safe_name
from scrapy_redisq.pipelines import ParquetPipeline, parquet
from scrapy_redisq.pipelines.parquet.arrow import Columns, convert_free
from tests.harness.in_loop import in_a_loop
from tests.harness.pipelines import opened, write_all
from tests.sinks.conftest import SECRET, Store
from tests.sinks.tables import EVERYTHING, Everything, Review

KEY = "0" * 32
DOCS = Path(__file__).parents[2] / "docs/howto/parquet.md"
REVIEW, STRINGS = "struct<author: string, stars: int64>", "list<element: string>"


class PydanticBook(pydantic.BaseModel):
    url: pydantic.HttpUrl
    pages: int | None = None
    review: Review | None = None
    tags: frozenset[str] = frozenset({"x"})


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


@dataclass
class Taken:
    redisq_key: str


def columns(kind: type) -> Columns:
    found = Columns.of(kind)
    assert found is not None
    return found


def schema(kind: type) -> dict[str, str]:
    table = pq.read_table(pa.BufferReader(columns(kind).file([])))
    return {name: str(table.schema.field(name).type) for name in table.column_names[:-2]}


def write(url: Path | str, *batches: list[Any], **settings: Any) -> None:
    write_all(ParquetPipeline, *batches, REDISQ_PARQUET_URL=str(url), **settings)


def read(folder: Path) -> list[dict[str, Any]]:
    """As readers of data sets do."""
    if not folder.is_dir():
        return []
    rows: list[dict[str, Any]] = ds.dataset(folder, format="parquet").to_table().to_pylist()
    return rows


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


class TestColumns:
    def test_every_value_comes_back(self, tmp_path: Path) -> None:
        """Values are read as they were written; what has no column type of its own is JSON. A file
        without values has the same columns as one with all of them."""
        write(tmp_path, [EVERYTHING], [Everything(**dict.fromkeys(vars(EVERYTHING)))])
        one, other = (pq.read_schema(path) for path in tmp_path.rglob("*.parquet"))
        assert one.equals(other)
        full, empty = read(tmp_path / "tests.sinks.tables.Everything")
        assert full.pop("redisq_key") == empty.pop("redisq_key") == KEY
        age = datetime.now(timezone.utc) - full.pop("redisq_written")
        assert timedelta(0) <= age < timedelta(minutes=1)
        assert full == {
            **vars(EVERYTHING),
            "moment": EVERYTHING.moment.astimezone(timezone.utc),
            "clock": "23:59:59.999999",
            "colour": "blue",
            "size": 2,
            "mixed": "PAIR",
            "details": '{"deep":{"price":"1.10","when":"2024-01-02"},"none":null}',
            "reviews": [{"author": "Ann", "stars": 5}],
            "anything": '[1,"x"]',
            "either": "7",
            "uuid": str(UUID(int=5)),
            "path": "/a/b",
        }
        del empty["redisq_written"]
        assert empty == dict.fromkeys(full)

    @pytest.mark.parametrize(
        ("item", "types", "row"),
        [
            (
                PydanticBook(url="https://example.com/", review=Review("A", 5)),  # type: ignore[arg-type]
                {"url": "string", "pages": "int64", "review": REVIEW, "tags": STRINGS},
                {
                    "url": "https://example.com/",
                    "review": {"author": "A", "stars": 5},
                    "tags": ["x"],
                },
            ),
            (
                Tree("root", [Tree("leaf")]),
                {"name": "string", "children": STRINGS},
                {"name": "root", "children": ['{"name":"leaf","children":[]}']},
            ),
        ],
        ids=["pydantic", "tree"],
    )
    @pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")  # old itemadapter
    def test_item_classes(
        self, tmp_path: Path, item: Any, types: dict[str, str], row: dict[str, Any]
    ) -> None:
        """Item classes have the columns of their annotations; a field of the class itself is
        JSON."""
        write(tmp_path, [item])
        (found,) = read(tmp_path / f"tests.sinks.test_parquet.{type(item).__name__}")
        assert schema(type(item)) == types
        assert {name: found[name] for name in row} == row

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *(("text", 5), ("text", "\ud800"), ("whole", 3.5), ("whole", "3")),
            *(("whole", 1 << 63), ("number", "1"), ("number", (1 << 53) + 1), ("price", 51.77)),
            *(("price", Decimal("0.1234567891")), ("price", Decimal("1e29"))),
            *(("price", Decimal("NaN")), ("flag", 1), ("data", "text"), ("moment", 5)),
            *(("day", datetime(2026, 9, 1, 12)), ("moment", date(2026, 9, 1))),
            ("moment", datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))),
            *(("colour", 7), ("reviews", "Жюль"), ("reviews", ["Жюль"])),
            *(("reviews", [{"author": "A", "age": 5}]), ("tags", "ab"), ("anything", object())),
            *(("details", {"x": "\ud800"}), ("details", {"x": float("nan")}), ("more", "x")),
            ("details", {1: "a", "1": "b"}),
        ],
    )
    def test_what_would_be_cut_is_refused(self, name: str, value: Any) -> None:
        """A value that its column would change or cannot hold is refused, by the field's name."""
        with pytest.raises(RowRefused, match=f"^field '{name}': ") as caught:
            columns(Everything).convert({name: value})
        str(caught.value).encode()  # what dead letters are made of

    def test_reserved_names(self) -> None:
        """A class with the pipeline's own column does not fit."""
        with pytest.raises(SinkMismatch, match=r"Taken\.redisq_key"):
            Columns.of(Taken)

    def test_names_of_dicts(self) -> None:
        """A key that cannot be a column's name costs its row, not its batch."""
        for name in (5, None, "\ud800", "redisq_written"):
            with pytest.raises(RowRefused, match=r"^field "):
                convert_free({name: 1})

    def test_dicts(self, tmp_path: Path) -> None:
        """Dicts have columns of text: those of all rows of the batch."""
        day = date(2026, 9, 1)
        items = [
            {"url": "u", "n": 1, "id": UUID(int=5)},
            {"url": "v", "on": day, "x": None, "data": b"\xff", "all": [day, Decimal("1.5")]},
        ]
        write(tmp_path, items)
        first, second = read(tmp_path / "dict")
        assert (first["url"], first["n"], first["on"], first["x"]) == ("u", "1", None, None)
        assert first["id"] == str(UUID(int=5))
        assert (second["on"], second["data"], second["n"]) == ("2026-09-01", "/w==", None)
        assert second["all"] == '["2026-09-01","1.5"]'


class TestFiles:
    @pytest.mark.parametrize(
        "frontier", ["a/b", "../up", ".hidden", "_hidden", "'\"; *?", "日本" * 50, "%41", "a b=c"]
    )
    def test_names_are_safe(self, tmp_path: Path, frontier: str) -> None:
        """Any frontier's name makes a visible file in the class's folder; others another one."""
        write(f"{tmp_path}/%(spider)s", [{"n": 1}], frontier=frontier)
        (file,) = (tmp_path / "books" / "dict").iterdir()
        assert file.name.startswith(safe_name(frontier))
        assert len(os.fsencode(file.name)) <= 240
        assert [row["n"] for row in read(tmp_path)] == ["1"]
        assert safe_name(frontier + "a") != safe_name(frontier + "b")

    def test_names_never_come_again(self, tmp_path: Path) -> None:
        """A worker that starts again with the same host and process id adds files."""
        for _ in range(3):
            write(tmp_path, [{"n": 1}], [{"n": 2}])
        assert sorted(row["n"] for row in read(tmp_path)) == ["1"] * 3 + ["2"] * 3
        assert len(names(tmp_path)) == 6

    @in_a_loop
    async def test_batch_that_is_tried_again(self, tmp_path: Path) -> None:
        """A batch of which one file could be written and another could not, as on a full disk, is
        there once in the end, and nothing is left of the failure."""
        full = tmp_path / "tests.sinks.tables.Review"
        full.mkdir()
        async with opened(ParquetPipeline, REDISQ_PARQUET_URL=str(tmp_path)) as pipeline:
            rows = [pipeline.row(item, KEY) for item in ({"n": 1}, Review("u", 1))]
            for _ in range(2):
                file = f".{pipeline._prefix}-000001.parquet.tmp"
                (full / file).symlink_to("/dev/full")
                with pytest.raises(SinkUnavailable, match="No space left"):
                    await pipeline.write(rows)
            assert len(names(tmp_path)) == len(read(tmp_path / "dict")) == 1
            await pipeline.write(rows)
            await pipeline.write([pipeline.row({"n": 2}, KEY)])
        assert [row["n"] for row in read(tmp_path / "dict")] == ["1", "2"]
        assert len(read(full)) == 1
        assert len(names(tmp_path)) == 3

    def test_a_class_that_gains_a_field(self, tmp_path: Path) -> None:
        """The documented line reads files of before and after, and dicts of any keys."""
        (line,) = re.findall(r"```python\n(files = .*?)```", DOCS.read_text(), re.S)
        old = make_dataclass("Growing", [("url", str)], namespace={"__module__": __name__})
        new = make_dataclass(
            "Growing", [("url", str), ("pages", int)], namespace={"__module__": __name__}
        )
        for items in [old("a")], [new("b", 5)], [{"url": "a"}, {"pages": 5}]:
            write(tmp_path, items)
        for folder, pages in (f"{__name__}.Growing", 5), ("dict", "5"):
            assert "Path(" in line
            found: dict[str, Any] = {"pyarrow": pa, "Path": lambda _, name=folder: tmp_path / name}
            exec(line, found)
            rows = found["table"].to_pylist()
            assert {(row["url"], row["pages"]) for row in rows} >= {("a", None)}
            assert pages in {row["pages"] for row in rows}


class TestStart:
    def open(self, url: str, **settings: Any) -> str:
        with pytest.raises(RedisqError) as caught:
            write(url, **settings)
        return f"{type(caught.value).__name__}: {caught.value}"

    @pytest.mark.parametrize(
        ("url", "words"),
        [
            ("/proc/items", "SinkUnavailable: no file can be written to /proc/items "),
            ("/dev/null/items", "SinkUnavailable: no file can be written to /dev/null/items "),
            ("", "SettingError: "),
            ("nope://x", "SettingError: "),
            ("simplecache::s3://bucket", "SettingError: "),
            ("s3://", "SettingError: "),
            (f"s3://AKIA:{SECRET}@bucket", "SettingError: "),
            (f"ftp://user:{SECRET}@127.0.0.1:1/x", "SinkUnavailable: "),
            (f"sftp://user:{SECRET}@127.0.0.1:1/x", "SettingError: "),
        ],
    )
    def test_urls_that_cannot_be_used(self, url: str, words: str) -> None:
        """The error names the setting and shows no password."""
        error = self.open(url)
        assert error.startswith(words)
        assert "REDISQ_PARQUET_URL" in error
        assert SECRET not in error

    @pytest.mark.parametrize(
        ("url", "missing", "extra"),
        [
            ("items", "pyarrow", "pip install scrapy-redisq[parquet]"),
            ("s3://bucket", "s3fs", "pip install scrapy-redisq[s3]"),
        ],
    )
    def test_what_is_not_installed(
        self, monkeypatch: pytest.MonkeyPatch, url: str, missing: str, extra: str
    ) -> None:
        """The error says what to install."""
        for room, module in ((parquet, "arrow"), (files, "folders")):
            monkeypatch.delitem(sys.modules, f"{room.__name__}.{module}", False)
            monkeypatch.delattr(room, module, False)
        monkeypatch.setitem(sys.modules, missing, None)
        # Where another test has used it.
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", False)
        error = self.open(url)
        assert error.startswith("SettingError: ")
        assert extra in error


class TestObjectStore:
    def test_errors_at_start(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """No bucket, no keys, nobody there: in words, at the start."""
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        start = TestStart()
        no_bucket = start.open("s3://other/x", **store.settings)
        assert "s3://other/x (REDISQ_PARQUET_URL): FileNotFoundError" in no_bucket
        endpoint = {"AWS_ENDPOINT_URL": store.settings["AWS_ENDPOINT_URL"]}
        assert "Unable to locate credentials" in start.open("s3://books/x", **endpoint)
        nobody = {**store.settings, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}
        assert "Could not connect" in start.open("s3://books/x", **nobody)
