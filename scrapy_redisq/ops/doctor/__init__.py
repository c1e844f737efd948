"""What makes a crawl slow, lossy or rude, said before it does.

Each module looks at one thing and says what it found in lines: what, why it matters, what to set.
Nothing is changed, and no look takes Redis more than about a millisecond::

    report        lines, how bad each is, and the exit code
    redis_server  each server: version, memory, persistence, replicas, clients
    server_info   what such a server says of itself
    speed         its round trip, latency spikes and slow calls
    rights        what the user may do, command by command
    cluster       how the shards lie on the masters
    crawl         a frontier: dupefilter, leases, dead letters, memory
    project       settings that fight each other
    examination   all of them but the last, on a server
"""

from scrapy_redisq.ops.doctor.report import Level, Line, Report

__all__ = ["Level", "Line", "Report"]
