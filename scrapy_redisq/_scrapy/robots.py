"""What Scrapy's parsers of robots.txt can tell, and the signal that one was parsed."""

from __future__ import annotations

from typing import Any

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.http import Request
from scrapy.robotstxt import RobotParser


async def robots_parsed(crawler: Crawler, parser: RobotParser, request: Request) -> None:
    """Send the signal of this name, if there is one."""
    if signal := getattr(signals, "robots_parsed", None):  # 2.18
        await crawler.signals.send_catch_log_async(
            signal=signal, robotparser=parser, request=request
        )


def asked_delays(parser: RobotParser, agent: str) -> list[float | None]:
    """Seconds between requests that a robots.txt asks ``agent`` for, by Crawl-delay and by
    Request-rate; None, or nothing, where it does not or the parser cannot tell."""
    rules: Any = getattr(parser, "rp", None)  # of all of Scrapy's own
    delays: list[float | None] = []
    for source, method in (
        (parser, "crawl_delay"),  # 2.18
        (rules, "crawl_delay"),
        (rules, "get_crawl_delay"),
        (rules, "request_rate"),
    ):
        try:
            asked: Any = getattr(source, method)(agent)
            if method == "request_rate" and asked is not None:
                asked = asked.seconds / asked.requests
            delays.append(None if asked is None else float(asked))
        except (AttributeError, TypeError, ValueError, ArithmeticError):
            continue
    return delays
