"""How runs are begun, joined, left, completed and deleted, over all shards.

Each procedure is a generator of `Call`, written once for synchronous and asynchronous callers:
`drive` and `drive_async` run it. Shard 0 keeps the state of the run; why things are done in this
order is said in ``lua/shared/run_state.lua``.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from scrapy_redisq.errors import (
    FrontierCorrupt,
    FrontierError,
    FrontierInUse,
    FrontierLost,
    ShardLost,
)
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.calls import Joined, Registration
from scrapy_redisq.frontier.config import MOST_SHARDS, FrontierConfig
from scrapy_redisq.frontier.growth import server_state
from scrapy_redisq.frontier.names import key_prefix
from scrapy_redisq.frontier.scripts import Call
from scrapy_redisq.frontier.shards import numbers_of_any, shard_numbers
from scrapy_redisq.frontier.terms import Terms

T = TypeVar("T")

Steps = Generator[Call[Any], Any, T]
"""A procedure: it yields calls, is sent their results, and returns a T."""

ATTEMPTS = 20
"""How often a run is joined anew because other processes began one at the same time."""


def drive(execute: Callable[[Call[Any]], Any], steps: Steps[T]) -> T:
    """As `drive_async`, without an event loop."""

    async def execute_at_once(call: Call[Any]) -> Any:
        return execute(call)

    try:
        drive_async(execute_at_once, steps).send(None)  # nothing in it waits
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits")


async def drive_async(
    execute: Callable[[Call[Any]], Awaitable[Any]], steps: Steps[T], *, pause: float = 0.0
) -> T:
    """Run a procedure, with ``pause`` seconds after each call. An exception of ``execute`` is
    raised in the procedure, and here if the procedure lets it pass."""
    try:
        call = next(steps)
        while True:
            try:
                reply = await execute(call)
            except Exception as error:
                call = steps.throw(error)
            else:
                if pause:
                    await asyncio.sleep(pause)
                call = steps.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result


def new_id() -> str:
    """An id for a run: 64 random bits in hex."""
    return secrets.token_hex(8)


def first_look(terms: Terms) -> Steps[tuple[int, str]]:
    """-> when a worker was started, in us by shard 0's clock, and what keeps the dupefilter.

    A worker asks before it joins for the first time: a join that is on its way for long makes it no
    younger.
    """
    asked, name, config = time.monotonic(), terms.name, terms.config
    backend = config.backend
    first = yield server_state(key_prefix(name, 0), probe=not backend)
    if not backend:
        found = first.has_bloom
        for shard in config.shard_numbers(name)[1:] if config.spread else ():
            found &= (yield server_state(key_prefix(name, shard), probe=True)).has_bloom
        backend = "redisbloom" if found else "bitmap"
    return first.now - int((asked - terms.started) * 1e6), backend


# Joining


def join(terms: Terms, registration: Registration, since: int, *, run: str = "") -> Steps[Joined]:
    """Begin a run, which is then called ``run``, or resume one. ``since``: when the worker was
    started, see `first_look`. Raises as `calls.join` does."""
    name, config, lost = terms.name, terms.config, (0, 0)
    if config.spread:
        lost = yield from _check_shard_0(name, config, terms.young)
    if not terms.run.keep_alive:
        # A run whose last worker was killed after the last page is as complete as any.
        with contextlib.suppress(FrontierCorrupt):  # the join will name what is wrong
            yield from conclude(name)

    intent = calls.crawl(run or new_id(), terms.run, since, lost)
    return (yield from _join_all(name, intent, config, registration))


def join_as_producer(name: str, config: FrontierConfig, **keeps: bool) -> Steps[Joined]:
    """The run that requests can be added to, begun if need be: see `calls.produce`. Raises as
    `calls.join` does."""
    if config.spread:
        yield from _check_shard_0(name, config)
    with contextlib.suppress(FrontierCorrupt):
        yield from conclude(name, producer=True)

    return (yield from _join_all(name, calls.produce(new_id(), **keeps), config))


def _join_all(
    name: str,
    intent: calls.Intent,
    config: FrontierConfig,
    registration: Registration = calls.NOBODY,
) -> Steps[Joined]:
    """-> what shard 0 said; ``trash`` is that of all shards."""
    for _ in range(ATTEMPTS):
        first = yield from _join_shard(name, 0, intent, config, registration)
        numbers, trash = first.config.shard_numbers(name), first.trash
        try:
            for shard in numbers[1:]:
                since = intent.get("since", calls.JUST_NOW)
                follow = calls.follow(first, begun=shard in first.begun, since=since)
                other = yield from _join_shard(name, shard, follow, first.config, registration)
                trash += other.trash
        except FrontierLost:  # other processes have begun a later run meanwhile
            intent = {**intent, "run": new_id()}
            continue
        except ShardLost as lost:
            for shard in numbers[: numbers.index(lost.shard)] if registration.worker else ():
                yield calls.leave(name, shard, first.run, registration.worker)
            raise
        return replace(first, trash=trash)
    raise FrontierError(
        f"the shards of frontier {name!r} do not agree on which run is the last one: delete it "
        f"with 'scrapy redisq reset {name} --yes'"
    )


def _join_shard(
    name: str,
    shard: int,
    intent: calls.Intent,
    config: FrontierConfig,
    registration: Registration,
) -> Steps[Joined]:
    while True:
        try:
            joined: Joined = yield calls.join(name, shard, intent, config, registration)
            return joined
        except calls.ClearFirst:
            yield from _clear(name, shard)


def _check_shard_0(name: str, config: FrontierConfig, young: float = 0.0) -> Steps[tuple[int, int]]:
    """Raises `ShardLost` if shard 0 has lost a run that is unfinished on others. If that run began
    less than ``young`` seconds ago, all that shard 0 had of it is asked for again: -> when it
    began, and its origin, see `calls.Look`; else zeros."""
    later = origin = 0
    for shard in config.shard_numbers(name)[1:]:
        found: calls.Look = yield calls.look(name, shard)
        if not found.idle and found.began > later:
            later, origin = found.began, found.origin
    if later:
        first: calls.Look = yield calls.look(name, 0)  # the last one: a run begins there first
        if first.began < later:
            state = yield server_state(key_prefix(name, 0))
            if state.now - later >= young * 1e6:
                raise ShardLost(name, 0)
            return later, origin
    return 0, 0


def _clear(name: str, shard: int, **options: Any) -> Steps[None]:
    status = "more"
    while status == "more":
        status, _ = yield calls.clear(name, shard, **options)


# Completing, and opening again


def conclude(name: str, run: str = "", *, producer: bool = False) -> Steps[dict[str, str] | None]:
    """Complete the run (with "" whichever there is) if nothing is left and nobody is there.

    -> its counts on shard 0 if it is complete, by this call; else None. Raises
    `calls.MayComeBack` without ``run`` if workers may. Without ``run`` it is not completed where
    requests are missing: a worker is to say so.
    """
    newcomer = not run
    found: calls.Completion = yield calls.complete(
        name, 0, run=run, producer=producer, newcomer=newcomer
    )
    if found.what == "wait":
        raise calls.MayComeBack(
            f"the run of frontier {name!r} is complete, but after an outage its workers may still "
            "come back: waiting for them before another one begins"
        )
    if found.what == "sealed":
        for shard in shard_numbers(name, min(found.shards, MOST_SHARDS), found.spread)[1:]:
            part = yield calls.complete(
                name, shard, run=found.run, seal=found.number, newcomer=newcomer
            )
            if part.what != "sealed":
                return None
        found = yield calls.complete(name, 0, run=found.run, seal=found.number, newcomer=newcomer)
    return found.counts if found.what == "complete" else None


def is_idle(name: str, shards: Sequence[int], workers: Sequence[str] = ()) -> Steps[bool]:
    """Whether everything is finished on all ``shards``, as a worker that is still there sees it.

    All shards are looked at twice. A request that moves from one shard to another during the first
    look has been created by the second look (Mattern's four counters, "Algorithms for distributed
    termination detection", 1987). ``workers``: its ids on shards with logs of their own. The first
    look leaves a mark there: a shard without the mark has lost the end of its log since, and may
    have created as much again.
    """
    looks, mark = [], new_id()
    for key in ("mark", "marked"):
        there_was = []
        for at, shard in enumerate(shards):
            marks = {"worker": workers[at], key: mark} if workers else {}
            found: calls.Look = yield calls.look(name, shard, **marks)
            if not found.idle:
                return False
            there_was.append(found.to_do)
        looks.append(there_was)
    return looks[0] == looks[1]


def open_shard(name: str, shard: int, run: str) -> Steps[None]:
    """Open a run that is complete, or about to be, for what is to be added to ``shard``.

    Raises `FrontierLost` if a later run has begun, perhaps not yet on all shards.
    """
    there = visited = yield calls.open_run(name, 0, run)
    if shard > 0 and visited > 0:
        there = yield calls.open_run(name, shard, run, visited)
    if not there:
        raise FrontierLost(f"frontier {name!r} was begun anew or deleted by others meanwhile")


# Deleting


def reset(name: str, shards: Iterable[int], *, force: bool) -> Steps[None]:
    """Delete a frontier, and its ``shards``: those of former runs, too. Raises `FrontierInUse`
    while workers live, unless forced.

    Shard 0 is marked first: a process that comes meanwhile begins a new run, which is left alone.
    Shard 0 is also deleted last, so that a reset that was interrupted can be done again.
    """
    status, number = yield calls.clear(name, 0, everything=True, mark=True, force=force)
    if status == "in_use":
        raise FrontierInUse(f"frontier {name!r} has {number} live workers: stop them first")
    for shard in sorted(shards, reverse=True):
        yield from _delete(name, shard, before=number)


def _delete(name: str, shard: int, *, before: int) -> Steps[None]:
    yield from _clear(name, shard, everything=True, before=before)
    yield from _sweep(name, shard, everything=True)


def _sweep(name: str, shard: int, *, everything: bool = False) -> Steps[None]:
    backend: str | None = "exact"
    while backend:
        backend = yield calls.sweep(name, shard, backend, everything)


def sweep(name: str, joined: Joined) -> Steps[None]:
    """Delete the rest of former runs: dupefilters, and shards that this run does not have."""
    numbers = joined.config.shard_numbers(name)
    if joined.trash:
        for shard in numbers:
            yield from _sweep(name, shard)
    former = numbers_of_any(name, min(joined.former_shards, MOST_SHARDS), joined.config.spread)
    for shard in former:
        if shard not in numbers:
            yield from _delete(name, shard, before=joined.began)
    if former:
        yield calls.sweep(name, 0, "exact", forget_shards=joined.run)
