"""pytest-xdist's workers, forked from one process that has imported all tests.

Each of them would start Python, and import the tests and what they need: two seconds of a core, ten
times. `share` starts ``python -m tests.harness.collected SOCKET PATH...``, which does so once, and
has xdist start `stand_in` in place of Python.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lab import launcher
from tests.harness import stand_in

_started: list[subprocess.Popen[bytes]] = []


def share(specs: Sequence[Any], paths: Sequence[str], folder: Path) -> socket.socket:
    """Let workers of these ``specs`` (`execnet.XSpec`) be forked from a process that imports the
    tests at ``paths``; it ends when what is returned is closed, and the last worker has ended.
    ``folder`` is for its socket."""
    path = folder / "collected"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        _started.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.harness.collected", str(listening.fileno()), *paths],
                pass_fds=[listening.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=launcher.ROOT,
            )
        )
    asking = socket.socket(socket.AF_UNIX)
    asking.connect(str(path))
    for spec in specs:
        # Without what the packages that are installed do whenever Python starts.
        spec.python = shlex.join([sys.executable, "-S", "-E", "-s", stand_in.__file__, str(path)])
    return asking


def main(listening: socket.socket, paths: Sequence[str]) -> None:
    """Import the tests at ``paths``, and become each worker that is asked for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Path(os.devnull).open("w") as nothing, contextlib.redirect_stdout(nothing):
        # The workers collect again, and say what is wrong.
        pytest.main(["--collect-only", "-n0", "-p", "no:cacheprovider", *paths])
    launcher.remember()
    gc.collect()
    gc.freeze()
    if launcher.main(listening) is not None:
        # What execnet has Python do that it starts: the first line is a program.
        exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
        launcher.leave(0)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as socket_of_all:
        main(socket_of_all, sys.argv[2:])
