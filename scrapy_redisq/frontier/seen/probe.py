"""Is RedisBloom there?"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from scrapy_redisq.frontier.scripts import AsyncClient, Client

_PROBE = """
local function problem_of(...)
  local reply = redis.pcall(...)
  return type(reply) == 'table' and reply.err
end
redis.call('UNLINK', KEYS[1]) -- a first write that removes: works at maxmemory too
local problem = problem_of('BF.RESERVE', KEYS[1], '0.01', '100', 'EXPANSION', '1')
  or problem_of('BF.MADD', KEYS[1], 'probe') or problem_of('BF.MEXISTS', KEYS[1], 'probe')
redis.call('UNLINK', KEYS[1])
if not problem then return 1 end
local text = string.lower(problem)
for _, sign in ipairs({'unknown', 'noperm', "can't run", 'permission', 'acl'}) do
  if string.find(text, sign, 1, true) then return 0 end
end
return redis.error_reply(problem)
"""


ANYWHERE = ("redisq:{probe}:",)
"""On one server it is all the same."""


def _keys(prefixes: Iterable[str]) -> list[str]:
    # A name of its own: the script deletes what is there.
    return [f"{prefix}probe:{uuid.uuid4().hex}" for prefix in prefixes]


def probe(client: Client, prefixes: Iterable[str] = ANYWHERE) -> bool:
    """Can this server, with this user's rights, run the RedisBloom backend?

    Makes a small filter, adds to it, asks for it and removes it, in one step that leaves nothing:
    modules with these commands are named differently from server to server, and an ACL may forbid
    some of them. In a cluster with those nodes that have keys with these ``prefixes``: all must.
    What says nothing about the module, such as READONLY, is raised as redis-py's error.
    """
    return all(client.eval(_PROBE, 1, key) for key in _keys(prefixes))


async def probe_async(client: AsyncClient, prefixes: Iterable[str] = ANYWHERE) -> bool:
    """As `probe`, for an asynchronous client."""
    return all([await client.eval(_PROBE, 1, key) for key in _keys(prefixes)])
