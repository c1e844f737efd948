"""Servers of tests leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

from lab.servers import wait_until

KILLED = """
import os, sys
from pathlib import Path
from lab.servers import RedisServer
server = RedisServer(Path(sys.argv[1]))
print(server.pid, server.folder, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_server_ends_with_the_tests(each_binary: Path) -> None:
    """However these end, and with it goes its folder."""
    command = [sys.executable, "-c", KILLED, str(each_binary)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    pid, folder = ran.stdout.split()
    wait_until(lambda: not psutil.pid_exists(int(pid)), 20, "the server has ended")
    wait_until(lambda: not Path(folder).exists(), 20, "its folder is gone")
