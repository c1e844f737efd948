"""What xdist starts as a worker's Python: ``python stand_in.py SOCKET ARGUMENTS``.

It has the worker forked by `tests.harness.collected`, gives it its streams, and ends with it. Where
nobody answers it becomes ``python ARGUMENTS``, and that worker imports the tests by itself.
"""

import json
import os
import signal
import socket
import sys


def forked(path: str) -> int | None:
    """The exit code of the process that was forked instead, None if there is nobody to fork it.

    This speaks to `lab.launcher.main`, and imports nothing of it: that would take longer.
    """
    folder = os.getcwd()  # noqa: PTH109 - nor pathlib
    job = {"folder": folder, "environment": dict(os.environ)}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what follows from that is the worker's to say
    ours, theirs = socket.socketpair()
    try:
        with socket.socket(socket.AF_UNIX) as launcher, ours:
            launcher.connect(path)
            with theirs:
                socket.send_fds(launcher, [b"."], [theirs.fileno(), 0, 1, 2])
            ours.sendall(json.dumps(job).encode() + b"\n")
            with ours.makefile("r") as answers:
                pid, code = answers.readline(), answers.readline()
    except OSError:
        return None
    return int(code or 1) if pid else None


if __name__ == "__main__":
    ended = forked(sys.argv[1])
    if ended is None:
        os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
    os._exit(ended % 256)
