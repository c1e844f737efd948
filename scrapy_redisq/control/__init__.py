"""The frontier for everybody but workers: push, look, mend. No crawl is needed.

``frontier``      `Frontier`, which is all of it; ``stored`` is what its parts stand on, and which
                  frontiers there are
``looks``         all of it, as people see and steer it: where it stands, workers, pausing it
``slot_status``   the same of slots
``dead_letters``  the same of requests that failed for good
``past``          what the frontier keeps of its past
``frontier_status``  where all of it stands, of what scripts reply
``figures``       how fast it is, and when it may end, of samples of its past
``urls``          what became of a URL
``memory``        what takes how much memory
``observed``      what was seen, summed over the shards
``why``           why nothing happens, of that
``scaling``       how many workers would have work, of that
``seeds``         entries, of what producers push
``words``         numbers, sizes and times for people
"""

from scrapy_redisq.control.dead_letters import DeadLetter
from scrapy_redisq.control.frontier import Frontier, Pushed
from scrapy_redisq.control.slot_status import SlotStatus

__all__ = ["DeadLetter", "Frontier", "Pushed", "SlotStatus"]
