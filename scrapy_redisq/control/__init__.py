"""The frontier for everybody but workers: push, look, mend. No crawl is needed.

``frontier``      `Frontier`, which is all of it; ``stored`` is what its parts stand on
``looks``         where all of it stands, why, and what it takes
``slot_status``   what people see of slots and say about them
``dead_letters``  the same of requests that failed for good
``told_letters``  one of these in JSON's types
``names``         which frontiers there are
``worker_orders`` what people see of workers and tell them
``past``          what the frontier keeps of its past
``frontier_status``  where all of it stands, of what scripts reply
``urls``          what became of a URL
``memory``        what takes how much memory
``why``           why nothing happens, of what was looked at
``scaling``       how many workers would have work, of what was looked at
``seeds``         entries, of what producers push
``words``         numbers, sizes and times for people
"""

from scrapy_redisq.control.dead_letters import DeadLetter
from scrapy_redisq.control.frontier import Frontier, Pushed
from scrapy_redisq.control.slot_status import SlotStatus

__all__ = ["DeadLetter", "Frontier", "Pushed", "SlotStatus"]
