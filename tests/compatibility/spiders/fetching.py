"""What Scrapy's own middlewares do: robots.txt, cache, cookies, redirects, retries, filters."""

import scrapy
from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.exceptions import IgnoreRequest
from scrapy.http import FormRequest, HtmlResponse, JsonRequest

from lab.site import Answer
from tests.compatibility.compared import Compared, echo, links, posted, redirect


class Follow(Compared):
    """Pages that link to each other, to themselves, to fragments and to what is not there."""

    name = "follow"
    pages = {
        "/": links("/1", "/2"),
        **{
            f"/{n}": links(f"/{n + 1}", f"/{n * 2}", f"/{n}", f"/{n}#part", "/1", "/gone")
            for n in range(1, 20)
        },
    }


class BackToStart(Compared):
    """Pages that link to the first one."""

    name = "back_to_start"
    pages = {"/": links("/1"), "/1": links("/", "/1")}


class Priorities(Compared):
    """Requests with priorities, past the dupefilter, and with headers of their own."""

    name = "priorities"
    pages = {"/": "begin", **{f"/{n}": echo("X-Number") for n in range(6)}}

    def parse(self, response):
        for n in range(6):
            options = {"headers": {"X-Number": str(n)}, "callback": self.parse_page}
            yield scrapy.Request(f"{self.site}/{n}", priority=n, **options)
            yield scrapy.Request(f"{self.site}/{n}", priority=-n, dont_filter=True, **options)
            yield scrapy.Request(f"{self.site}/{n}", priority=n + 1, **options)

    def parse_page(self, response):
        yield {"url": response.url, "text": response.text}


class Robots(Compared):
    """A robots.txt that forbids a part, and one that is not there."""

    name = "robots"
    custom_settings = {"ROBOTSTXT_OBEY": True}
    pages = {
        "/robots.txt": Answer("User-agent: *\nDisallow: /private\n", content_type="text/plain"),
        "/": links("/open", "/private/1", "/private/2"),
        "/open": links("/private/2", "/open"),
        "/private/1": "secret",
    }

    def parse(self, response):
        yield from super().parse(response)
        yield scrapy.Request(f"{self.other}/open", callback=self.parse)


class Cache(Compared):
    """Each page twice: the second time out of the HTTP cache."""

    name = "cache"
    custom_settings = {"HTTPCACHE_ENABLED": True, "HTTPCACHE_IGNORE_HTTP_CODES": [404]}
    pages = {f"/{n}": links(f"/{n + 1}") for n in range(4)}
    first = "/0"

    def parse(self, response):
        yield from super().parse(response)
        again = response.request.replace(dont_filter=True, callback=self.parse_again)
        yield again

    def parse_again(self, response):
        yield {"url": response.url, "flags": response.flags}


def _counted(hit, visit):
    return Answer(echo("Cookie")(hit, visit), headers={"Set-Cookie": f"visit={visit}; Path=/"})


class Cookies(Compared):
    """Cookies of the spider's own, passed on by requests, and those that a page sets."""

    name = "cookies"
    pages = {"/": echo("Cookie"), "/set": _counted, **{f"/{n}": echo("Cookie") for n in range(3)}}

    async def start(self):
        for n in range(3):
            meta = {"cookiejar": n}
            yield scrapy.Request(f"{self.site}/{n}", cookies={"number": str(n)}, meta=meta)
        yield scrapy.Request(f"{self.site}/", meta={"dont_merge_cookies": True})

    def parse(self, response):
        yield {"url": response.url, "text": response.text}
        if "number" not in response.meta and "cookiejar" in response.meta:
            meta = {"cookiejar": response.meta["cookiejar"], "number": 1}
            cookies = {"again": "yes", "number": str(response.meta["cookiejar"])}
            yield response.request.replace(cookies=cookies, meta=meta, dont_filter=True)


class Forms(Compared):
    """Posts forms, one of a page's own, and JSON; the same address with other bodies."""

    name = "forms"
    pages = {
        "/": '<form action="/send" method="post"><input name="token" value="t"><input name="q">'
        '<input type="submit" name="go" value="1"></form>',
        "/send": posted,
    }

    def parse(self, response):
        yield FormRequest.from_response(response, formdata={"q": "x"}, callback=self.sent)
        for word in ("one", "two", "one"):
            yield FormRequest(f"{self.site}/send", formdata={"w": word}, callback=self.sent)
        yield JsonRequest(f"{self.site}/send", data={"deep": [1, {"a": None}]}, callback=self.sent)
        yield scrapy.Request(f"{self.site}/send", method="PUT", body="raw", callback=self.sent)

    def sent(self, response):
        yield {"text": response.text}


class Redirects(Compared):
    """Redirects of all kinds: to pages that are linked, too, to each other, and for ever."""

    name = "redirects"
    custom_settings = {"REDIRECT_MAX_TIMES": 3}
    handle_httpstatus_list = (307,)
    pages = {
        "/": links("/moved", "/found", "/meta", "/loop", "/chain/0", "/gone", "/kept", "/a", "/b"),
        "/moved": redirect("/a", 301),
        "/found": redirect("/b"),
        "/meta": '<html><head><meta http-equiv="refresh" content="0;url=/c"></head></html>',
        "/loop": redirect("/loop"),
        **{f"/chain/{n}": redirect(f"/chain/{n + 1}") for n in range(6)},
        "/gone": redirect("/nowhere"),
        "/kept": redirect("/a", 307),
        "/a": "a",
        "/b": links("/found"),
        "/c": "c",
    }

    def parse(self, response):
        yield from super().parse(response)
        yield {"urls": response.meta.get("redirect_urls", []), "status": response.status}


def _fails(times, status=500):
    def page(hit, visit):
        return Answer("late") if visit > times else Answer("not yet", status=status)

    return page


class Retries(Compared):
    """Pages that fail once, twice, for ever; retries that a callback asks for."""

    name = "retries"
    pages = {
        "/": links("/once", "/twice", "/always", "/502", "/dont", "/never", "/empty", "/408"),
        "/once": _fails(1),
        "/twice": _fails(2),
        "/always": Answer("no", status=500),
        "/502": _fails(1, 502),
        "/408": _fails(1, 408),
        "/dont": _fails(1),
        "/never": _fails(1),
        "/empty": lambda hit, visit: "full" if visit > 2 else "empty",
        "/hopeless": "empty",
    }

    def parse(self, response):
        yield {"url": response.url, "times": response.meta.get("retry_times", 0)}
        for href in response.css("a::attr(href)").getall():
            meta = {"/dont": {"dont_retry": True}, "/never": {"max_retry_times": 0}}.get(href, {})
            yield response.follow(href, self.judge, meta=meta)
        yield response.follow("/hopeless", self.judge)

    def judge(self, response):
        if response.text == "empty":
            yield get_retry_request(response.request, spider=self, reason="empty")
        else:
            yield {"url": response.url, "times": response.meta.get("retry_times", 0)}


class Unavailable(Compared):
    """Pages that are answered with 503 and 429 at first."""

    name = "unavailable"
    pages = {"/": links("/503", "/429"), "/503": _fails(1, 503), "/429": _fails(1, 429)}

    def parse(self, response):
        yield {"url": response.url}
        yield from response.follow_all(css="a")


class Intervene:
    """A downloader middleware that answers, refuses, asks for others, and replaces responses."""

    def process_request(self, request, spider=None):
        path = request.url.partition("://")[2].partition("/")[2]
        if path == "answered":
            return HtmlResponse(request.url, body=b"by a middleware", request=request)
        if path == "refused":
            raise IgnoreRequest("not this one")
        if path == "instead":
            return request.replace(url=request.url.replace("instead", "this"))
        return None

    def process_response(self, request, response, spider=None):
        if response.url.endswith("/replaced"):
            return response.replace(body=b"replaced")
        if response.url.endswith("/again") and "again" not in request.meta:
            return request.replace(meta={**request.meta, "again": True}, dont_filter=True)
        return response

    def process_exception(self, request, exception, spider=None):
        if isinstance(exception, ValueError):
            return HtmlResponse(request.url, body=b"rescued", request=request)
        return None


class Intervening(Compared):
    """Is crawled with a downloader middleware that does all that one may do."""

    name = "intervening"
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {Intervene: 543}}
    pages = {
        "/": links("/answered", "/refused", "/instead", "/replaced", "/again"),
        "/this": "this",
        "/replaced": "as it was",
        "/again": lambda hit, visit: f"visit {visit}",
    }
