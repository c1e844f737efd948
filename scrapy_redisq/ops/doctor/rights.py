"""What the user may do: each command of the scripts and the clients, one by one.

Whether a command is allowed is found out as a script would: it is called inside of one, on a key
that does not exist or in a form that fails before it does anything. That needs no right of its
own, works on each version, and heeds keys and channels. Five commands have no such form where
there is no frontier; then these are not tried.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import redis

from scrapy_redisq.frontier.names import NEVER
from scrapy_redisq.frontier.scripts import Client
from scrapy_redisq.ops.doctor.report import Line, note, ok, problem, warning

_NONE, _META, _CHANNEL = "{none}", "{meta}", "{channel}"

IN_SCRIPTS: dict[str, tuple[str, ...]] = {
    "time": (),
    "publish": (_CHANNEL, ""),
    "type": (_NONE,),
    "exists": (_NONE,),
    "pexpire": (_NONE, "1"),
    "pttl": (_NONE,),
    "del": (_NONE,),
    "unlink": (_NONE,),
    "set": (_NONE, "", "XX"),
    "getrange": (_NONE, "0", "1"),
    "setrange": (_NONE, "-1", "x"),
    "object": ("ENCODING", _NONE),
    "hget": (_NONE, "f"),
    "hset": (_NONE, "f", "v", "odd"),
    "hdel": (_NONE, "f"),
    "hexists": (_NONE, "f"),
    "hlen": (_NONE,),
    "hkeys": (_NONE,),
    "hmget": (_NONE, "f"),
    "hgetall": (_NONE,),
    "hincrby": (_NONE, "f", "none"),
    "hscan": (_NONE, "0"),
    "hsetnx": (_META, "format", ""),
    "lindex": (_NONE, "0"),
    "llen": (_NONE,),
    "lpop": (_NONE,),
    "lpush": (_META, "x"),
    "lrange": (_NONE, "0", "0"),
    "rpop": (_NONE,),
    "rpush": (_META, "x"),
    "sadd": (_META, "x"),
    "srem": (_NONE, "x"),
    "scard": (_NONE,),
    "sismember": (_NONE, "x"),
    "smembers": (_NONE,),
    "zadd": (_NONE, "XX", "1", "x"),
    "zcard": (_NONE,),
    "zcount": (_NONE, "0", "1"),
    "zrange": (_NONE, "0", "0"),
    "zrangebyscore": (_NONE, "0", "1"),
    "zrem": (_NONE, "x"),
    "zremrangebyrank": (_NONE, "0", "0"),
    "zrevrange": (_NONE, "0", "0"),
    "zrevrank": (_NONE, "x"),
    "zscan": (_NONE, "0"),
    "zscore": (_NONE, "x"),
}
"""Commands that scripts call, each in a form that does nothing. `_META` is of another type than
they take, or has the field: where there is no frontier, they are not tried."""

OF_BLOOM: dict[str, tuple[str, ...]] = {
    "bf.reserve": (_NONE, "none", "1"),
    "bf.madd": (_META, "x"),
    "bf.mexists": (_NONE, "x"),
}

BY_CLIENTS: dict[str, tuple[str, ...]] = {
    "info": ("INFO", "server"),
    "role": ("ROLE",),
    "scan": ("SCAN", "0", "COUNT", "1"),
    "memory|usage": ("MEMORY", "USAGE", _NONE),
    "dbsize": ("DBSIZE",),
    "config|get": ("CONFIG", "GET", "maxmemory"),
    "slowlog|get": ("SLOWLOG", "GET", "1"),
    "latency|latest": ("LATENCY", "LATEST"),
}
WITH_WAIT = {"wait": ("WAIT", "0", "1")}
"""Where workers follow failovers or wait for replicas."""

WITHOUT: dict[str, str] = {
    "publish": "Idle workers ask five times a second, in place of being told.",
    "subscribe": "Idle workers ask five times a second, in place of being told.",
    "info": "Policy and persistence are not checked; workers warn of it.",
    "role": "A replica is not told from a primary.",
    "scan": "Frontiers cannot be listed, and keys that another hand has deleted not be mended.",
    "memory|usage": "What takes the memory is not known (Frontier.memory()).",
    "dbsize": "What takes the memory of a server with over 100,000 keys is not known.",
    "config|get": "The server's configuration could not be looked at here.",
    "slowlog|get": "Slow calls could not be looked at here.",
    "latency|latest": "Latency spikes could not be looked at here.",
    "lrange": "`scrapy redisq url` does not look into queues.",
}
"""What comes of it where a right is not needed to crawl."""

MERELY_NOTED = {"memory|usage", "dbsize", "config|get", "slowlog|get", "latency|latest", "lrange"}

_SCRIPT = """
local denied = {}
for i = 2, #ARGV do
  local words = {}
  for word in string.gmatch(ARGV[i] .. '\\n', '(.-)\\n') do
    if word == '{none}' then word = KEYS[2]
    elseif word == '{meta}' then word = KEYS[1]
    elseif word == '{channel}' then word = ARGV[1] end
    words[#words + 1] = word
  end
  local reply = redis.pcall(unpack(words))
  if type(reply) == 'table' and reply.err then
    denied[#denied + 1] = words[1] .. '\\n' .. reply.err
  end
end
return denied
"""

_SIGNS = ("noperm", "can't run", "can't access", "no permission", "permissions", "acl failure")


def allowed(client: Client, meta: str, *, has_meta: bool, bloom: bool) -> dict[str, bool]:
    """Each command that scripts call -> whether this user may.

    ``meta`` is the meta key of a shard, and ``has_meta`` whether it is there.
    """
    wanted = IN_SCRIPTS | (OF_BLOOM if bloom else {})
    tried = {name: words for name, words in wanted.items() if has_meta or _META not in words}
    start = meta.removesuffix("meta")
    never = f"{start}never:{uuid.uuid4().hex}"
    lines = ["\n".join([name.upper(), *words]) for name, words in tried.items()]
    replies: list[bytes] = client.eval(_SCRIPT, 2, meta, never, f"{start}never", *lines)
    found = dict.fromkeys(tried, True)
    for reply in replies:
        name, _, error = reply.decode(errors="replace").partition("\n")
        found[name.lower()] = not _is_denied(error)
    return found


def allowed_outside(node: Any, commands: Iterable[str]) -> dict[str, bool]:
    """The same of what clients call themselves."""
    found: dict[str, bool] = {}
    ways = BY_CLIENTS | WITH_WAIT
    for name in commands:
        words = [f"{NEVER}:{uuid.uuid4().hex}" if w == _NONE else w for w in ways[name]]
        try:
            node.execute_command(*words)
            found[name] = True
        except redis.ResponseError as error:
            found[name] = not _is_denied(str(error))
    return found


def _is_denied(error: str) -> bool:
    """Rights come first, then what else may be wrong with a call."""
    return any(sign in error.lower() for sign in _SIGNS)


def may_subscribe(node: Any, channel: str) -> bool:
    """Whether the user may listen to ``channel``."""
    with node.pubsub() as listener:
        try:
            listener.subscribe(channel)
            while message := listener.parse_response(timeout=2):
                if message:
                    return True
        except redis.ResponseError:
            return False
    return True


def examine(found: dict[str, bool]) -> Iterator[Line]:
    """A line for each right that is lacking, and one for those that are there."""
    denied = [name for name, may in found.items() if not may]
    for name in denied:
        rule = f"ACL SETUSER … +{name}"
        text = f"{name.replace('|', ' ').upper()} is denied"
        if name in MERELY_NOTED:
            yield note(text, WITHOUT[name], rule)
        elif name in WITHOUT:
            yield warning(
                text,
                WITHOUT[name],
                f"{rule} (and its channel: &redisq:*)"
                if name in {"publish", "subscribe"}
                else rule,
            )
        else:
            yield problem(
                text,
                "Scripts of the frontier need it: no crawl works without."
                if name != "wait"
                else "A worker would not know that a failover loses nothing, and refuses to start.",
                rule,
            )
    if there := len(found) - len(denied):
        yield ok(f"{there} commands are allowed, each of them tried")


def keys_denied(error: Any) -> Line:
    """Where not even a script may run."""
    return problem(
        f"the user may run no script on keys redisq:*: {error}",
        "All of the frontier is scripts.",
        "ACL SETUSER … ~redisq:* +eval +evalsha (README has all of them)",
    )
