"""SADD, RPUSH and LPOP with no frontier: what a Redis can do at most, and what redis-py can."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

import redis

PIPELINE = 100
"""Requests that one pipeline carries."""

FASTEST = 600_000
"""Requests a second that nothing here reaches: so many are prepared before the clock runs."""

ENTRY_BYTES = 105


def bare(asked: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """SADD, RPUSH and LPOP in pipelines whose bytes are at hand: what Redis can do at most."""
    connection = socket.create_connection(("127.0.0.1", asked["port"]))
    entry = b"x" * ENTRY_BYTES
    tail = b"*3\r\n$5\r\nRPUSH\r\n$1\r\nq\r\n$%d\r\n%s\r\n*2\r\n$4\r\nLPOP\r\n$1\r\nq\r\n" % (
        len(entry),
        entry,
    )
    batches = [
        b"".join(
            b"*3\r\n$4\r\nSADD\r\n$1\r\ns\r\n$40\r\n%s\r\n%s"
            % (os.urandom(20).hex().encode(), tail)
            for _ in range(PIPELINE)
        )
        for _ in range(round(asked["seconds"] * FASTEST / asked["clients"] / PIPELINE))
    ]

    def timed() -> dict[str, float]:
        began = time.perf_counter()
        done = 0
        for batch in batches:
            connection.sendall(batch)
            lines = 0
            while lines < 4 * PIPELINE:  # :1  :1  $105  xxx
                lines += connection.recv(1 << 16).count(b"\n")
            done += PIPELINE
            if time.perf_counter() - began >= asked["seconds"]:
                break
        seconds = time.perf_counter() - began
        connection.close()
        return {"requests": done, "seconds": seconds}

    return timed


def bare_redis_py(asked: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """The same by redis-py's pipelines, which is what a program would use."""
    client = redis.Redis(port=asked["port"])
    client.ping()
    entry = b"x" * ENTRY_BYTES

    def timed() -> dict[str, float]:
        began = time.perf_counter()
        done = 0
        while time.perf_counter() - began < asked["seconds"]:
            pipeline = client.pipeline(transaction=False)
            for _ in range(PIPELINE):
                pipeline.sadd("s", os.urandom(20))
                pipeline.rpush("q", entry)
                pipeline.lpop("q")
            pipeline.execute()
            done += PIPELINE
        seconds = time.perf_counter() - began
        client.close()
        return {"requests": done, "seconds": seconds}

    return timed
