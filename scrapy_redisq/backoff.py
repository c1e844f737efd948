"""The old path of `scrapy_redisq.middlewares.backoff`, which settings files may name."""

from scrapy_redisq.middlewares.backoff import RedisqBackOffMiddleware

__all__ = ["RedisqBackOffMiddleware"]
