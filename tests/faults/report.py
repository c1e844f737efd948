"""The table of ``make faults``."""

from __future__ import annotations

import platform
import re
import sqlite3
import subprocess
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.common import machine
from lab.databases.mariadb import mariadb_binaries
from lab.databases.postgres import postgres_binaries
from lab.servers import binaries
from tests.faults.rig import FACTS, MOST_LEASES
from tests.faults.size import SIZES

Record = dict[str, Any]


def _version_of(binary: Path | str) -> str:
    told = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"\d[\d.]+", told.stdout)
    return found[0] if found else "?"


def _versions() -> str:
    packages = ("scrapy-redisq", "Scrapy", "redis", "Twisted")
    told = [
        f"Python {platform.python_version()}",
        *(f"{name} {version(name)}" for name in packages),
    ]
    told.append(f"Redis server {' and '.join(map(_version_of, binaries().values()))}")
    told.append(f"SQLite {sqlite3.sqlite_version}")
    if postgres := postgres_binaries():
        told.append(f"PostgreSQL {_version_of(postgres / 'postgres')}")
    if maria := mariadb_binaries():
        told.append(f"MariaDB {_version_of(maria[0])}")
    return ", ".join(told)


def _row(fault: str, records: list[Record]) -> str:
    about = list(dict.fromkeys(record["about"] for record in records))
    passed = sum(record["passed"] for record in records)
    runs = sum(record.get("runs", 1) for record in records)
    cells = [fault.capitalize() if re.fullmatch(r"f\d+b?", fault) else "–", " ".join(about)]
    cells.append(
        str(runs) if passed == len(records) else f"{runs}, **{len(records) - passed} failed**"
    )
    for name in ("missing", "duplicates"):
        known = [record[name] for record in records if name in record]
        cells.append(f"{sum(known):.0f}" if known else "–")
    known = [record for record in records if "refetch" in record]
    for name in ("refetch", "allowed"):
        most = max((record[name] for record in known), default=None)
        cells.append("–" if most is None else f"{100 * most:.2f} %")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _order(fault: str) -> tuple[int, str]:
    number = re.match(r"f(\d+)", fault)
    return (int(number[1]) if number else 1_000, fault)


def report(records: list[Record], size_name: str) -> str:
    """The page: what was measured, by fault."""
    size = SIZES[size_name]
    here = "{cores} cores ({cpu}), {memory_gib} GiB, {system}".format(**machine())
    by_fault: dict[str, list[Record]] = {}
    for record in records:
        by_fault.setdefault(record["fault"], []).append(record)
    failed = [record for record in records if not record["passed"]]
    lines = [
        "# Faults, and what was left when they were over",
        "",
        f"Written by `make faults` on {datetime.now(timezone.utc):%Y-%m-%d} on {here}; "
        f"{_versions()}.",
        "",
        f"Unless a fault asks for other sizes, a run has a site of {size.pages:,} pages, each "
        f"linked from at least three others, {size.workers} `scrapy crawl` processes, and a lease "
        f"TTL of {size.ttl:g} s. Each page has one item, for a sink with one row per URL. F01b "
        f"writes {1 + FACTS} items a page to PostgreSQL, F39 to F42 to SQLite, PostgreSQL and "
        f"MariaDB; there the columns count rows.",
        "",
        f"- *Refetched* is (fetches − pages) / pages, by the site's own log. *Allowed* are the "
        f"requests that dead workers held, at most {MOST_LEASES} each. Both are the largest of all "
        f"runs.",
        "- Missing pages and duplicate rows are the sums of all runs.",
        "- After each run no lease, no entry and no undocumented key is left. Survivors end with "
        "`finished` and exit code 0. No log has a password or a traceback.",
        "",
        "| | fault | runs | pages missing | duplicate rows | refetched | allowed |",
        "|---|---|--:|--:|--:|--:|--:|",
        *(_row(fault, by_fault[fault]) for fault in sorted(by_fault, key=_order)),
        "",
    ]
    if failed:
        lines += ["Failed; the seed repeats the run:", ""]
        lines += [f"- `REDISQ_FAULT_SEED={record['seed']}` {record['test']}" for record in failed]
        lines.append("")
    return "\n".join(lines)
