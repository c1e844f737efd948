"""A virtual environment for the peers, so that they are no dependency of this project."""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".benchmarks-venv"
PEERS = ("scrapy-redis==0.9.1", "Scrapy-Redis-BloomFilter==0.8.1")
SAME = ("Scrapy", "Twisted", "redis", "lxml", "parsel", "w3lib", "cssselect", "itemadapter")
"""What has a part in the figures: all variants run with the same release of it."""


def python() -> Path:
    """The interpreter of the peers' environment, which the first call makes.

    Raises `subprocess.CalledProcessError` if pip cannot install them.
    """
    interpreter = FOLDER / "bin" / "python"
    wanted = "\n".join([*PEERS, *(f"{name}=={version(name)}" for name in SAME)])
    done = FOLDER / "installed.txt"
    if not (done.exists() and done.read_text() == wanted and interpreter.exists()):
        venv.create(FOLDER, with_pip=True, clear=True)
        pip = [str(interpreter), "-m", "pip", "install", "--quiet", *wanted.split()]
        print(f"installing {', '.join(PEERS)} into {FOLDER}", file=sys.stderr)
        subprocess.run(pip, check=True, capture_output=True, text=True)
        done.write_text(wanted)
    return interpreter
