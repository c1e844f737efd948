"""Worker processes of one machine: as many as have work are started, and others stopped.

``supervisor``     looks at frontier, machine and processes until the run is complete
``fleet``          how many there should be, which starts and stops next, when to give up
``process``        one of them: signals, output, its end if its starter is killed
``machine``        CPU and memory: whether there is room for one more
``crawl_command``  a worker's command line
"""

from scrapy_redisq.ops.autoscale.crawl_command import CrawlCommand
from scrapy_redisq.ops.autoscale.fleet import Bounds, Fleet
from scrapy_redisq.ops.autoscale.machine import Load, Machine
from scrapy_redisq.ops.autoscale.process import Process
from scrapy_redisq.ops.autoscale.supervisor import Job, Supervisor

__all__ = ["Bounds", "CrawlCommand", "Fleet", "Job", "Load", "Machine", "Process", "Supervisor"]
