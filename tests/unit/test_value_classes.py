"""Objects of a project's classes go through Redis as they are, and by no constructor."""

from __future__ import annotations

import asyncio
import enum
import sys
import threading
from dataclasses import InitVar, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import msgspec
import pytest
import scrapy
from scrapy.http import Request

from scrapy_redisq.errors import SettingError, Undecodable, Unserializable
from scrapy_redisq.serialization.entry_format import FORMAT, forget_retries, next_time
from scrapy_redisq.serialization.identity import marks
from scrapy_redisq.serialization.request_fields import loads_fields
from scrapy_redisq.serialization.serializer import Serializer
from scrapy_redisq.serialization.value_classes import ValueClasses, find

URL = "https://books.example.com/1"


class Book(scrapy.Item):
    title = scrapy.Field()
    author = scrapy.Field()


@dataclass
class Author:
    name: str
    books: list[Any] = field(default_factory=list)
    born: InitVar[int] = 0
    age: int = field(init=False, default=0)

    def __post_init__(self, born: int) -> None:
        Author.made += 1
        self.age = 2026 - born

    made = 0


@dataclass(frozen=True)
class Frozen:
    key: tuple[int, ...]


class _Slots:
    __slots__ = ("__fields_set__", "first", "later")


@attrs.frozen
class Tag:
    name: str


@attrs.define
class Shelf:
    tags: set[Tag]
    note: Any = None


class Colour(enum.IntEnum):
    RED = 1
    CRIMSON = 1


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: Any


class Method:
    """As scrapy-playwright's PageMethod."""

    def __init__(self, method: str, *args: Any, **kwargs: Any) -> None:
        self.method, self.args, self.kwargs, self.result = method, args, kwargs, None


class Cyclic:
    def __init__(self) -> None:
        self.itself = self


class Unlisted:
    pass


class Text(str):
    pass


class BookSpider(scrapy.Spider):
    name = "books"

    def parse_part(self, number: int, colour: Any, response: Any, **kwargs: Any) -> Any:
        return self, (number, colour, response), kwargs

    @staticmethod
    def parse_static(response: Any) -> Any:
        return response


SPIDER = BookSpider()
FOUND = find(SPIDER)


def serializer_of(listed: list[Any], found: Any = ()) -> Serializer:
    """Knows classes that are listed, and perhaps those that are found in this module."""
    return Serializer(SPIDER, max_bytes=1 << 16, value_classes=ValueClasses(listed, found))


UNLISTED, LOCK = f"{__name__}.Unlisted", "asyncio.locks.Lock"
SERIALIZER = serializer_of([Method, f"{__name__}._Slots", Cyclic], FOUND)


def through(value: Any) -> Any:
    """``value`` when it has been in Redis."""
    return SERIALIZER.loads(SERIALIZER.dumps(Request(URL, meta={"a": value}))).meta["a"]


class TestValues:
    @pytest.mark.parametrize(
        "value",
        [
            Book(title="A", author=Author("B", [Book(title="C")], born=1990)),
            Frozen((1, 2)),
            {Frozen((1,)): 1},
            {Tag("a")},  # of two the order may change, and with it their repr()
            Shelf({Tag("a")}, Colour.RED),
            Colour.CRIMSON,
            Rights.WRITE,
            Point(1, Point(2, None)),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_objects_of_the_spiders_module(self, value: Any) -> None:
        """Equal, of the same type, and no constructor of the project has run for it."""
        made = Author.made
        restored = through([(value,), {"in": value}, value])
        assert repr(restored) == repr([(value,), {"in": value}, value])
        assert (type(restored[2]), restored[2]) == (type(value), value)
        assert Author.made == made

    def test_objects_of_listed_classes(self) -> None:
        """A class of any kind, in dictionary or slots, what was never assigned too."""
        method = through(Method("click", "a.next", timeout=1.5))
        given = {"method": "click", "args": ("a.next",), "kwargs": {"timeout": 1.5}}
        assert vars(method) == {**given, "result": None}
        slots = _Slots()
        slots.first = slots.__fields_set__ = [1]  # type: ignore[attr-defined]
        restored = through(slots)
        assert restored.first == restored.__fields_set__ == [1]
        assert not hasattr(restored, "later")

    @pytest.mark.parametrize(
        ("value", "place", "cure"),
        [
            (Book(title=threading.Lock()), "['_values']['title']: _thread.lock", "plain values"),
            (Shelf(set(), [Text("a")]), f"['note'][0]: {__name__}.Text", "plain values"),
            (Rights.READ | Rights.WRITE, ": tests.unit.test_value_classes.Rights: a combina", ""),
            (lambda: None, ": function", "plain values"),
            (Cyclic(), "['itself']", ""),
            (Unlisted(), f": {UNLISTED}", f"list {UNLISTED} in REDISQ_VALUE_CLASSES"),
            ([Unlisted], f"[0]: class {UNLISTED}", f"list {UNLISTED} in REDISQ_VALUE_CLASSES"),
            (asyncio.Lock(), f": {LOCK}", f"list {LOCK} in REDISQ_VALUE_CLASSES"),
        ],
    )
    def test_what_cannot_be_stored_is_named(self, value: Any, place: str, cure: str) -> None:
        """Where it is, and what helps: plain values, or to list the class. Only the project knows
        what its objects hold."""
        with pytest.raises(Unserializable) as caught:
            SERIALIZER.dumps(Request(URL, meta={"a": value}))
        assert str(caught.value).startswith(f"meta['a']{place}")
        assert cure in caught.value.cure

    def test_classes_themselves(self) -> None:
        """Those that are listed, as in scrapy-poet's ``meta["inject"]``; two make two requests."""
        serializer = serializer_of([Book, Colour, Point, Author])
        meta = {"inject": [Book, Colour, Point], "of": {Author: 1}}
        entry = serializer.dumps(Request(URL, meta=meta))
        assert serializer.loads(entry).meta == meta
        assert loads_fields(entry)["meta"]["inject"][0] == (f"{__name__}.Book", None)
        assert marks(Request(URL, meta={"inject": [Book]})) != marks(
            Request(URL, meta={"inject": [Author]})
        )

    @pytest.mark.parametrize("where", ["meta", "cb_kwargs"])
    def test_classes_that_are_only_found(self, where: str) -> None:
        """A method that calls what it is given would run their constructors. Neither stored, with
        the setting that helps, nor loaded; their objects are."""
        serializer = serializer_of([], FOUND)
        request = Request(URL, **{where: {"a": [Author, Author(name="A", born=1990)]}})  # type: ignore[arg-type]
        with pytest.raises(Unserializable, match=rf"{where}\['a'\]\[0\]: class .*Author") as caught:
            serializer.dumps(request)
        assert f"list {__name__}.Author in REDISQ_VALUE_CLASSES" in caught.value.cure
        listing = serializer_of([Author])
        entry = listing.dumps(request)
        assert getattr(listing.loads(entry), where) == getattr(request, where)
        with pytest.raises(Undecodable, match="Author itself is not listed"):
            serializer.loads(entry)

    @pytest.mark.parametrize("given", ["os.nothing", "os.path", int, Text, type, threading.Lock])
    def test_wrong_setting(self, given: Any) -> None:
        """What is no class, or one that Python does not make without its constructor."""
        with pytest.raises(SettingError, match="REDISQ_VALUE_CLASSES"):
            ValueClasses([given])


class TestWhatRedisSays:
    @pytest.mark.parametrize(
        ("name", "parts"),
        [
            ("os.system", {}),
            ("tests.unit.test_value_classes.Nobody", {}),
            (7, {}),
            ([], []),
            (f"{__name__}.Book", {"__class__": 1}),
            (f"{__name__}.Book", {1: 1}),
            (f"{__name__}.Book", []),
            (f"{__name__}.Colour", "mro"),
            (f"{__name__}.Point", [1]),
            (f"{__name__}.Point", {"x": 1, "y": 1}),
            (f"{__name__}._Slots", {"third": 1}),
            (f"{__name__}.Author", "name"),
        ],
    )
    def test_other_classes_and_contents(self, name: Any, parts: Any) -> None:
        """Nothing is imported or called: it is no request."""
        data = msgspec.msgpack.encode([name, parts])
        entry = {"u": URL, "m": {"a": msgspec.msgpack.Ext(14, data)}}
        modules = set(sys.modules)
        with pytest.raises(Undecodable):
            SERIALIZER.loads(bytes([FORMAT]) + msgspec.msgpack.encode(entry))
        assert set(sys.modules) == modules

    def test_no_copy_of_an_object_calls_what_it_holds(self) -> None:
        """``copy`` and ``pickle`` look special methods up on the object itself, and JsonRequest
        copies its arguments."""
        serializer = serializer_of([Author], FOUND)
        known, made = f"{__name__}.Author", Author.made
        author = msgspec.msgpack.Ext(14, msgspec.msgpack.encode([known, None]))
        held = msgspec.msgpack.encode([known, {"__deepcopy__": author}])
        extra = {"dumps_kwargs": {"indent": msgspec.msgpack.Ext(14, held)}}
        entry = msgspec.msgpack.encode({"u": URL, "k": ["J", extra]})
        with pytest.raises(Undecodable, match="__deepcopy__"):
            serializer.loads(bytes([FORMAT]) + entry)
        assert Author.made == made
        held_by_spider = Author("A")
        vars(held_by_spider)["__deepcopy__"] = 1
        with pytest.raises(Unserializable, match="__deepcopy__"):
            serializer.dumps(Request(URL, meta={"a": held_by_spider}))

    def test_tools_that_know_no_class(self) -> None:
        """They show what is stored, and hand it on unchanged, also in sets and as keys."""
        meta = {"book": [Book(title="A")], "tags": {Tag("a"), Tag("b")}, "of": {Frozen((1,)): 1}}
        entry = SERIALIZER.dumps(Request(URL, meta={**meta, "retry_times": 2}))
        assert loads_fields(entry)["meta"]["book"] == [
            (f"{__name__}.Book", {"_values": {"title": "A"}})
        ]
        for again in (forget_retries(entry), next_time(entry, b"i" * 16, {}, {})):
            assert SERIALIZER.loads(again or b"").meta == meta


class TestCallbacks:
    def test_partials_of_methods(self) -> None:
        """With what they are given, objects of the project too."""
        callback = partial(partial(SPIDER.parse_part, 1), Colour.RED, book=Book(title="A"))
        request = Request(URL, callback=callback, errback=partial(SPIDER.parse_static))
        entry = SERIALIZER.dumps(request)
        loaded = SERIALIZER.loads(entry)
        assert loaded.callback is not None
        assert loaded.callback(2) == (SPIDER, (1, Colour.RED, 2), {"book": Book(title="A")})
        assert loads_fields(entry)["callback"][0] == "parse_part"
        with pytest.raises(Unserializable, match=r"callback\[2\]\['lock'\]: _thread.lock"):
            SERIALIZER.dumps(
                Request(URL, callback=partial(SPIDER.parse_part, lock=threading.Lock()))
            )


def test_classes_beside_those_that_the_spider_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An item may hold an object of a class of its own module."""
    (tmp_path / "shop_items.py").write_text(
        "import scrapy, dataclasses\nclass Found(scrapy.Item): pass\n"
        "@dataclasses.dataclass\nclass Held: pass\n"
    )
    (tmp_path / "shop_spider.py").write_text(
        "import scrapy\nfrom shop_items import Found\nclass One(scrapy.Spider): name = 'one'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = find(__import__("shop_spider").One())
    assert [cls.__name__ for cls in found] == ["Found", "Held"]


def test_marks_tell_objects_apart() -> None:
    """Unfiltered requests for one URL that differ in an item or in a partial's argument differ."""

    def callback(response: Any, page: int) -> None: ...

    requests = [
        Request(URL),
        Request(URL, meta={"book": Book(title="A")}),
        Request(URL, meta={"book": Book(title="B")}),
        Request(URL, meta={"author": Author("A", born=1990)}),
        Request(URL, meta={"author": Author("A", born=1991)}),
        Request(URL, meta={"colour": Colour.RED}),
        Request(URL, meta={"method": Method("click")}),
        Request(URL, callback=partial(callback, page=1)),
        Request(URL, callback=partial(callback, page=2)),
        Request(URL, callback=lambda response: None),
    ]
    assert len({marks(request) for request in requests}) == len(requests)
    # Scrapinghub's entry point numbers requests and responses in each process. The others tell how
    # the page was fetched, which a copy of its meta hands on.
    unmarked = {"_hsid": 3, "_hsparent": 1, "proxy_retry_times": 2, "_rotating_proxy": True}
    unmarked |= {"_scheme_proxy": True, "_dont_cache": True, "cache_timestamp": 1.5}
    assert marks(Request(URL, meta=unmarked)) == marks(Request(URL))
    assert marks(requests[1]) == marks(Request(URL, meta={"book": Book(title="A")}))
