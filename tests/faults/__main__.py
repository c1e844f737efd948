"""``make faults``: every fault at full size, several at a time, and a table of what was measured.

``python -m tests.faults [-j 3] [-k EXPRESSION] [--runs 1] [--results FILE] [REPORT]`` writes the
table to REPORT (default: docs/faults.md). What is measured is added to FILE, where it replaces what
an earlier call measured of the same tests. Exit code 1 if a test failed; its output is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.faults.report import report

ROOT = Path(__file__).parent.parent.parent
LONGEST = ["test_long", "f06", "f01", "f40", "f11b"]
"""What is begun first, so that no process is left alone at the end."""


def pytest_command(*arguments: str) -> list[str]:
    always = ("-q", "-p", "no:cacheprovider", "--timeout=3600")
    return [sys.executable, "-m", "pytest", *always, *arguments]


def tests(expression: str, environment: dict[str, str]) -> list[str]:
    """The ids of all tests, the longest first."""
    command = pytest_command("--collect-only", "tests/faults", "-k", expression)
    listed = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    found = [line for line in listed.stdout.splitlines() if "::" in line]
    if not found:
        sys.exit(listed.stdout + listed.stderr)

    def rank(test: str) -> int:
        return next((place for place, part in enumerate(LONGEST) if part in test), len(LONGEST))

    return sorted(found, key=rank)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-j", type=int, default=max(2, os.cpu_count() or 2), help="at a time")
    parser.add_argument("-k", default="", help="only tests that match, as pytest's -k")
    parser.add_argument("--runs", type=int, default=1, help="of each test, with other seeds")
    parser.add_argument("--results", type=Path, help="kept and added to, as lines of JSON")
    parser.add_argument("report", nargs="?", type=Path, default=ROOT / "docs" / "faults.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redisq-faults-") as folder:
        results = options.results or Path(folder) / "results.jsonl"
        results.touch()
        environment = {"REDISQ_FAULTS": "full", **os.environ, "REDISQ_FAULT_RESULTS": str(results)}

        writing = threading.Lock()

        def run(test: str) -> bool:
            began = time.monotonic()
            base = Path(tempfile.mkdtemp(dir=folder))
            ended = subprocess.run(
                pytest_command(test, f"--basetemp={base / 'pytest'}"),
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            good = ended.returncode == 0
            seconds = time.monotonic() - began
            print(f"{'passed' if good else 'FAILED'} {seconds:4.0f} s {test}", flush=True)
            if not good:
                print(ended.stdout, flush=True)
            with writing:
                records = [json.loads(line) for line in results.read_text().splitlines()]
                options.report.write_text(report(records, environment["REDISQ_FAULTS"]))
            return good

        everything = tests(options.k, environment)
        names = {test.rpartition("::")[2] for test in everything}
        kept = [line for line in results.open() if json.loads(line)["test"] not in names]
        results.write_text("".join(kept))
        everything *= options.runs
        with ThreadPoolExecutor(options.j) as pool:
            outcomes = list(pool.map(run, everything))
    print(f"{sum(outcomes)} of {len(outcomes)} passed; {options.report}")
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
