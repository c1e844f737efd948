"""The doctor: looks for causes of slow, lossy or rude crawls.

Each module returns lines: what was found, why it matters, what to set. Nothing is changed, and no
look takes Redis more than about a millisecond::

    report        lines, how bad each is, and the exit code
    redis_server  each server: version, memory, persistence, replicas, speed
    rights        the user's rights, command by command
    crawl         a frontier: dupefilter, leases, dead letters, memory
    project       settings that fight each other
    examination   servers and a frontier, one after the other
"""

from scrapy_redisq.ops.doctor.report import Level, Line, Report

__all__ = ["Level", "Line", "Report"]
