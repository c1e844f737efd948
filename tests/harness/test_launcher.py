"""What the launcher forks is as a fresh process: the tests of crawls rest on it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from lab.launcher import Forked, fork, main
from lab.servers import wait_until

PROBE = """
import atexit, os, random, signal, sys, threading
atexit.register(print, "at exit")
threading.Thread(target=lambda: threading.main_thread().join() or print("the last thread")).start()
class Cycle:
    def __del__(self):
        print("collected")
cycle = Cycle()
cycle.itself = cycle
print(os.getcwd(), sys.argv[1:], os.environ.get("PROBE"), sys.stdin.read() == "")
reactor = "twisted.internet.reactor" in sys.modules
print(hash("x"), random.random(), threading.active_count() - 1, reactor)
print(sorted(os.listdir("/dev/fd"))[:-1], flush=True)  # without the one that lists them
if "wait" in sys.argv:
    signal.pause()
sys.exit(3)
"""


def probe(folder: Path, *arguments: str) -> tuple[Forked, Path]:
    if not (folder / "probe.py").exists():  # else one that begins may read half of it
        (folder / "probe.py").write_text(PROBE)
    output = folder / f"output-{len(list(folder.iterdir()))}"
    output.touch()
    environment = {**os.environ, "PROBE": "its own"}
    return fork("probe", [*arguments], folder, output, environment), output


def test_a_forked_process_is_as_a_fresh_one(tmp_path: Path) -> None:
    """Folder, arguments, environment, streams, end and exit code; hashes and random numbers too."""
    probes = [probe(tmp_path, "a", "b") for _ in range(3)]
    told = []
    for process, output in probes:
        assert process.wait(20) == process.poll() == 3
        place, numbers, files, *end = output.read_text().splitlines()
        assert place == f"{tmp_path} ['a', 'b'] its own True"
        assert numbers.endswith(" 1 False")
        assert files == "['0', '1', '2']"
        assert end == ["the last thread", "at exit", "collected"]
        told.append(numbers.split())
    hashes, numbers_drawn, *_ = zip(*told, strict=True)
    assert hashes[0] == hashes[2] != hashes[1]
    assert len(set(numbers_drawn)) == 3


def test_a_launcher_ends_with_the_last_that_asks(tmp_path: Path) -> None:
    """Whoever comes afterwards finds none, and starts another one."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        launcher = threading.Thread(target=main, args=(listening,))
        launcher.start()
        asking = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        for each in asking:
            each.connect(str(path))
        asking[0].close()
        assert path.exists()
        asking[1].close()
        launcher.join(20)
    assert not launcher.is_alive()
    assert not path.exists()


def test_a_forked_process_is_ended_by_signals(tmp_path: Path) -> None:
    """SIGKILL, SIGTERM and SIGINT end it as they end any; its exit code tells which."""
    for number, code in ((signal.SIGKILL, -9), (signal.SIGTERM, -15), (signal.SIGINT, -2)):
        process, output = probe(tmp_path, "wait")
        wait_until(lambda output=output: output.read_text().count("\n") == 3, 20, "it runs")
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(number)
        assert process.wait(20) == code
        process.kill()
