"""Requests survive the way through Redis unchanged, and no bytes from Redis do harm."""

from __future__ import annotations

import functools
import json
import pickle
import sys
import threading
import tracemalloc
import warnings
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
import scrapy
import scrapy.spiders
import scrapy.utils.misc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scrapy.http import FormRequest, Headers, HtmlResponse, JsonRequest, Request, XmlRpcRequest
from scrapy.http.request import NO_CALLBACK
from scrapy.linkextractors import LinkExtractor

from scrapy_redisq.errors import (
    EntryTooLarge,
    SchemeRefused,
    SettingError,
    Undecodable,
    Unserializable,
)
from scrapy_redisq.serialization.entry_format import FORMAT
from scrapy_redisq.serialization.request_fields import loads_fields, request_from_fields
from scrapy_redisq.serialization.serializer import Serializer

MAX_BYTES = 1 << 20
URL = "https://books.example.com/catalogue/category/books/a-light-in-the-attic_1000/"[:77]
PREFIX = bytes([FORMAT])
CLASSES = (Request, FormRequest, JsonRequest, XmlRpcRequest)

quick = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


def _wrapped_without_name(function: Any) -> Any:
    def wrapper(self: Any, response: Any) -> Any:
        return function(self, response)

    return wrapper


class BaseSpider(scrapy.spiders.CrawlSpider):
    @classmethod
    def parse_class(cls, response: Any) -> None: ...

    def parse_inherited(self, response: Any) -> None: ...

    def parse_overridden(self, response: Any) -> None: ...


class BookSpider(BaseSpider):
    name = "books"
    touched = False

    def parse_item(self, response: Any) -> None: ...

    def parse_part(self, part: Any, response: Any) -> None: ...

    def save(self, path: Any, body: Any) -> None: ...

    def on_error(self, failure: Any) -> None: ...

    async def parse_async(self, response: Any) -> None: ...

    def parse_generator(self, response: Any) -> Iterator[None]:
        yield

    def parse_overridden(self, response: Any) -> None: ...

    @_wrapped_without_name
    def parse_decorated(self, response: Any) -> None: ...

    def __parse_mangled(self, response: Any) -> None: ...

    def overridden_in_base(self) -> Any:
        return super().parse_overridden

    a_parse_item = z_parse_item = parse_item

    @property
    def parse_property(self) -> Any:
        type(self).touched = True
        return self.parse_item

    @classmethod
    def parse_class(cls, response: Any) -> None: ...

    @staticmethod
    def parse_static(response: Any) -> None: ...

    # In the place of Scrapy's, as projects do:

    parse = scrapy.spiders.CrawlSpider.parse
    parse_any = scrapy.spiders.CrawlSpider.parse_with_rules
    check = staticmethod(scrapy.utils.misc.load_object)

    def parse_start_url(self, response: Any, **kwargs: Any) -> Any: ...

    def closed(self, reason: Any) -> None: ...

    def start_requests(self) -> Any: ...

    @classmethod
    def from_crawler(cls, *args: Any, **kwargs: Any) -> Any: ...


class TaggedRequest(Request):
    """A project's class with an attribute and defaults of its own."""

    attributes = (*Request.attributes, "tag")

    def __init__(self, *args: Any, tag: Any = None, **kwargs: Any) -> None:
        kwargs.setdefault("priority", 10)
        kwargs.setdefault("cb_kwargs", {}).setdefault("tagged", True)  # which may not be None
        super().__init__(*args, **kwargs)
        self.headers.setdefault("X-Tagged", "yes")
        self.tag = tag


SPIDER = BookSpider()
SERIALIZER = Serializer(SPIDER, max_bytes=MAX_BYTES, request_classes=[TaggedRequest])


def through(request: Request, serializer: Serializer = SERIALIZER) -> Request:
    """A request when it has been in Redis."""
    return serializer.loads(serializer.dumps(request))


def attributes(request: Request) -> dict[str, Any]:
    """All attributes of a request, in a form that can be compared, types and order included."""
    found = {name: getattr(request, name) for name in request.attributes}
    headers = found.pop("headers")
    assert type(headers) is Headers
    found["headers"] = [(name, headers.getlist(name)) for name in headers]
    return {name: typed(value) for name, value in found.items()}


def typed(value: Any) -> Any:
    """``value`` with every type beside it, so that 1, 1.0 and True differ, and nan equals nan."""
    kind = type(value)
    if kind is dict:
        return kind, [(typed(key), typed(item)) for key, item in value.items()]
    if kind in (list, tuple):
        return kind, [typed(item) for item in value]
    if kind in (set, frozenset):
        return kind, sorted((typed(item) for item in value), key=repr)
    if kind in (datetime, time):
        return kind, value.isoformat(), repr(value.tzinfo)
    if kind in (float, Decimal):
        return kind, repr(value)
    return kind, value


def assert_same(request: Request, serializer: Serializer = SERIALIZER) -> None:
    expected = attributes(request)
    loaded = through(request, serializer)
    assert type(loaded) is type(request)
    assert attributes(loaded) == expected
    assert attributes(request) == expected


def with_meta(value: Any, key: str = "key") -> Request:
    return Request(URL, meta={key: value})


# Requests


def full_of(cls: type[Request]) -> Request:
    """A request with all that one can have."""
    return cls(
        URL,
        callback=SPIDER.parse_item,
        errback=SPIDER.on_error,
        method="PUT",
        headers=[("X-B", "2"), ("X-A", "1"), ("X-B", "3"), ("X-None", None)],
        body="Grüße".encode("latin-1"),
        cookies={"session": "1", "n": 2, "flag": True},
        meta={"depth": 3, "is_start_request": True, "redirect_urls": [URL], "u": UUID(int=7)},
        cb_kwargs={"page": 1, "seen": {"a", "b"}, "big": 2**70, "d": Decimal("1.5")},
        encoding="latin-1",
        priority=-7,
        dont_filter=True,
        flags=["cached", "old"],
    )


@pytest.mark.parametrize("cls", CLASSES)
def test_all_attributes_are_kept(cls: type[Request]) -> None:
    """Each of Scrapy's request classes comes back with every attribute as it was, or as
    its class has it by default."""
    assert_same(full_of(cls))
    assert_same(cls(URL))


def odd_requests() -> Iterator[Request]:
    """What differs from what a constructor would make of it."""
    request = Request(URL)
    request.method = "post"
    yield request
    yield Request(URL, headers={"xéa": "1", "étag": "2"})  # Scrapy would change them again
    yield Request(
        URL,
        cookies=[
            {"name": "a", "value": "1", "domain": "example.com", "path": "/", "secure": True},
            {"name": b"b", "value": b"2"},
        ],
    )
    rpc = XmlRpcRequest(URL, method="GET", dont_filter=False, params=(1,), methodname="m")
    rpc.headers.clear()
    yield rpc
    yield FormRequest(URL, formdata={"a": "1", "b": ["2", "3"]})
    as_json = JsonRequest(URL, data={"b": 1, "a": [2]}, dumps_kwargs={"indent": 2})
    del as_json.headers["Accept"]
    yield as_json
    tagged = TaggedRequest(URL, tag={"since": date(2024, 2, 29)}, priority=0)
    del tagged.headers["X-Tagged"]
    yield tagged
    yield TaggedRequest(URL, headers={"X-Other": "1"})


def test_what_differs_from_the_defaults_is_kept() -> None:
    """What the constructors of subclasses fill in does not come back after it was removed."""
    for request in odd_requests():
        assert_same(request)


def test_request_classes() -> None:
    """A class that is not registered is neither stored nor loaded; the setting is named, also where
    it has what is no request class."""
    for wrong in ("no.such.module.Class", "nodots", "json.loads", "", dict, 7):
        with pytest.raises(SettingError, match="REDISQ_REQUEST_CLASSES"):
            Serializer(None, max_bytes=MAX_BYTES, request_classes=[wrong])
    plain = Serializer(SPIDER, max_bytes=MAX_BYTES)
    path = f"{__name__}.TaggedRequest"
    by_path = Serializer(SPIDER, max_bytes=MAX_BYTES, request_classes=[path, TaggedRequest])
    assert_same(TaggedRequest(URL, tag=1), by_path)
    with pytest.raises(Unserializable, match=r"TaggedRequest is not listed in REDISQ_REQUEST_CLA"):
        plain.dumps(TaggedRequest(URL))
    with pytest.raises(Undecodable, match=r"TaggedRequest' is not listed in REDISQ_REQUEST_CLAS"):
        plain.loads(SERIALIZER.dumps(TaggedRequest(URL)))


# URLs


@pytest.mark.parametrize("verbatim", [True, False])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "gb18030", "utf-16"])
@pytest.mark.parametrize("url", ["http://a\u3000", "https://a:80/ é%zz?q=ß&b=%09#[]", "data:,é x"])
def test_urls_are_kept(url: str, encoding: str, verbatim: bool) -> None:
    """A URL that Scrapy has accepted comes back as the same text, verbatim ones included."""
    request = Request(url, encoding=encoding, meta={"verbatim_url": verbatim})
    assert_same(request)


# Callbacks

CALLBACKS = ["parse", "parse_item", "parse_async", "parse_generator", "parse_inherited"]
CALLBACKS += ["parse_overridden", "parse_decorated", "_BookSpider__parse_mangled"]
CALLBACKS += ["parse_class", "parse_static", "parse_start_url", "_callback", "_errback", "_parse"]


@pytest.mark.parametrize("name", CALLBACKS)
def test_callbacks_are_the_spiders_methods(name: str) -> None:
    """Methods of all kinds of the spider's class come back bound to this worker's spider, those too
    that Scrapy itself gives its requests."""
    request = Request(URL, callback=getattr(SPIDER, name), errback=getattr(SPIDER, name))
    assert_same(request)
    assert loads_fields(SERIALIZER.dumps(request))["callback"] == name


def test_odd_callbacks() -> None:
    """A method with several names is stored by its own; NO_CALLBACK comes back as the object."""
    for callback in (SPIDER.parse_item, SPIDER.a_parse_item, SPIDER.z_parse_item):
        entry = SERIALIZER.dumps(Request(URL, callback=callback))
        assert loads_fields(entry)["callback"] == "parse_item"
    for one in (SERIALIZER, Serializer(None, max_bytes=MAX_BYTES)):
        loaded = through(Request(URL, callback=NO_CALLBACK, errback=NO_CALLBACK), one)
        assert loaded.callback is loaded.errback is NO_CALLBACK
    without = Serializer(None, max_bytes=MAX_BYTES)
    with pytest.raises(Unserializable, match="callback"):
        without.dumps(Request(URL, callback=SPIDER.parse))
    with pytest.raises(Undecodable, match="callback 'parse_item' is no callback"):
        without.loads(raw({URL_KEY: URL, "c": "parse_item"}))


def test_callbacks_that_no_other_worker_has() -> None:
    """Lambdas, nested functions and others' methods are refused by name, in partials too."""

    def nested(response: Any) -> None: ...

    class Callable:
        def __call__(self, response: Any) -> None: ...

        def method(self, response: Any) -> None: ...

    callbacks = {
        "<lambda>": lambda response: None,
        "nested": nested,
        "<lambda> is": functools.partial(lambda response, page: None, page=1),
        "Callable": Callable(),
        "Callable.method": Callable().method,
        "BookSpider.parse_item": BookSpider().parse_item,
        "BookSpider.parse_item is": BookSpider.parse_item,
        "BookSpider.from_crawler": SPIDER.from_crawler,
        "BaseSpider.parse_class": super(BookSpider, BookSpider).parse_class,
        "BaseSpider.parse_overridden": SPIDER.overridden_in_base(),
        "builtin_function_or_method": print,
    }
    for name, callback in callbacks.items():
        with pytest.raises(Unserializable) as caught:
            SERIALIZER.dumps(Request(URL, callback=callback))
        assert name in str(caught.value)
        assert "is no callback of spider 'books' (BookSpider)" in str(caught.value)
        with pytest.raises(Unserializable, match="errback"):
            SERIALIZER.dumps(Request(URL, errback=callback))


HOOKS = ["parse_with_rules", "parse_any", "check", "closed", "start_requests", "from_crawler"]
HOOKS += ["log", "_set_crawler", "start", "process_results", "_parse_response", "__init__"]
NO_CALLBACKS = ["gone", "parse_property", "touched", "name", "__class__", "os.system", ""]


@pytest.mark.parametrize("name", [*HOOKS, *NO_CALLBACKS])
def test_names_that_are_no_callbacks(name: str) -> None:
    """Of an entry: no property is run. Nor of a spider: neither Scrapy's methods nor what a spider
    has in their place. ``parse_with_rules`` calls what its ``cb_kwargs`` say, and ``closed`` puts
    things away. By another name neither."""
    BookSpider.touched = False
    for callback in (name, [name, [], {}], [name, [1], {}]):
        for role in ("c", "e"):
            with pytest.raises(Undecodable) as caught:
                SERIALIZER.loads(raw({"u": URL, role: callback}))
            assert f"{name}' is no callback of spider 'books' (BookSpider)" in str(caught.value)
    assert BookSpider.touched is False
    for role in ("callback", "errback") if name in HOOKS else ():
        with pytest.raises(Unserializable, match="no callback of spider 'books'") as refused:
            SERIALIZER.dumps(Request(URL, **{role: getattr(SPIDER, name)}))
        assert "no name of Scrapy's own methods" in refused.value.cure


# Values

VALUES = {
    "none": None,
    "bools": [True, False, 1, 0, 1.0],
    "integers": [2**63 - 1, -(2**63), 2**64 - 1],
    "large integers": [2**64, -(2**63) - 1, 10**5000, -(10**5000)],
    "floats": [1.5, -0.0, float("inf"), float("-inf"), float("nan"), 5e-324],
    "text": ["", "Grüße 日本 \x00", "\ud800 lone", "\ud83d\ude00", "😀"],
    "bytes": [b"", b"\xff\x00", bytearray(b"\xff"), bytearray()],
    "tuples": [(), (1,), (1, (2, [3, ()]))],
    "sets": [set(), {1, "a", None, (1, 2)}, frozenset({1}), {frozenset({frozenset()})}],
    "dict keys": {1: "a", "1": "b", None: "c", 2.5: "d", b"1": "e", "\ud800": "f", 10**30: "g"},
    "hashable keys": {(1, "a"): 1, frozenset({2}): 2, date(2024, 1, 1): 3, Decimal("1.10"): 4},
    "true key": {True: 1},
    "empty": [{}, [], [[]], {"a": {}}],
    "naive": [datetime(2024, 2, 29, 1, 2, 3, 4), datetime.min, datetime.max, time(1, 2, 3, 4)],
    "offset": [
        datetime(2024, 1, 1, tzinfo=timezone.utc),
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-3, microseconds=7))),
        time(1, tzinfo=timezone(-timedelta(hours=23, minutes=59))),
    ],
    "dates": [date.min, date.max, timedelta(days=-1, microseconds=3), timedelta.max],
    "decimals": [Decimal(text) for text in ("1.10", "-0", "NaN", "sNaN123", "-Infinity", "1E+99")],
    "uuid": UUID("12345678-1234-5678-1234-567812345678"),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_keep_their_types(name: str) -> None:
    """Plain values come back equal and of the same type wherever a request can hold them."""
    value = VALUES[name]
    assert_same(with_meta(value))
    assert_same(Request(URL, cb_kwargs={"value": value, "again": [{"value": value}]}))
    assert_same(Request(URL, cookies={"a": value}, flags=[value]))
    assert_same(JsonRequest(URL, dumps_kwargs={"default": value}))
    assert_same(TaggedRequest(URL, tag=value))


class Text(str):
    pass


UNSERIALIZABLE = [
    ("meta['key']: _thread.lock", threading.Lock()),
    ("meta['key'][1]['a']: _thread.lock", [1, {"a": threading.Lock()}]),
    ("meta['key'][0][1]: object", ((0, object()),)),
    ("meta['key'] (key tests.unit.test_serializer.Text): tests", {Text("a"): 1}),
    ("meta['key']: time zone of type zoneinfo", datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC"))),
    ("meta['key'][0]: msgspec.msgpack.Ext", [msgspec.msgpack.Ext(2, b"\x90")]),
    ("meta['key']['" + "key" * 16, {"key" * 1000: object()}),
]


@pytest.mark.parametrize(("message", "value"), UNSERIALIZABLE)
def test_other_values_are_refused_with_their_place(message: str, value: Any) -> None:
    """Values that could not be restored with their type are refused: where, and which type."""
    for place, request in (
        (message, with_meta(value)),
        ("cb_kwargs['a']", Request(URL, cb_kwargs={"a": value})),
        ("cookies['a']", Request(URL, cookies={"a": value})),
        ("flags[0]", Request(URL, flags=[value])),
        ("tag", TaggedRequest(URL, tag=value)),
    ):
        with pytest.raises(Unserializable) as caught:
            SERIALIZER.dumps(request)
        assert str(caught.value).startswith(place)
        assert len(str(caught.value)) < 200


def test_lxml_text_is_stored_as_text() -> None:
    """LinkExtractor's link texts, which CrawlSpider puts into meta, are a str subclass of lxml."""
    page = HtmlResponse(URL, body="<a href='/x'>a Grüße</a>".encode(), encoding="utf-8")
    text = LinkExtractor().extract_links(page)[0].text
    loaded = through(with_meta(text, "link_text"))
    assert loaded.meta == {"link_text": "a Grüße"}
    assert type(loaded.meta["link_text"]) is str


def test_depth_and_cycles() -> None:
    """100 levels are stored; one more, a cycle and the same made by others are refused."""

    def nested(levels: int, value: Any = 1) -> Any:
        for _ in range(levels):
            value = [value]
        return value

    assert_same(with_meta(nested(99)))
    cycle: list[Any] = []
    cycle += [cycle, cycle]
    for value in (nested(100), nested(5000), cycle, {"a": cycle}):
        with pytest.raises(Unserializable, match=r"levels deep"):
            SERIALIZER.dumps(with_meta(value))
    map_of_two = PREFIX + b"\x82" + msgpack(URL_KEY) + msgpack(URL) + b"\xa1"
    tagged = b"k\x92" + msgpack(f"{__name__}.TaggedRequest") + b"\x81\xa3tag\x91"
    for levels in (100, 500, 100_000):
        deep = b"\x91" * levels + b"\x01"
        for place in (b"m\x81\xa1a", b"a\x81\xa1a", b"o\x81\xa1a", b"f\x91", tagged):
            with pytest.raises(Undecodable, match=r"levels deep|recursion"):
                SERIALIZER.loads(map_of_two + place + deep)
        assert SERIALIZER.loads(map_of_two + b"m\x81\xa1a" + deep[levels - 99 :])


def test_large_entries_are_refused() -> None:
    """The limit is exact, names its setting, and no copy of an oversized body is made. A list that
    stands for 2**60 values through shared parts is refused at once."""
    shared: list[Any] = [1]
    for _ in range(60):
        shared = [shared, shared]
    size = 100_000
    overhead = len(Serializer(SPIDER, max_bytes=MAX_BYTES).dumps(Request(URL, body=b"x" * size)))
    overhead -= size
    serializer = Serializer(SPIDER, max_bytes=size)
    assert_same(Request(URL, body=b"x" * (size - overhead)), serializer)
    for request in (
        Request(URL, body=b"x" * (size - overhead + 1)),
        with_meta("x" * size),
        with_meta(["x"] * size + [()]),
        with_meta(shared),
    ):
        with pytest.raises(EntryTooLarge, match=r"REDISQ_MAX_ENTRY_BYTES = 100000"):
            serializer.dumps(request)
    huge = Request(URL, body=b"x" * 50_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(EntryTooLarge, match="body: 50,000,000 bytes"):
            serializer.dumps(huge)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


# Foreign bytes

msgpack = msgspec.msgpack.Encoder().encode
URL_KEY = "u"


def raw(fields: Any) -> bytes:
    """An entry as anybody can write it."""
    return PREFIX + msgpack(fields)


class Bomb:
    """Its pickle runs code."""

    def __reduce__(self) -> Any:
        return exec, ("import sys; sys.modules['scrapy_redisq_test_bomb'] = sys",)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (b"", "^no request$"),
        (b"\x01anything", "^format 1, this release reads 2$"),
        (b"\x0f", "^format 15, this release reads 2$"),
        (pickle.dumps(Bomb()), "not an entry of scrapy-redisq, begins with b'.x80"),
        (pickle.dumps(Bomb(), protocol=0), "not an entry of scrapy-redisq"),
        (json.dumps({"url": URL}).encode(), "not an entry of scrapy-redisq"),
        (URL.encode(), "not an entry of scrapy-redisq, begins with b'https://'"),
        (PREFIX, "damaged entry"),
        (raw({URL_KEY: URL})[:-1], "truncated"),
        (raw({URL_KEY: URL}) + b"\x00", "trailing"),
        (raw([URL]), "Expected `object`"),
        (raw({"m": {}}), "missing required field"),
        (raw({URL_KEY: "no-scheme"}), "Missing scheme"),
        (raw({URL_KEY: "http://["}), "not a request"),
        (raw({URL_KEY: "x" * 100_000}), "Missing scheme"),
        (raw({URL_KEY: msgspec.msgpack.Ext(6, b"\xed\xa0\x80")}), "got `ext` - at `url`"),
        ("text", "not bytes but str"),
        (None, "not bytes but NoneType"),
    ],
)
def test_reason_of_each_foreign_entry(entry: Any, why: str) -> None:
    """Each kind of foreign or damaged bytes is told apart, in few words; no pickle is run."""
    with pytest.raises(Undecodable, match=why) as caught:
        SERIALIZER.loads(entry)
    assert len(str(caught.value)) < 400
    str(caught.value).encode()
    assert "scrapy_redisq_test_bomb" not in sys.modules


WRONG: dict[Any, list[Any]] = {
    "u": [1, None, URL.encode(), [URL]],
    "k": [
        *(1, "F", ["_class", {}], ["antigravity.Request", {}], ["F"], ["F", {}, 1], [1, {}]),
        *(["antigravity", {}], ["F", {"_class": "antigravity.Request"}]),
        *(["", {"data": 1}], ["F", {"formdata": {}}], ["J", {"__class__": 1}], ["X", {"url": URL}]),
    ],
    "c": [1, True, b"parse_item", ["parse_item"], {"a": 1}, "antigravity.s"],
    "e": [1, True, b"parse_item"],
    "v": [1, b"GET"],
    "h": [[], "text", {"text": [b"1"]}, {b"X": b"1"}, {b"X": [1]}, {1: [b"1"]}],
    "b": ["text", 1, None, [b""]],
    "o": [1, "a=1", [1], ["a"], [[]]],
    "m": [[], "text", 1],
    "a": [[], "text", 1],
    "n": [1, b"utf-8", "no-such-encoding", "antigravity", "../x", "é", ""],
    "p": ["1", 1.5, True, None, 2**60, [1]],
    "d": [1, "yes", None, [1]],
    "f": [{}, "text", 1],
    "x": [1],
    "z": [1],
    "_": [1],
    "url": ["a"],
    "_class": ["antigravity.Request"],
    **{key: ["a"] for key in (b"u", 1, 1.5, None, 2**40)},
}


@pytest.mark.parametrize("key", WRONG)
def test_wrong_types_in_each_field(key: Any) -> None:
    """A field of another type than it must have is refused, in each request class; so are unknown
    ones, and arguments that no request of the class was stored with. No module that an entry names
    is imported."""
    for value in WRONG[key]:
        for code in ("", "F", "J", "X"):
            fields = {URL_KEY: URL, "k": [code, {}]}
            SERIALIZER.loads(raw(fields))
            with pytest.raises(Undecodable):
                SERIALIZER.loads(raw({**fields, key: value}))
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("code", [*range(14), 14, 127, -1, -2])
def test_wrong_content_of_extension_types(code: int) -> None:
    """Extension types with contents that they cannot have give Undecodable, unknown ones too."""
    contents: list[Any] = [b"", b"\xff", b"\xc1", b"\x00" * 3, b"1e99999999999999999999", 1, {}]
    contents += [[[]], [{}], [1], ["a"] * 9, [1] * 9, [10**15] * 9, [None] * 9, [[], 1, [], 2]]
    contents += [[2024, 1, 1, 0, 0, 0, 0, 0, name] for name in ("../../etc/passwd", "/", "os.path")]
    contents += [[2024, 1, 1, 0, 0, 0, 0, 0, name] for name in ("Europe", "No/Where", [], [1, 2])]
    refused = 0
    for content in contents:
        data = content if isinstance(content, bytes) else msgpack(content)
        packed = msgspec.msgpack.Ext(code, data)
        try:
            SERIALIZER.loads(raw({URL_KEY: URL, "m": {"a": packed}}))
        except Undecodable:
            refused += 1
    anything = code in (5, 7)  # an integer and a bytearray may be any bytes
    assert refused == 0 if anything else refused >= 4


@pytest.mark.parametrize("header", [b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"])
def test_huge_lengths_do_not_allocate(header: bytes) -> None:
    """A length prefix of 4 GB on a few bytes is refused without taking memory for it."""
    for length in (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x05\xf5\xe1\x00"):
        tracemalloc.start()
        try:
            for entry in (header + length + b"\x01", b"\x82\x75" + header + length + b"\x01"):
                with pytest.raises(Undecodable):
                    SERIALIZER.loads(PREFIX + entry)
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()


@given(st.data())
@quick
def test_damaged_entries(data: st.DataObject) -> None:
    """Real entries that were cut, changed or spliced give a request or Undecodable."""
    cls = data.draw(st.sampled_from([*CLASSES, TaggedRequest]))
    entry = bytearray(SERIALIZER.dumps(full_of(cls)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(entry)))
        to = data.draw(st.integers(at, min(len(entry), at + 4)))
        entry[at:to] = data.draw(st.binary(max_size=4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for loads in (SERIALIZER.loads, loads_fields):
            try:
                loaded = loads(bytes(entry))
            except Undecodable as error:
                assert str(error)
            else:
                assert isinstance(loaded, (Request, dict))
                if isinstance(loaded, Request):
                    again = through(loaded)
                    assert attributes(again) == attributes(loaded)


# Plain fields


def entry_from_fields(
    fields: Any, *, schemes: Any = None, meta_keys: Any = ()
) -> tuple[bytes, Request]:
    """As a producer makes one."""
    request, callback, errback = request_from_fields(fields)
    serializer = Serializer(None, max_bytes=MAX_BYTES, schemes=schemes, meta_keys=meta_keys)
    return serializer.dumps(request, callback=callback, errback=errback), request


def test_entry_from_fields() -> None:
    """A line of JSON becomes the entry of the request that it describes."""
    line = {
        "url": "https://example.com/a b",
        "method": "POST",
        "headers": {"Accept": "text/html", "X": ["1", "2"]},
        "body": "Grüße",
        "cookies": {"a": "1"},
        "meta": {"depth": 2},
        "cb_kwargs": {"page": 3},
        "callback": "parse_item",
        "errback": "on_error",
        "priority": 4,
        "dont_filter": True,
    }
    entry, request = entry_from_fields(json.loads(json.dumps(line)))
    loaded = SERIALIZER.loads(entry)
    assert (loaded.callback, loaded.errback) == (SPIDER.parse_item, SPIDER.on_error)
    assert loaded.url == request.url == "https://example.com/a%20b"
    assert loaded.body == "Grüße".encode()
    assert loaded.headers.getlist("X") == [b"1", b"2"]
    loaded.callback = loaded.errback = None
    assert attributes(loaded) == attributes(request)


OF_SCRAPY = ("closed", "start", "from_crawler", "_set_crawler")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "field 'url' is missing"),
        ({"url": None}, "field 'url' is missing"),
        ({"url": 1}, "field 'url': takes an http or https URL"),
        *(({"url": url}, "field 'url'") for url in ("http://", "http://[", "example.com")),
        *(({"method": method}, "field 'method'") for method in (1, "GET /\r\n")),
        ({"headers": ["a"]}, "field 'headers'"),
        ({"headers": {"A": [{}]}}, "not a request"),
        ({"body": {"a": 1}}, "field 'body'"),
        ({"cookies": "a=1"}, "field 'cookies'"),
        *(({"meta": meta}, "field 'meta'") for meta in ([1], {1: 1})),
        ({"cb_kwargs": "a"}, "field 'cb_kwargs'"),
        *(({"callback": name}, "field 'callback'") for name in ("__init__", "a.b", *OF_SCRAPY)),
        *(({"errback": name}, "field 'errback'") for name in (1, *OF_SCRAPY)),
        *(({"priority": number}, "priority") for number in ("1", True, 2**53 + 1)),
        ({"dont_filter": "yes"}, "field 'dont_filter'"),
        ({"calback": "a"}, "unknown field 'calback', did you mean 'callback'"),
        ({1: "a"}, "unknown field 1; the spider's go into 'meta'"),
        ({"url": "http://a/\ud800"}, "not a request"),
        ({"meta": {"a": object()}}, r"meta\['a'\]: object"),
    ],
)
def test_wrong_fields_are_named(fields: dict[Any, Any], message: str) -> None:
    """Each wrong field is refused with its name and what it takes."""
    given = fields if "url" in fields or not fields else {"url": URL, **fields}
    with pytest.raises(Unserializable, match=message):
        entry_from_fields(given)


SCHEMES = ("http", "https", "data")
REFUSED = ["FILE:///etc/passwd", "s3://bucket/key", "about:blank", "httpx://example.com/"]


@pytest.mark.parametrize("url", REFUSED)
def test_schemes_that_are_not_listed(url: str) -> None:
    """Refused when taken in and when loaded, with the setting's name; by name they are allowed."""
    listed = Serializer(SPIDER, max_bytes=MAX_BYTES, schemes=SCHEMES)
    request = Request(url, callback=lambda response: None)
    with pytest.raises(SchemeRefused, match="REDISQ_SCHEMES"):
        listed.dumps(request)
    everything = Serializer(SPIDER, max_bytes=MAX_BYTES)
    entry = everything.dumps(Request(url))
    with pytest.raises(Undecodable, match="REDISQ_SCHEMES"):
        listed.loads(entry)
    for other in ("HTTP://a.example/", "https://a.example/", "data:,x"):
        assert_same(Request(other), listed)
    own = Serializer(SPIDER, max_bytes=MAX_BYTES, schemes=[url.partition(":")[0].lower()])
    assert_same(Request(url), own)
    with pytest.raises((Unserializable, SchemeRefused), match=r"REDISQ_SCHEMES"):
        entry_from_fields({"url": url}, schemes=SCHEMES)


@pytest.mark.parametrize(
    "url", ["\nfile:///etc/passwd", " file:///x", "fi\tle:///x", "\x00file:///x", "file\n:///x", ""]
)
def test_no_parser_makes_another_scheme(url: str) -> None:
    """Parsers strip blanks and control characters; what begins with them is no listed scheme."""
    with pytest.raises(Undecodable):
        Serializer(SPIDER, max_bytes=MAX_BYTES, schemes=SCHEMES).loads(raw({URL_KEY: url}))


UNSAFE = {
    "referrer_policy": "os.abort",
    "ftp_local_filename": "/etc/cron.d/x",
    "playwright_context_kwargs": {"executable_path": "/bin/sh", "user_data_dir": "/tmp/x"},
    "playwright_page_init_callback": "os.abort",
    "playwright_page_event_handlers": {"close": "closed"},
    "playwright_page_methods": [],
    "playwright_of_a_later_release": 1,
    "camoufox_page_init_callback": "os.abort",
    "impersonate_args": {"url": "file:///etc/passwd"},
    "impersonate_curl_options": {"UNIX_SOCKET_PATH": "/run/docker.sock"},
    "zyte_api_retry_policy": "os.abort",
}
"""Keys of meta that Scrapy and plugins import, open or start a process from."""


class TestUnsafeMeta:
    """What names code, processes or files is neither stored nor loaded."""

    @pytest.mark.parametrize("key", UNSAFE)
    def test_is_refused_wherever_it_comes_from(self, key: str) -> None:
        """Of a spider, pushed, or written by hand; with the key and the setting. What the setting
        lists passes."""
        meta = {key: UNSAFE[key]}
        with pytest.raises(Unserializable, match=key) as refused:
            SERIALIZER.dumps(Request(URL, meta=meta))
        assert f"list {key!r} in REDISQ_META_KEYS" in refused.value.cure
        with pytest.raises(Unserializable, match=key):
            entry_from_fields({"url": URL, "meta": meta})
        with pytest.raises(Undecodable, match=rf"{key}.*REDISQ_META_KEYS"):
            SERIALIZER.loads(raw({"u": URL, "m": meta}))
        listing = Serializer(SPIDER, max_bytes=MAX_BYTES, meta_keys=[key])
        assert through(Request(URL, meta=meta), listing).meta == meta
        entry_from_fields({"url": URL, "meta": meta}, meta_keys=[key])

    def test_policies_with_a_name_pass(self) -> None:
        """Those of the standard, in the ways in which Scrapy reads them; others do not."""
        for policy in ("", "no-referrer", "Origin, same-origin", "scrapy-default"):
            meta = {"referrer_policy": policy}
            assert through(Request(URL, meta=meta)).meta == meta
        for other in (1, ["os.abort"], "origin, os.abort", b"a.b"):
            with pytest.raises(Undecodable, match="referrer_policy"):
                SERIALIZER.loads(raw({"u": URL, "m": {"referrer_policy": other}}))

    def test_what_only_says_how_passes(self) -> None:
        """Plugins can be used without listing anything."""
        meta = {
            "playwright": True,
            "playwright_context": "one",
            "playwright_include_page": False,
            "playwright_page_goto_kwargs": {"wait_until": "networkidle"},
            "impersonate": "chrome",
            "zyte_api": {"browserHtml": True},
            "splash": {"args": {"wait": 1}},
            "page_params": {"a": 1},
            "download_slot": "a",
        }
        assert through(Request(URL, meta=meta)).meta == meta

    def test_partials_whose_arguments_come_first_are_of_callbacks(self) -> None:
        """``save("/etc/cron.d/x", response)`` writes what a site says; a callback takes the
        response in its place."""
        request = Request(URL, callback=functools.partial(SPIDER.parse_part, 1))
        assert through(request).callback.args == (1,)  # type: ignore[union-attr]
        failed = Request(URL, errback=functools.partial(SPIDER.save, "/etc/cron.d/x"))
        with pytest.raises(Unserializable, match=r"errback: .*save.*response") as caught:
            SERIALIZER.dumps(failed)
        assert "cb_kwargs" in caught.value.cure
        for arguments in (["/etc/cron.d/x"], [1, 2], [1, 2, 3]):
            with pytest.raises(Undecodable, match="save"):
                SERIALIZER.loads(raw({"u": URL, "c": ["save", arguments, {}]}))
        with pytest.raises(Undecodable, match="parse_part"):
            SERIALIZER.loads(raw({"u": URL, "c": ["parse_part", [1, 2], {}]}))
