"""The old path of `scrapy_redisq.middlewares.retry`, which settings files may name."""

from scrapy_redisq.middlewares.retry import RedisqRetryMiddleware

__all__ = ["RedisqRetryMiddleware"]
