"""``python -m tests.mutants [WORD...]``: put each fault of the list in, and see whether the tests
find it. Words choose those whose file or line has one of them.

Ends with 1 if a fault stays unseen, or cannot be put in because the line has changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.faults import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 10
PYTEST = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "auto", "--maxschedchunk", "1"]
PYTEST += ["-p", "no:cacheprovider", "--short-first"]


def seen_by_tests(mutant: Mutant, copy: Path) -> str:
    """What came of it: "found", "UNSEEN" or why it was not tried. ``copy`` is one of the project,
    and whole again afterwards."""
    file = copy / "scrapy_redisq" / mutant.path
    try:
        file.write_text(mutant.apply(file.read_text()))
    except (OSError, ValueError) as error:
        return f"STALE: {error}"
    try:
        done = subprocess.run(
            [*PYTEST, *mutant.tests.split()],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            timeout=60 * MINUTES,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "found (the tests hang)"
    finally:
        shutil.copy2(ROOT / "scrapy_redisq" / mutant.path, file)
    if failed := [line for line in done.stdout.splitlines() if line.startswith("FAILED")]:
        return f"found by {failed[0].split()[1]}"
    return "UNSEEN" if done.returncode == 0 else f"ERROR: {done.stdout[-500:]}{done.stderr[-500:]}"


def main() -> int:
    """Try the chosen mutants, one after the other."""
    words = sys.argv[1:]
    chosen = [
        mutant
        for mutant in MUTANTS
        if not words or any(word in f"{mutant.path} {mutant.old}" for word in words)
    ]
    found = 0
    with tempfile.TemporaryDirectory(prefix="redisq-mutant-") as folder:
        copy = Path(folder) / "project"
        ignored = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=ignored)
        for mutant in chosen:
            began = time.monotonic()
            result = seen_by_tests(mutant, copy)
            found += result.startswith("found")
            print(f"{mutant.name}\n    {result} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{found} of {len(chosen)} found")
    return 0 if chosen and found == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
