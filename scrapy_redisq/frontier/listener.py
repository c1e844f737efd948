"""Hears what other workers and commands publish, whatever it is that they publish."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from scrapy_redisq.frontier.names import limits_channel, wake_channel

if TYPE_CHECKING:
    from scrapy_redisq.frontier.run_session import RunSession
    from scrapy_redisq.frontier.shard_session import ShardSession

logger = logging.getLogger(__name__)

AGAIN = 2.0
"""Seconds after which a listener that was cut off listens again."""

QUIET = 60.0
"""Seconds without a message after which a listener listens anew: in a cluster to the node that was
heard last. One that is gone without a word would not be missed."""

# As ``announce()`` of ``slots/state.lua`` writes it: microseconds of at most a year, and a slot of
# at most as many bytes as a slot's name has (``names.MAX_SLOT_LENGTH``) and some to spare.
_NEWS = re.compile(rb"([0-9]{1,14}) (.{1,300})", re.DOTALL)


async def listen(run_session: RunSession) -> None:
    """Listen to the wake channels of a frontier's shards until this is cancelled.

    Where that is not allowed, this tries again and again; asking often finds new work, too. Anybody
    who may publish can say anything, so what is not understood is passed over.
    """
    while True:
        try:
            with contextlib.suppress(RedisError, OSError):
                await _listen(run_session)
        except Exception:
            if run_session.warnings.may_warn("listener"):
                logger.exception("An unexpected error in listening for other workers")
        finally:
            _set_listening(run_session, False)
        await asyncio.sleep(AGAIN)


async def _listen(run_session: RunSession) -> None:
    name = run_session.terms.name
    channels = {wake_channel(name, each.shard): each for each in run_session.sessions}
    if limits_name := run_session.joined.config.limits_name:
        channels[limits_channel(limits_name)] = run_session.sessions[0]
    async with run_session.client.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe(*channels)
        _set_listening(run_session, True)
        until = time.monotonic() + QUIET
        while (left := until - time.monotonic()) > 0:
            message = await pubsub.get_message(timeout=left)
            if message is not None:
                until = time.monotonic() + QUIET
                _heard(run_session, channels[message["channel"].decode()], message["data"])
                # Messages that have arrived are read without a pause: a flood of them must not
                # stop the crawl.
                await asyncio.sleep(0)


def _set_listening(run_session: RunSession, listening: bool) -> None:
    for session in run_session.sessions:
        session.pace.listening = listening


def _heard(run_session: RunSession, session: ShardSession, message: bytes) -> None:
    if not message:  # there is new work
        session.pace.woken = True
        run_session.wake()
    elif news := _NEWS.fullmatch(message):  # a slot is parked, or something else has changed of it
        with contextlib.suppress(UnicodeDecodeError):  # no slot of ours
            run_session.worker.announced(news[2].decode(), int(news[1]) / 1e6)
    elif message in {b"told", b"told ", b"told " + session.worker_id.encode()}:
        session.pace.told = True  # the next exchange has something to say to this worker, or to all
        run_session.wake()
