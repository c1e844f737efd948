"""``scrapy redisq migrate``: queues as scrapy-redis 0.9.1 writes them, and one that it wrote."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy import Request, Spider
from scrapy.http import FormRequest, JsonRequest

from lab.launcher import fork
from lab.servers import RedisServer
from lab.site import Site, linked_pages
from scrapy_redisq.control import Frontier
from scrapy_redisq.dupefilter import scrapy_redis_fingerprint
from scrapy_redisq.ops.migration import pickles, plain
from scrapy_redisq.ops.migration.pickles import PickleReader
from scrapy_redisq.serialization.request_fields import loads_fields
from scrapy_redisq.serialization.values import decode
from tests.control.conftest import Opener
from tests.control.member import Member
from tests.harness.command import Ran, Redisq
from tests.harness.crawl import install

QUEUE, SEEN = "books:requests", "books:dupefilter"
OURS = {"REQUEST_FINGERPRINTER_CLASS": "scrapy_redisq.ScrapyRedisFingerprinter"}


class Books(Spider):
    name = "books"

    def parse_book(self, response: Any) -> None: ...


SPIDER = Books()


class Shop:
    """An object of a project."""


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch evil; sleep 30",)


def pickled(request: Request) -> bytes:
    """As scrapy-redis does it."""
    return pickle.dumps(request.to_dict(spider=SPIDER), protocol=-1)


def book(number: int, **options: Any) -> Request:
    return Request(f"http://books.example/{number}", callback=SPIDER.parse_book, **options)


@pytest.fixture
def old(one_client: redis.Redis) -> redis.Redis:
    return one_client


def put(old: redis.Redis, *requests: Request) -> None:
    """As the PriorityQueue and the dupefilter of scrapy-redis do it."""
    for request in requests:
        if not request.dont_filter:
            old.sadd(SEEN, scrapy_redis_fingerprint(request).hex())
        old.zadd(QUEUE, {pickled(request): -request.priority})


def counts(ran: Ran, what: str) -> list[int]:
    """The numbers of a line of the table."""
    line = re.search(rf"^{what} +\S+ +(.*)$", ran.out, re.M)
    assert line, ran
    return [int(number) for number in line[1].replace(",", "").split()]


def taken(frontier: Frontier) -> list[dict[str, Any]]:
    """The requests of a frontier in the order in which a worker gets them."""
    return [loads_fields(lease.entry) for lease in Member(frontier).claim(100)]


class TestRequests:
    def test_they_keep_their_fields_order_and_priorities(
        self, redisq: Redisq, old: redis.Redis, frontier: Frontier
    ) -> None:
        """Callbacks, classes and values of each plain type arrive; counts say what happened."""
        meta = {
            "when": datetime(2026, 1, 2, tzinfo=timezone.utc),
            "price": Decimal("1.50"),
            "of": {"tags": {"a"}, "size": (1, 2)},
        }
        form = FormRequest("http://books.example/3", formdata={"q": "x"}, priority=9)
        put(old, book(1, meta=meta, cookies={"a": "b"}, cb_kwargs={"n": 1}), book(2, priority=5))
        put(old, form, JsonRequest("http://books.example/4", data={"a": 1}, priority=-2))
        old.rpush("books:start_urls", "http://books.example/")
        old.rpush("books:items", "{}", "{}")
        ran = redisq("migrate", "books", "--seen", "queue")
        assert (ran.code, ran.err) == (0, "")
        assert counts(ran, "requests") == [4, 4, 0, 0, 4]
        assert counts(ran, "seen") == [4, 4]
        assert counts(ran, "items") == [2, 2]
        assert counts(ran, "start URLs") == [1, 1]
        assert "books:start_urls stays as it is" in ran.out
        found = taken(frontier)
        assert [one["url"][-1] for one in found] == ["3", "2", "1", "4"]
        assert [one.get("priority", 0) for one in found] == [9, 5, 0, -2]
        assert (found[0]["class"], found[0]["body"]) == ("FormRequest", b"q=x")
        assert (found[2]["meta"], found[2]["callback"]) == (meta, "parse_book")
        assert (found[2]["cookies"], found[2]["cb_kwargs"]) == ({"a": "b"}, {"n": 1})

    @pytest.mark.parametrize("order", ["fifo", "lifo"])
    def test_a_list_goes_in_the_order_in_which_it_came(
        self, redisq: Redisq, old: redis.Redis, frontier: Frontier, order: str
    ) -> None:
        """FifoQueue and LifoQueue push to the same end: REDISQ_ORDER says who is first."""
        for number in range(250):
            old.lpush(QUEUE, pickled(book(number)))
        assert redisq("migrate", "books", "--delete", REDISQ_ORDER=order).code == 0
        urls = [int(one["url"].rpartition("/")[2]) for one in taken(frontier)]
        first = range(100) if order == "fifo" else range(249, 149, -1)
        assert urls == list(first)
        assert not old.exists(QUEUE)

    def test_again(self, redisq: Redisq, old: redis.Redis, frontier: Frontier) -> None:
        """What was moved is not moved twice, filtered or not; what others have begun is left."""
        put(old, *(book(n) for n in range(3)), *(book(n, dont_filter=True) for n in range(3)))
        migrate = ("migrate", "books", "--seen", "queue")
        assert counts(redisq(*migrate, "--dry-run"), "requests") == [6, 6, 0, 0, 6]
        assert frontier.config() is None
        assert counts(redisq(*migrate), "requests") == [6, 6, 0, 0, 6]
        assert counts(redisq(*migrate), "requests") == [6, 0, 6, 0, 6]
        assert frontier.status()["queued"] == 6
        Member(frontier)
        ran = redisq(*migrate)
        assert (ran.code, ran.out) == (1, "")
        assert "has 1 live worker: stop them first; --add" in ran.err
        assert counts(redisq(*migrate, "--add"), "requests") == [6, 0, 6, 0, 6]
        assert "first worker would forget" in redisq(*migrate, REDISQ_RESUME=False).err
        frontier.reset(force=True)
        frontier.push(["http://books.example/9"])
        assert "has 1 unfinished request of its own" in redisq(*migrate).err

    def test_interrupted(
        self, redisq: Redisq, old: redis.Redis, frontier: Frontier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A call that died in its second batch, before it deleted, is said again."""
        put(old, *(book(n, dont_filter=n % 2 == 0) for n in range(250)))
        migrate = ("migrate", "books", "--seen", "queue", "--delete")
        push = Frontier.push

        def dies(self: Frontier, *args: Any, **options: Any) -> Any:
            push(self, *args, **options)
            if self.status()["queued"] > 100:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Frontier, "push", dies)
            ran = redisq(*migrate)
        assert (ran.code, "stopped after" in ran.err) == (130, True)
        assert old.zcard(QUEUE) == 150
        assert counts(redisq(*migrate), "requests") == [150, 50, 100, 0, 0]
        assert frontier.status()["queued"] == 250

    def test_it_crawled_what_was_moved(
        self, redisq: Redisq, old: redis.Redis, frontier: Frontier
    ) -> None:
        """A complete run is not begun again by a call that is repeated."""
        put(old, book(1))
        migrate = ("migrate", "books", "--seen", "queue")
        assert redisq(*migrate).code == 0
        member = Member(frontier)
        member.end_all()
        assert member.leave()
        assert "has crawled what was moved there" in redisq(*migrate).err


class TestRefused:
    def test_an_unsafe_pickle_does_nothing(
        self, redisq: Redisq, old: redis.Redis, frontier: Frontier, tmp_path: Path
    ) -> None:
        """Each class is named with its number; the requests are listed, and stay, with --delete."""
        bad = [book(n, meta={"evil": Evil(), "n": n}) for n in range(2)]
        put(old, book(7), *bad, book(8, meta={"shop": Shop()}), book(9, meta={"of": Path}))
        listed = Request("http://books.example/10").to_dict()
        old.zadd(QUEUE, {pickle.dumps({**listed, "_class": "shop.Own"}): 0, b"garbage": 0})
        old.zadd(QUEUE, {pickled(book(11, body="x" * 10_000_000)): 0})
        ran = redisq("migrate", "books", "--seen", "queue", "--delete")
        assert ran.code == 1
        assert counts(ran, "requests") == [8, 1, 0, 7, 7]
        assert not (tmp_path / "evil").exists()
        assert "2 requests refused: posix.system" in ran.out
        shop = f"{__name__}.Shop"
        assert f"refused: http://books.example/8: {shop}\n" in ran.err
        assert "refused: http://books.example/9: pathlib.Path\n" in ran.err
        assert "refused: http://books.example/10: class 'shop.Own' is not listed in" in ran.err
        assert "refused: b'garbage': no request can be read: UnpicklingError" in ran.err
        assert "refused: http://books.example/11: body: 10,000,000 bytes, more than" in ran.err
        assert old.zcard(QUEUE) == 7
        assert [one["url"][-1] for one in taken(frontier)] == ["7"]

    def test_a_pickle_may_take_any_time_and_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The process that reads it ends, and another one reads the next pickle."""
        monkeypatch.setattr(pickles, "MOST_BYTES", 10_000)
        # bytearray(2**40), which no process may have.
        large = b"\x80\x04cbuiltins\nbytearray\n" + pickle.dumps(2**40)[2:-1] + b"\x85R."
        with PickleReader() as reader:
            assert reader.read(b"x" * 10_001).fault == "10,001 bytes: too long to be read"
            assert "takes more than 1024 MiB" in reader.read(large).fault
            good = reader.read(pickled(book(1)))
            assert good.fields is not None
            assert good.fields["callback"] == "parse_book"
            assert reader._process is not None
            os.kill(reader._process.pid, signal.SIGPROF)
            assert reader.read(pickled(book(1))).fault == "it takes more than 10 s to read"
            assert reader.read(pickled(book(1))) == good

    def test_a_small_pickle_may_stand_for_much(self) -> None:
        """100 MB of one text in a MB, and long names: neither ends the migration, nor fills this
        process."""
        shared = pickle.dumps({"url": "http://a.example/", "meta": {"x": ["x" * (1 << 20)] * 100}})
        name = b"X" + (1 << 20).to_bytes(4, "little") + b"m" * (1 << 20) + b"\x94"
        named = b"".join(b"h\0\x8c\x03%03d\x93" % number for number in range(700))
        with PickleReader() as reader:
            assert "no request can be read: ValueError: 104," in reader.read(shared).fault
            told = reader.read(b"\x80\x04" + name + named + b"}.")
            assert (len(told.refused), len("".join(told.refused)) < 10_000) == (20, True)
            assert reader.read(pickled(book(1))).fields is not None

    @pytest.mark.parametrize(
        ("data", "refused"),
        [
            (b"cos\nsystem\n(S'touch evil'\ntR.", "os.system"),
            (b"(S'touch evil'\nios\nsystem\n.", "os.system"),
            (b"cbuiltins\neval\n(S'1'\ntR.", "builtins.eval"),
            (b"\x80\x04\x8c\x08builtins\x8c\x0bset.__new__\x93.", "builtins.set.__new__"),
            (b"cshop\nBook\n}S'__call__'\nI1\nsbcshop\nBook\n)R.", "shop.Book"),
            (b"cshop\nBook\n)R]I1\nab(I1\nI2\nu(I1\ne(I1\n\x90.", "shop.Book"),
            (pickle.dumps({"url": "http://a.example/", "x": [Path]}), "pathlib.Path"),
        ],
    )
    def test_no_name_is_looked_up(self, data: bytes, refused: str) -> None:
        """Whatever a pickle does with a class that is not plain: the class is named."""
        fields, names, _ = decode(plain.read(data))
        assert names == [refused]
        assert fields in (None, {"url": "http://a.example/"})


class TestSeen:
    def test_it_must_be_said(self, redisq: Redisq, old: redis.Redis) -> None:
        """What becomes of the URLs that were seen is nobody's default. Keys may be called
        otherwise."""
        assert "SCHEDULER_QUEUE_KEY" in redisq("migrate", "books", "--dry-run").out
        put(old, book(1))
        ran = redisq("migrate", "books")
        assert (ran.code, ran.out) == (1, "")
        assert "say --seen queue or --seen fingerprinter" in ran.err
        ran = redisq("migrate", "books", "--seen", "fingerprinter")
        assert "REQUEST_FINGERPRINTER_CLASS is scrapy.utils.request.RequestFingerp" in ran.err
        old.delete(SEEN)
        old.sadd(SEEN, "0" * 40)
        ran = redisq("migrate", "books", "--seen", "fingerprinter", **OURS)
        assert "its fingerprints are not those of scrapy-redis 0.9" in ran.err
        old.delete(SEEN)
        old.setbit("books:bloomfilter", 12, 1)
        ran = redisq("migrate", "books", "--seen", "fingerprinter", **OURS)
        assert "only a set of fingerprints can be taken over" in ran.err
        ran = redisq("migrate", "books", "--seen", "queue")
        assert "books:bloomfilter counts bytes: it is a Bloom filter" in ran.out
        assert counts(ran, "requests")[:2] == [1, 1]

    def test_other_fingerprints_behind_unfiltered_requests(
        self, redisq: Redisq, old: redis.Redis
    ) -> None:
        """They are told apart by the first filtered request, however many others come before."""
        put(old, *(book(n, dont_filter=True, priority=1) for n in range(100)), book(100))
        old.delete(SEEN)
        old.sadd(SEEN, "0" * 40)
        ran = redisq("migrate", "books", "--seen", "fingerprinter", **OURS)
        assert (ran.code, "fingerprints are not those of scrapy-redis" in ran.err) == (1, True)

    @pytest.mark.parametrize("dupefilter", ["Bloom", "Exact"])
    def test_by_the_old_fingerprints(
        self, redisq: Redisq, old: redis.Redis, open_frontier: Opener, dupefilter: str
    ) -> None:
        """Links to pages that were fetched are duplicates; a request that was refused is new when
        a later call can move it."""
        put(old, *(book(n) for n in range(5)), book(5, meta={"shop": Shop()}))
        for number in range(400):
            url = f"http://fetched.example/{number}"
            old.sadd(SEEN, scrapy_redis_fingerprint(Request(url)).hex())
        old.sadd(SEEN, "no fingerprint")
        settings = {**OURS, "DUPEFILTER_CLASS": f"scrapy_redisq.{dupefilter}DupeFilter"}
        migrate = ("migrate", "books", "--seen", "fingerprinter")
        assert counts(redisq(*migrate, **settings), "seen") == [407, 405, 407]
        ran = redisq("push", "books", "http://fetched.example/99", "http://b.example/", **settings)
        assert ran.out == "books: 1 new request, 1 duplicate\n"
        old.delete(QUEUE)
        put(old, book(5))
        ran = redisq(*migrate, "--delete", **settings)
        assert counts(ran, "requests") == [1, 1, 0, 0, 0]
        assert old.smembers(SEEN) == {b"no fingerprint"}


def test_settings(redisq: Redisq) -> None:
    """Each line of scrapy-redis has one in its place, or the reason why there is none; what is
    printed can be put into settings.py, and shows no password."""
    ran = redisq(
        *("migrate", "books", "--settings"),
        SCHEDULER="scrapy_redis.scheduler.Scheduler",
        DUPEFILTER_CLASS="scrapy_redis.dupefilter.RFPDupeFilter",
        SCHEDULER_PERSIST=True,
        SCHEDULER_QUEUE_CLASS="scrapy_redis.queue.LifoQueue",
        SCHEDULER_SERIALIZER="shop.json",
        REDIS_HOST="redis.example",
        REDIS_PARAMS={"password": "s3cret", "db": 2},
        REDIS_ITEMS_KEY="%(spider)s:found",
        ITEM_PIPELINES={"scrapy_redis.pipelines.RedisPipeline": 300, "shop.Own": 400},
        BLOOMFILTER_BIT=30,
    )
    assert (ran.code, ran.err) == (0, "")
    assert "s3cret" not in ran.out
    made: dict[str, Any] = {}
    exec(ran.out, made)
    assert {name: value for name, value in made.items() if name.isupper()} == {
        "ADDONS": {"scrapy_redisq.Addon": 500},
        "REQUEST_FINGERPRINTER_CLASS": "scrapy_redisq.ScrapyRedisFingerprinter",
        "REDISQ_ORDER": "lifo",
        "REDISQ_URL": "redis://redis.example:6379/2",
        "REDISQ_ITEMS_KEY": "%(spider)s:found",
        "ITEM_PIPELINES": {"scrapy_redisq.pipelines.RedisPipeline": 300, "shop.Own": 400},
        "REDISQ_DUPEFILTER_CAPACITY": 124_043_519,
    }
    for name in ("SCHEDULER_PERSIST", "SCHEDULER_SERIALIZER"):
        assert re.search(rf"^# {name} = .*\n#   no line: ", ran.out, re.M)
    assert redisq("migrate", "books", "--settings").out.startswith("# No setting of scrapy-redis")
    sentinel = {"redis_cls": "shop.Sentinel", "password": "s3cret"}
    ran = redisq("migrate", "books", "--settings", REDIS_PARAMS=sentinel)
    assert "#   no line: REDIS_PARAMS['redis_cls'] = 'shop.Sentinel'" in ran.out
    assert "s3cret" not in ran.out


# With scrapy-redis itself

OLD_SPIDER = """
import scrapy

class Books(scrapy.Spider):
    name = "books"

    async def start(self):
        if hasattr(self, "site"):
            yield scrapy.Request(self.site)

    def parse(self, response):
        for request in response.follow_all(css="a", callback=self.parse_page):
            yield request
        yield {"url": response.url}

    def parse_page(self, response):
        return self.parse(response)
"""


def test_a_crawl_that_scrapy_redis_has_begun(
    redisq: Redisq, old: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    """It has crawled a part of a site, and ours fetches the others, each page once."""
    folder = install(tmp_path / "scrapy-redis", "scrapy-redis==0.9.1")
    (tmp_path / "books.py").write_text(OLD_SPIDER)

    def crawl(settings: dict[str, Any], *arguments: str) -> list[str]:
        options = [text for name, value in settings.items() for text in ("-s", f"{name}={value}")]
        return ["runspider", "books.py", *options, *arguments]

    theirs = {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_PERSIST": True,
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "ITEM_PIPELINES": '{"scrapy_redis.pipelines.RedisPipeline": 300}',
        "REDIS_URL": redis_server.url,
        **{"CONCURRENT_REQUESTS": 4, "CLOSESPIDER_PAGECOUNT": 20},
    }
    ours = {"ADDONS": '{"scrapy_redisq.Addon": 500}', "REDISQ_URL": redis_server.url, **OURS}
    with Site(linked_pages(40)) as site:
        subprocess.run(
            [sys.executable, "-m", "scrapy", *crawl(theirs, "-a", f"site={site.url}/0")],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            timeout=60,
            check=True,
        )
        waiting, fetched = old.zcard(QUEUE), len(site.hits)
        assert waiting > 0
        ran = redisq("migrate", "books", "--seen", "fingerprinter", "--delete", **OURS)
        assert counts(ran, "requests") == [waiting, waiting, 0, 0, 0]
        assert counts(ran, "items") == [fetched, fetched]
        log = tmp_path / "log"
        assert fork("scrapy", crawl(ours), tmp_path, log, os.environ).wait(60) == 0, log.read_text()
    assert site.counts() == {f"/{number}": 1 for number in range(40)}
