"""How a worker's sessions share what it wants, and what each has to know of the others.

With one shard, ``others`` are none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy_redisq.frontier.shard_session import ShardSession
    from scrapy_redisq.frontier.terms import Demand


def may_ask(session: ShardSession, sessions: Sequence[ShardSession]) -> bool:
    """Whether the worker should ask this shard when it runs low.

    Of those that have enough one at a time, by turns: so that as much comes with an exchange as if
    there were but one shard. If none is known to have enough, all of them.
    """
    enough = [other for other in sessions if other.has_enough()]
    return not enough or (
        session is min(enough, key=lambda other: other.asked_at)
        and not any(other.wanted for other in enough)
    )


def share(
    session: ShardSession, sessions: Sequence[ShardSession], demand: Demand
) -> tuple[int, bool]:
    """How many entries the next exchange with a shard may claim, and whether a suspect.

    A shard that has enough gives all that is wanted; else it is parted between the shards that may
    have something. One that asks although it had nothing lately has a part as well; one that does
    not answer would take its part from other shards for as long as it is waited for.
    A worker holds one suspect at a time, so that a request that kills its workers takes no others
    into the dead letters with it.
    """
    if session.is_silent and len(sessions) > 1:
        return 0, False
    others = [other for other in sessions if other is not session and other.answers()]
    asked = [other for other in others if other.wanted is not None]
    left = demand.want - sum(other.wanted or 0 for other in asked)
    askers = 1
    if not session.has_enough():
        askers += sum(other.pace.may_have_more() for other in others if other not in asked)
    no_suspect = not any(one.suspects for one in sessions)
    return max(0, math.ceil(left / askers)), no_suspect and not any(
        other.wants_suspect for other in asked
    )


def held_elsewhere(session: ShardSession, sessions: Sequence[ShardSession]) -> int:
    """Requests of other shards that the worker has not ended, or may be given right now."""
    others = [other for other in sessions if other is not session]
    return sum(other.unended() + (other.wanted or 0) for other in others)


def adds_elsewhere(session: ShardSession, sessions: Sequence[ShardSession]) -> bool:
    """Whether another shard has not acknowledged some requests, or may yet lose some that nobody
    but this worker would ask for again."""
    others = [other for other in sessions if other is not session]
    return any(other.outgoing.requests > 0 or other.unsafe.may_ask_again for other in others)
