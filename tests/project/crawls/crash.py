"""What the environment does to a worker; without it nothing of scrapy_redisq is touched.

FAULT_CRASH="POINT:N" kills the process when it gets to a point for the Nth time.
FAULT_SLOW=SECONDS makes each write into a database take that much longer.
"""

import asyncio
import os
import signal

from scrapy import signals

point, _, number = os.environ.get("FAULT_CRASH", "").partition(":")
left = int(number or 0)


def reached(name):
    """Die here, if it is the time."""
    global left
    if name == point:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def response_received():  # not a lambda: signals hold their handlers weakly
    reached("response")


class CrashPoints:
    """The points that the spider and the sink do not see: ``claim`` (leases have arrived),
    ``response``, ``sent`` (an exchange is on its way), ``read`` (its reply is here), ``item`` and
    ``commit`` (a database has written it)."""

    @classmethod
    def from_crawler(cls, crawler):
        if point:
            crawler.signals.connect(response_received, signals.response_received)
            wrap()
        wrap_database(float(os.environ.get("FAULT_SLOW", "0")))
        return cls()


def wrap():
    from redis.asyncio.connection import AbstractConnection

    from scrapy_redisq.frontier.shard_session import ShardSession
    from scrapy_redisq.worker.worker import Worker

    received, answered = Worker.received, ShardSession.received
    send = AbstractConnection.send_packed_command

    def worker_received(self, session, reply, *told):
        received(self, session, reply, *told)
        if reply.leases:
            reached("claim")

    def session_received(self, reply, **told):
        reached("read")
        return answered(self, reply, **told)

    async def send_packed_command(self, command, *args, **kwargs):
        await send(self, command, *args, **kwargs)
        if any(b"EVALSHA" in part for part in command):
            reached("sent")

    Worker.received = worker_received
    ShardSession.received = session_received
    AbstractConnection.send_packed_command = send_packed_command


def wrap_database(slow):
    from scrapy_redisq.pipelines import DatabasePipeline

    process, write = DatabasePipeline.process_item, DatabasePipeline.write

    async def process_item(self, item, spider=None):
        reached("item")
        return await process(self, item)

    async def slow_write(self, rows):
        if slow:
            await asyncio.sleep(slow)
        await write(self, rows)
        reached("commit")

    DatabasePipeline.process_item = process_item
    DatabasePipeline.write = slow_write
