"""The frontier for everybody but workers: push, look, mend. No crawl is needed.

``frontier``      `Frontier`, the whole; ``stored`` is the base of its parts, and lists frontiers
``looks``         where a frontier stands, its workers, pausing it
``slot_status``   the same of slots
``dead_letters``  the same of requests that failed for good
``past``          samples, events and actions of the past
``frontier_status``  where the whole stands, from replies of scripts
``figures``       how fast it is, and when it may end, from samples of its past
``urls``          what became of a URL
``memory``        memory by kind of key
``observed``      replies of the shards, summed
``why``           why nothing happens, from those
``scaling``       how many workers would have work, from those
``schedule``      requests that come again
``seeds``         entries of pushed requests
``words``         numbers, sizes and times for people
"""

from scrapy_redisq.control.dead_letters import DeadLetter
from scrapy_redisq.control.frontier import Frontier, Pushed
from scrapy_redisq.control.slot_status import SlotStatus

__all__ = ["DeadLetter", "Frontier", "Pushed", "SlotStatus"]
