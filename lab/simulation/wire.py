"""One connection to a real Redis that takes as little of a processor as can be had: half of what a
simulated crawl cost was redis-py's connections. Answers and messages come by the same wire (RESP3),
so that nobody asks a second connection whether there is news."""

from __future__ import annotations

import socket
from typing import Any

import redis
from redis._parsers.base import BaseParser

_error: Any = BaseParser.parse_error


class Wire:
    """``messages`` are (channel, data) of all that was published since they were last taken."""

    def __init__(self, path: str, channels: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._file = self._socket.makefile("rb", 1 << 16)
        self.messages: list[tuple[bytes, bytes]] = []
        self._database = 0
        self.ask(0, ("HELLO", 3), ("PSUBSCRIBE", channels), ("PING",))

    def ask(self, database: int, *commands: tuple[Any, ...]) -> list[Any]:
        """The answer to each; errors are among them, not raised."""
        if database != self._database:
            self._database = database
            return self.ask(database, ("SELECT", database), *commands)[1:]
        self._socket.sendall(b"".join(map(_packed, commands)))
        expected = sum(command[0] != "PSUBSCRIBE" for command in commands)  # it answers by messages
        return [self._answer() for _ in range(expected)]

    def _answer(self) -> Any:
        while True:
            line = self._file.readline()
            if line[:1] != b">":
                return self._value(line)
            kind, *told = self._values(int(line[1:]))
            if kind == b"pmessage":
                self.messages.append((told[1], told[2]))

    def _values(self, count: int) -> list[Any]:
        return [self._value(self._file.readline()) for _ in range(count)]

    def _value(self, line: bytes) -> Any:
        kind, rest = line[:1], line[1:-2]
        if kind in b"$=":
            size = int(rest)
            data = self._file.read(size + 2)[:-2]
            return data if kind == b"$" else data[4:]
        if kind == b":":
            return int(rest)
        if kind == b"*":
            return self._values(int(rest))
        if kind == b"+":
            return rest
        if kind == b"_":
            return None
        if kind == b"-":
            return _error(rest.decode())
        if kind == b"%":
            flat = self._values(2 * int(rest))
            return dict(zip(flat[::2], flat[1::2], strict=True))
        raise redis.ConnectionError(f"the simulation understands no {line!r}")


def _packed(command: tuple[Any, ...]) -> bytes:
    words = (*str(command[0]).split(), *command[1:])  # redis-py's names have spaces: CONFIG SET
    parts = [b"*%d\r\n" % len(words)]
    for part in words:
        data = part if isinstance(part, bytes) else str(part).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class Plain(redis.Redis):
    """redis-py's commands and decoding of answers, on a wire, for one database."""

    def __init__(self, wire: Wire, database: int) -> None:
        super().__init__(protocol=3)
        self._wire = wire
        self._database = database
        self._callbacks: Any = self.response_callbacks

    def execute_command(self, *command: Any, **options: Any) -> Any:
        return self.decoded(command, self._wire.ask(self._database, command)[0], **options)

    def decoded(self, command: tuple[Any, ...], answer: Any, **options: Any) -> Any:
        """What redis-py makes of an answer; an error is raised."""
        if isinstance(answer, Exception):
            raise answer
        options.pop("keys", None)
        callback = self._callbacks.get(str(command[0]))
        return callback(answer, **options) if callback else answer
