"""One frontier in Redis for many ``scrapy crawl`` processes.

Layers, top to bottom; imports point down only::

    addon, commands                              what a user touches
    scheduler, inbox, dupefilter, _scrapy        Scrapy's interfaces
    frontier/                                    the protocol: knows Redis, knows no Scrapy
    connection, embedded                         servers
    seeds, serializer, entries, values           requests as bytes
    settings, errors
"""

from scrapy_redisq.addon import Addon
from scrapy_redisq.dupefilter import BloomDupeFilter, ExactDupeFilter
from scrapy_redisq.frontier import Frontier
from scrapy_redisq.scheduler import Scheduler

__version__ = "0.1.0"

__all__ = ["Addon", "BloomDupeFilter", "ExactDupeFilter", "Frontier", "Scheduler"]
