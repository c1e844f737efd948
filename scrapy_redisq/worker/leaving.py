"""How a worker leaves its run, and what it says then."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
from typing import TYPE_CHECKING

from redis.exceptions import RedisError
from scrapy.utils.defer import maybe_deferred_to_future

from scrapy_redisq.errors import RedisqError
from scrapy_redisq.frontier.passing_errors import TROUBLE
from scrapy_redisq.tasks import within

if TYPE_CHECKING:
    from scrapy_redisq.worker.worker import Worker

logger = logging.getLogger(__name__)


async def leave(worker: Worker, reason: str) -> None:
    """Send what is buffered, give back what was not started, leave the run, close connections.
    ``reason``: why the spider is closed."""
    stats = worker.stats
    try:
        await within(worker.settings.close_timeout, _leave(worker, reason))
        if worker.sees_the_end and reason == "finished" and not worker.completed_run:
            worker.completed_run = await worker.run_session.until_complete()
            _tell_of_the_end(worker)
    except asyncio.TimeoutError:
        logger.error(
            "This worker could not leave within REDISQ_CLOSE_TIMEOUT (%g s): %d requests and "
            "finishes were not sent. Others take over this worker's pages after REDISQ_LEASE_TTL; "
            "they will be fetched again",
            worker.settings.close_timeout,
            worker.run_session.waiting(),
        )
        stats.set_value("redisq/unsent", worker.run_session.waiting())
    except RedisqError as error:
        logger.error("Could not leave the frontier as it should be left: %s", error)
    finally:
        await worker.run_session.cut_off()
        if worker.kept.lost:
            logger.warning(
                "%d requests that cannot be serialised were only in this process and are "
                "lost (see stat scheduler/unserializable)",
                worker.kept.lost,
            )
        worker.reporter.count_work()
        stats.set_value("redisq/exchanges", worker.run_session.exchanges)
        if not worker.is_lost:
            _report_dead(worker)
        await worker.connection.close()
        if closing := worker.dupefilter.close(reason):
            await maybe_deferred_to_future(closing)


async def _leave(worker: Worker, reason: str) -> None:
    if worker.feeder is not None:  # half of the time is for what follows, whatever a feed does
        await worker.feeder.finish(worker.settings.close_timeout / 2)
    await worker.run_session.stop()
    if worker.is_lost:
        return
    is_complete = worker.completed_run = await worker.run_session.leave()
    _tell_of_the_end(worker)
    if not is_complete and reason == "finished":
        waiting = 0
        with contextlib.suppress(*TROUBLE, RedisError, RedisqError):  # Redis does not say
            waiting = await worker.run_session.left_waiting()
        if waiting:  # Scrapy cannot be told to go on
            logger.warning(
                "%d requests came in when this worker had decided to end, and no worker is left: "
                "they wait until the crawl is started again",
                waiting,
            )


def _tell_of_the_end(worker: Worker) -> None:
    if (stats := worker.run_session.fleet_stats) is None:
        return
    logger.info("The run is complete: this was the last worker to leave")
    worker.stats.set_value("redisq/last_worker", 1)
    own = worker.stats.get_stats()
    if all(isinstance(n := own.get(name, 0), int) and n >= stats[name] for name in stats):
        return  # no other worker has counted: they would only be shown twice
    for name, value in stats.items():
        worker.stats.set_value(f"redisq/fleet/{name}", value)


def _report_dead(worker: Worker) -> None:
    run_session = worker.run_session
    if run_session.buried:
        worker.stats.inc_value("redisq/dead/deliveries", run_session.buried)
    name = run_session.terms.name
    if dead := sum(session.dead for session in run_session.sessions):
        logger.warning(
            "Frontier %r has %d dead letter%s, requests that failed for good. See them: "
            "scrapy redisq dead list %s",
            name,
            dead,
            "" if dead == 1 else "s",
            shlex.quote(name),
        )
