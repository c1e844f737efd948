"""Processes that do the same job at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.crawls import peers
from benchmarks.loads.peer_queue import SCRIPT


class Clients:
    """So many processes that do the same job at the same time; a context manager.

    They are started once and used again: starting one takes as long as a measurement.
    """

    def __init__(self, number: int, *, peer: bool = False) -> None:
        command = [sys.executable, "-m", "benchmarks.loads.load"]
        if peer:
            command = [str(peers.python()), str(SCRIPT)]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(number)
        ]

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def run(
        self, number: int, prepared: Callable[[], object] = lambda: None, **job: Any
    ) -> list[dict[str, float]]:
        """Let ``number`` of them do ``job``, with ``prepared`` called when all are ready."""
        chosen = self._processes[:number]
        for client, process in enumerate(chosen):
            self._tell(process, json.dumps({**job, "client": client, "clients": number}))
        for process in chosen:
            self._answer(process)
        prepared()
        for process in chosen:
            self._tell(process, "go")
        return [json.loads(self._answer(process)) for process in chosen]

    @staticmethod
    def _tell(process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()

    @staticmethod
    def _answer(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("a client ended in the midst of its work; its error stands above")
        return line
