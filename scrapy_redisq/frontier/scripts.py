"""The Lua scripts, put together from their files, and how one is run.

A file of ``lua/`` names in its head the files of ``lua/shared/`` that it needs, and they theirs. A
`Call` is one run of a script on one shard, for synchronous and asynchronous callers alike.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable
from importlib import resources
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct
from redis.exceptions import (
    AskError,
    ClusterError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from scrapy_redisq.errors import FrontierCorrupt, ScriptFailed, ServerBusy, ServerFull
from scrapy_redisq.frontier.config import BACKENDS

T = TypeVar("T")

WAIT_MS = 100
"""Milliseconds that a reply is held up at most until replicas have what was written."""

_encode = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder().decode
"""Decodes the msgpack maps that scripts reply with."""


def raw_string(data: bytes) -> msgspec.Raw:
    """Bytes as a msgpack string, because Redis' cmsgpack knows no other type for them."""
    size = len(data)
    if size < 32:
        head = bytes((0xA0 | size,))
    elif size < 256:
        head = bytes((0xD9, size))
    elif size < 65_536:
        head = b"\xda" + size.to_bytes(2, "big")
    else:
        head = b"\xdb" + size.to_bytes(4, "big")
    return msgspec.Raw(head + data)


class Script(Struct, frozen=True):
    """One script: its name for messages, its text, and the SHA-1 that Redis knows it by."""

    name: str
    text: str
    sha: str


_INCLUDE = re.compile(r"^-- Include +(\S.*(?:\n-- {3,}\S.*)*)", re.M)

WRITES = re.compile(r"^-- Retry ", re.M)
"""In the head of a script that writes."""

COMMENT = re.compile(r"^ *--.*\n", re.M)
"""Half of the text, which Redis need not read."""

ALWAYS = ("shared/damage", "shared/texts", "shared/keys")
"""Files that every script has, whose heads do not name them."""


def includes_of(text: str) -> list[str]:
    """Files that the head of a Lua file includes: they define the names that it uses."""
    found = _INCLUDE.search(text)
    return found[1].replace("\n--", " ").split() if found else []


def source(file: str, backend: str = "", body: str = "") -> str:
    """The code of a file of ``lua/``, behind the files that its head includes, each of them once.
    ``shared/damage.lua`` stands around the whole. ``body``, more Lua, goes behind it.

    They are named by their paths, ``shared/counts``. Of ``NAME=FILE`` a function NAME() is made
    that returns what the file does, so that it costs nothing where nobody calls it. In a path
    ``BACKEND`` stands for the dupefilter's ``backend``.
    """
    folder = resources.files(__package__) / "lua"
    texts: dict[str, str] = {}

    def add(included: str) -> None:
        if included in texts:
            return
        function, _, path = included.rpartition("=")
        text = (folder / f"{path.replace('BACKEND', backend)}.lua").read_text("utf-8")
        for needed in includes_of(text):
            add(needed)
        texts[included] = f"local function {function}()\n{text}end\n" if function else text

    add("shared/damage")
    add("shared/texts")
    # Lua allows 200 local names in a function, and the longest script has almost as many.
    texts["shared/texts"] += "\nlocal function script()"
    for name in (*ALWAYS, file):
        add(name)
    writes = "true" if WRITES.search(texts[file]) else "false"
    lua = "\n".join([*texts.values(), body, "end", f"return guarded(script, {writes})\n"])
    return COMMENT.sub("", lua)


@functools.cache
def load(name: str, backend: str = "") -> Script:
    """The script in the file ``name`` of ``lua/``, with the dupefilter ``backend``."""
    text = source(name, backend)
    return Script(name, text, hashlib.sha1(text.encode()).hexdigest())


@functools.cache
def known_scripts() -> dict[str, str]:
    """The name of each script by its SHA-1, as a server's slow log has it."""
    with resources.as_file(resources.files(__package__) / "lua") as path:
        files = {str(file.relative_to(path).with_suffix("")) for file in path.rglob("*.lua")}
    scripts = {file for file in files if not file.startswith("shared/")}
    return {load(file, backend).sha: file for file in scripts for backend in BACKENDS}


class Call(Struct, Generic[T], frozen=True):
    """One run of a script on the shard whose meta key is ``key``."""

    script: Script
    key: str
    payload: bytes
    decode: Callable[[Any], T]

    @classmethod
    def of(cls, script: Script, key: str, data: Any, decode: Callable[[Any], T]) -> Call[T]:
        """A call whose input is ``data``, made of what msgpack knows."""
        return cls(script, key, _encode(data), decode)

    @property
    def keys(self) -> tuple[str, str]:
        """The meta key, and one beside it that never exists.

        While a hash slot of a cluster migrates, a script that declares one key runs on either node,
        and sees none of the keys of the other node. With a second key, which neither node has, the
        script is refused (ASK, TRYAGAIN) before it has begun.
        """
        return self.key, self.key.removesuffix("meta") + "never"


# Errors of a Redis that takes no commands now. redis-py has classes for some of them and keeps the
# word in the others; Redis 6 puts words of its own in front of an error inside a script.
_BUSY_ERRORS = (ReadOnlyError, AskError, ClusterError, TryAgainError)
_FULL = re.compile(r"\bOOM\b")
_CORRUPT = re.compile(r"\bCORRUPT (.*)", re.S)
_BUSY = re.compile(
    r"(^|[-: ])(LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|BUSY|NOREPLICAS|MISCONF) "
)


def damaged(key: str, kind: str = "") -> str:
    """The message about a key that another program has written. ``kind``: its type now."""
    what = f"is a {kind}" if kind else "is not what it must be"
    return (
        f"key {key} {what}: something else than scrapy-redisq wrote it. Nobody goes on with this "
        f"crawl before the frontier is deleted (scrapy redisq reset), or the key is, and scrapy "
        f"redisq reset --mend has been said: then what the key held is lost"
    )


def _translate(error: ResponseError, call: Call[Any]) -> Exception:
    text = str(error)
    if found := _CORRUPT.search(text):
        return FrontierCorrupt(damaged(found[1]))
    if isinstance(error, OutOfMemoryError) or _FULL.search(text):
        return ServerFull("Redis is at its maxmemory and takes no new requests")
    if isinstance(error, _BUSY_ERRORS) or _BUSY.search(text):
        return ServerBusy(f"Redis does not take the {call.script.name} script now: {text}")
    return ScriptFailed(f"the {call.script.name} script on {call.key} failed: {text}")


class Client(Protocol):
    """A client that runs scripts: redis-py's of a server, or one of a cluster."""

    def evalsha(self, sha: str, numkeys: int, /, *keys_and_args: Any) -> Any: ...

    def eval(self, script: str, numkeys: int, /, *keys_and_args: Any) -> Any: ...


class AsyncClient(Client, Protocol):
    """As `Client`, for asyncio, with more calls that a worker needs."""

    def pubsub(self, *, ignore_subscribe_messages: bool) -> Any: ...

    def pipeline(self, transaction: bool) -> Any: ...


def execute(client: Client, call: Call[T]) -> T:
    """Run ``call`` once and return its decoded reply.

    Raises `ServerFull` and `ServerBusy` (nothing was applied), `ScriptFailed`, `FrontierCorrupt`
    (the reply makes no sense), or redis-py's ConnectionError and TimeoutError: then nobody knows
    whether the call was applied.
    """
    try:
        try:
            reply = client.evalsha(call.script.sha, 2, *call.keys, call.payload)
        except NoScriptError:
            reply = client.eval(call.script.text, 2, *call.keys, call.payload)
    except ResponseError as error:
        raise _translate(error, call) from error
    return _decoded(call, reply)


def _decoded(call: Call[T], reply: Any) -> T:
    try:
        return call.decode(reply)
    except (ValueError, TypeError, ArithmeticError, LookupError, msgspec.MsgspecError) as error:
        raise FrontierCorrupt(
            f"what the {call.script.name} script on {call.key} says makes no sense ({error}): "
            "something else than scrapy-redisq has written to one of the keys beside it"
        ) from error


async def execute_async(client: AsyncClient, call: Call[T]) -> T:
    """As `execute`, for an asynchronous client."""
    try:
        try:
            reply = await client.evalsha(call.script.sha, 2, *call.keys, call.payload)
        except NoScriptError:
            reply = await client.eval(call.script.text, 2, *call.keys, call.payload)
    except ResponseError as error:
        raise _translate(error, call) from error
    return _decoded(call, reply)


async def execute_and_wait(client: AsyncClient, call: Call[T], replicas: int) -> tuple[T, bool]:
    """As `execute_async`; also whether so many replicas have it, within `WAIT_MS`.

    Both commands go out at once and on one connection: WAIT is about what that has written.
    """
    reply: Any
    first = ("EVALSHA", call.script.sha)
    while True:
        command = (*first, 2, *call.keys, call.payload)
        async with client.pipeline(transaction=False) as pipeline:
            pipeline.execute_command(*command)
            pipeline.execute_command("WAIT", replicas, WAIT_MS)
            reply, count = await pipeline.execute(raise_on_error=False)
        if not isinstance(reply, NoScriptError):
            break
        first = ("EVAL", call.script.text)
    if isinstance(reply, ResponseError):
        raise _translate(reply, call) from reply
    if isinstance(reply, Exception):
        raise reply
    return _decoded(call, reply), isinstance(count, int) and count >= replicas
