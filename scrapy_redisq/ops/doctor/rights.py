"""The user's rights: each command of the scripts and the clients, one by one.

Whether a command is allowed is found out as a script would: it is called inside of one, on a key
that does not exist or in a form that fails before it does anything. That needs no right of its own,
and heeds keys and channels.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import redis

from scrapy_redisq.frontier.names import NEVER
from scrapy_redisq.frontier.scripts import Client
from scrapy_redisq.ops.doctor.report import Line, note, ok, problem, warning

_NONE, _META, _CHANNEL = "{none}", "{meta}", "{channel}"

_OF_KEYS = "type exists del unlink hlen hkeys hgetall llen lpop rpop scard smembers zcard"
_OF_MEMBERS = "hget hdel hexists hmget srem sismember zrem zrevrank zscore"
_OF_RANGES = "getrange lrange zcount zrange zrangebyscore zremrangebyrank zrevrange"

IN_SCRIPTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_OF_KEYS.split(), (_NONE,)),
    **dict.fromkeys(_OF_MEMBERS.split(), (_NONE, "x")),
    **dict.fromkeys(_OF_RANGES.split(), (_NONE, "0", "1")),
    **dict.fromkeys(("hscan", "lindex", "pexpire", "zscan"), (_NONE, "0")),
    **dict.fromkeys(("lpush", "rpush", "sadd"), (_META, "x")),
    "time": (),
    "publish": (_CHANNEL, ""),
    "setrange": (_NONE, "-1", "x"),
    "hset": (_NONE, "f", "v", "odd"),
    "hsetnx": (_META, "format", ""),
    "hincrby": (_NONE, "f", "none"),
    "zadd": (_NONE, "XX", "1", "x"),
}
"""Commands that scripts call, each in a form that does nothing. `_META` is of another type than
they take, or has the field: where there is no frontier, they are not tried."""

OF_BLOOM = {"bf.reserve": (_NONE, "none", "1"), "bf.madd": (_META, "x"), "bf.mexists": (_NONE, "x")}

BY_CLIENTS = {
    "info": "INFO server",
    "role": "ROLE",
    "scan": "SCAN 0 COUNT 1",
    "memory|usage": f"MEMORY USAGE {NEVER}",
    "config|get": "CONFIG GET maxmemory",
    "latency|latest": "LATENCY LATEST",
    "slowlog|get": "SLOWLOG GET 1",
}

NOT_NEEDED = {
    "publish": "Idle workers ask five times a second, in place of being told (&redisq:*).",
    "info": "Policy and persistence are not checked; workers warn of it.",
    "role": "A replica is not told from a primary.",
    "scan": "Frontiers cannot be listed, and memory cannot be measured.",
}
"""The consequence where a right is not needed to crawl; of `_FOR_PEOPLE` none."""
_FOR_PEOPLE = {"memory|usage", "config|get", "latency|latest", "slowlog|get", "lrange"}

_SCRIPT = """
local stands_for = {['{meta}'] = KEYS[1], ['{none}'] = KEYS[2], ['{channel}'] = ARGV[1]}
local denied = {}
for i = 2, #ARGV do
  local words = {}
  for word in string.gmatch(ARGV[i] .. '\\n', '(.-)\\n') do
    words[#words + 1] = stands_for[word] or word
  end
  local reply = redis.pcall(unpack(words))
  if type(reply) == 'table' and reply.err then
    denied[#denied + 1] = words[1] .. '\\n' .. reply.err
  end
end
return denied
"""

_SIGNS = ("noperm", "can't run", "can't access", "no permission", "permissions", "acl failure")


def examine(client: Client, node: Any, meta: str, *, has_meta: bool, bloom: bool) -> Iterator[Line]:
    """A line for each right that is lacking, and one for those that are there. ``meta`` is the meta
    key of a shard on ``node``, and ``has_meta`` whether it is there."""
    try:
        found = allowed(client, meta, has_meta=has_meta, bloom=bloom) | _outside(node)
    except redis.ResponseError as error:
        yield problem(
            f"the user may run no script on keys redisq:*: {error}",
            "All of the frontier is scripts.",
            "ACL SETUSER … ~redisq:* +eval +evalsha (docs/operate/redis.md has all of them)",
        )
        return
    denied = [name for name, may in found.items() if not may]
    for name in denied:
        rule, text = f"ACL SETUSER … +{name}", f"{name.replace('|', ' ').upper()} is denied"
        if name in _FOR_PEOPLE:
            yield note(text, "What it says cannot be shown; a crawl does not need it.", rule)
        elif name in NOT_NEEDED:
            yield warning(text, NOT_NEEDED[name], rule)
        else:
            yield problem(text, "Scripts of the frontier need it: no crawl works without.", rule)
    yield ok(f"{len(found) - len(denied)} commands are allowed, each of them tried")


def allowed(client: Client, meta: str, *, has_meta: bool, bloom: bool) -> dict[str, bool]:
    """Each command that scripts call -> whether this user may."""
    wanted = IN_SCRIPTS | (OF_BLOOM if bloom else {})
    tried = {name: words for name, words in wanted.items() if has_meta or _META not in words}
    never = f"{meta.removesuffix('meta')}never"
    lines = ["\n".join([name.upper(), *words]) for name, words in tried.items()]
    key = f"{never}:{uuid.uuid4().hex}"
    replies: list[bytes] = client.eval(_SCRIPT, 2, meta, key, never, *lines)
    found = dict.fromkeys(tried, True)
    for reply in replies:
        name, _, error = reply.decode(errors="replace").partition("\n")
        found[name.lower()] = not _is_denied(error)
    return found


def _outside(node: Any) -> dict[str, bool]:
    """The same of what clients call themselves."""
    found: dict[str, bool] = {}
    for name, command in BY_CLIENTS.items():
        try:
            node.execute_command(*command.split())
            found[name] = True
        except redis.ResponseError as error:
            found[name] = not _is_denied(str(error))
    return found


def _is_denied(error: str) -> bool:
    """Rights come first, then what else may be wrong with a call."""
    return any(sign in error.lower() for sign in _SIGNS)
