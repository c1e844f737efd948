"""The frontier protocol: everything about Redis, nothing about Scrapy.

``lua/``       the scripts; ``common.lua`` documents all keys
``scripts``    loads them; ``calls`` what goes into each and comes out
``membership`` one worker in one shard, without any network: what is to be sent, what is held
``roster``     one worker in all shards of a run: joining, coming back, leaving
``courier``    the asyncio task that exchanges for a worker; ``pace`` says when
``frontier``   `Frontier`: the synchronous view for producers, people and the command line;
               ``report`` makes statuses of what scripts reply, ``slots`` is what people see of
               slots and say about them, ``letters`` the same of dead letters
``seen``       the dupefilters' parameters; ``config`` what all workers must agree on
"""

from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.frontier import Frontier, Pushed
from scrapy_redisq.frontier.letters import DeadLetter
from scrapy_redisq.frontier.slots import SlotStatus

__all__ = ["DeadLetter", "Frontier", "FrontierConfig", "Pushed", "SlotStatus"]
