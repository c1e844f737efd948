"""The old path of `scrapy_redisq.middlewares.robots`, which settings files may name."""

from scrapy_redisq.middlewares.robots import RedisqRobotsTxtMiddleware

__all__ = ["RedisqRobotsTxtMiddleware"]
