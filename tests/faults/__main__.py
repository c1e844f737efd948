"""``make faults``: every fault at full size, several at a time, and a table of what was measured.

``python -m tests.faults [-j 3] [-k EXPRESSION] [REPORT]`` writes the table to REPORT (default:
docs/explanation/faults.md). Exit code 1 if a test failed; its output is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.faults.report import report

ROOT = Path(__file__).parent.parent.parent
PYTEST = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--timeout=3600"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-j", type=int, default=max(2, os.cpu_count() or 2), help="at a time")
    parser.add_argument("-k", default="", help="only tests that match, as pytest's -k")
    parser.add_argument("report", nargs="?", type=Path, default=ROOT / "docs/explanation/faults.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redisq-faults-") as folder:
        results = Path(folder) / "results.jsonl"
        results.touch()
        environment = {"REDISQ_FAULTS": "full", **os.environ, "REDISQ_FAULT_RESULTS": str(results)}
        several = ["-n", str(options.j), "--maxschedchunk", "1", "-k", options.k]
        ended = subprocess.run(
            [*PYTEST, *several, f"--basetemp={folder}/pytest", "tests/faults"],
            cwd=ROOT,
            env=environment,
            check=False,
        )
        records = [json.loads(line) for line in results.read_text().splitlines()]
    options.report.write_text(report(records, environment["REDISQ_FAULTS"]))
    print(f"{sum(record['passed'] for record in records)} of {len(records)}; {options.report}")
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main())
