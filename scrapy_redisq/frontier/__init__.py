"""The frontier protocol: everything about Redis, nothing about Scrapy.

``lua/``           the scripts; ``shared/keys.lua`` documents all keys
``scripts``        loads them; ``calls`` what goes into each and comes out
``operations``     what goes into an exchange and comes out of it
``shard_session``  one worker in one shard, without any network: what is to be sent, what is held
``run_session``    one worker in all shards of a run: joining, coming back, leaving; ``runs`` the
                   steps of that over all shards
``loop``           the asyncio task that exchanges for a worker: ``worker_protocol`` is what it asks
                   of that, ``pace`` says when, ``listener`` hears what other workers publish
``seen``           the dupefilters' parameters; ``config`` what all workers must agree on;
                   ``limits`` what a fleet may do with one slot, ``slot_names`` how slots are
                   called and which shard keeps them; ``shared_robots`` their robots.txt;
                   ``recent_urls`` saves asking again about links that were just met
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

MOVED = {"DeadLetter", "Frontier", "Pushed", "SlotStatus"}
"""What programs written for earlier releases import from here: it is in `scrapy_redisq.control`."""


def __getattr__(name: str) -> Any:
    if name in MOVED:
        return getattr(import_module("scrapy_redisq.control"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
