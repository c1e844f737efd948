"""Spiders that are fed from Redis keys."""

import json

import scrapy
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import Rule

from crawls.spiders.follow import Pages
from scrapy_redisq import RedisCrawlSpider, RedisSpider


class Fed(scrapy.Spider):
    """Of no class of this package: fed by REDISQ_FEEDS, or `redis_key`."""

    name = "fed_plain"

    def parse(self, response):
        yield {"url": response.url, **response.meta.get("row", {})}

    def parse_other(self, response):
        yield {"url": response.url, "other": True}


class Moved(RedisSpider):
    """A spider of scrapy-redis, as its users write them."""

    name = "moved"
    max_idle_time = 1

    def parse(self, response):
        yield {"url": response.url, "body": response.text, "job": response.meta.get("job")}


class MovedRules(RedisCrawlSpider):
    name = "moved_rules"
    redis_key = "rules:start_urls"
    max_idle_time = 1
    rules = (Rule(LinkExtractor(), callback="parse_page", follow=True),)

    def parse_page(self, response):
        yield {"url": response.url}


class Own(Pages, RedisSpider):
    """Makes two requests of one line, and raises for some."""

    name = "own"
    redis_key = ["%(name)s:urgent", "%(name)s:start_urls"]

    def make_request_from_data(self, data):
        job = json.loads(data)
        if job is None:
            return None
        return [scrapy.Request(f"{job['site']}/{part}", meta={"job": job}) for part in "ab"]


class Served(RedisSpider):
    """Uses the client and the hooks of scrapy-redis."""

    name = "served"
    max_idle_time = 1

    def setup_redis(self, crawler=None):
        super().setup_redis(crawler)
        self.server.rpush(self.redis_key, f"{crawler.settings['SITE']}/0")

    def start_requests(self):
        return super().next_requests()

    def next_requests(self):
        raise AssertionError("nobody calls it")

    def parse(self, response):
        if response.url.endswith("/0"):
            self.server.lpush(self.redis_key, f"{response.url}0")
        yield {"url": response.url}

    def closed(self, reason):
        self.logger.info("left: %r", self.server.keys(f"{self.name}:*"))
