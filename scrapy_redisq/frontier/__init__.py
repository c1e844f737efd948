"""The frontier protocol: everything about Redis, nothing about Scrapy.

``lua/``       the scripts; ``common.lua`` documents all keys
``scripts``    loads them; ``calls`` what goes into each and comes out
``membership`` one worker in one shard, without any network: what is to be sent, what is held
``courier``    the asyncio task that drives memberships for a worker
``frontier``   `Frontier`: the synchronous view for producers, people and the command line
``seen``       the dupefilters' parameters; ``config`` what all workers must agree on
"""

from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.frontier import DeadLetter, Frontier, Pushed

__all__ = ["DeadLetter", "Frontier", "FrontierConfig", "Pushed"]
