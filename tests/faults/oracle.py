"""S, what must be left when a fault is over, whatever the fault was."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from lab.cluster import Cluster
from lab.servers import RedisServer
from tests.faults.rig import MOST_LEASES, PASSWORD, Rig

LEFT = {"meta", "counts", "seen", "dead", "letters", "slot", "trash", "series", "marks"}
LEFT |= {"ended"}  # with REDISQ_RUN
"""The kinds of keys that a complete run may leave; all others hold work or workers."""


def kinds_of_keys(server: RedisServer | Cluster, name: str) -> set[str]:
    """What stands after ``redisq:{NAME:k}:`` in the keys; a key that does not is its own kind."""
    pattern = re.compile(rf"redisq:\{{{re.escape(name)}:\d+\}}:([a-z]+)")
    keys = []
    for node in server.masters() if isinstance(server, Cluster) else [server]:
        with node.client() as client:
            keys += [key.decode(errors="replace") for key in client.scan_iter("*")]
    return {match[1] if (match := pattern.match(key)) else key for key in keys}


def assert_survived(
    rig: Rig,
    *,
    refetch: int | None,
    dead: int = 0,
    missing: frozenset[str] = frozenset(),
    more_created: int = 0,
    name: str = "fault",
    server: RedisServer | None = None,
) -> dict[str, Any]:
    """Assert S; -> the frontier's status.

    ``refetch``: pages that may be asked for twice, None where that is not measured; beside them
    those of workers that were thought dead because the machine did not let them run. ``dead``
    requests are dead letters, among them the pages ``missing``. ``more_created``: requests
    beside one for each page.
    """
    server = server or rig.server
    numbers = {str(number) for number in range(rig.pages)}
    rows = rig.rows()
    stored = Counter(page for _, page, _ in rows)
    absent = numbers - set(stored)
    duplicates = len(rows) - len(stored)
    hits = sum(number for path, number in rig.site.counts().items() if path[1:] in numbers)
    rig.measured.update(missing=len(absent - missing), duplicates=duplicates)
    if refetch is not None:
        refetch += starved(rig) * MOST_LEASES
        rig.measured.update(refetch=(hits - rig.pages) / rig.pages, allowed=refetch / rig.pages)

    assert absent == missing, sorted(absent)[:20]
    assert duplicates == 0
    if refetch is not None:
        fenced = sum(worker.log.count("leases are void") for worker in rig.workers)
        what = f"{hits - rig.pages}; {fenced} thought dead, {starved(rig)} of them starved"
        assert 0 <= hits - rig.pages <= refetch, what
    status = rig.status(name, server)
    assert status["state"] == "complete", status
    assert (status["queued"], status["leased"], status["delayed"]) == (0, 0, 0), status
    assert status["workers"] == []
    assert status["created"] == status["finished"] == rig.pages + more_created, status
    assert status["dead"] == dead, status
    assert (kinds := kinds_of_keys(server, name)) <= LEFT, kinds - LEFT
    assert_quiet(rig)
    for worker in rig.survivors():
        assert (worker.process.returncode, worker.reason) == (0, "finished"), worker.log
    return status


def starved(rig: Rig) -> int:
    """How often a worker was thought dead that had not been let run for half a lease TTL or more:
    with a quarter of it between its signs of life that is enough."""
    number = 0
    for worker in rig.workers:
        waits: list[tuple[float, float]] = []
        for line in worker.log.splitlines():
            if found := re.match(r"([\d.]+) .*others had the processor for ([\d.]+) s", line):
                waits.append((float(found[1]), float(found[2])))
            elif "no sign of life in time" in line:
                since = float(line.split(maxsplit=1)[0]) - 3 * rig.ttl
                number += sum(seconds for at, seconds in waits if at > since) >= rig.ttl / 2
                waits.clear()
    return number


def assert_quiet(rig: Rig) -> None:
    """No worker showed the password, a traceback or an error."""
    for worker in rig.workers:
        assert PASSWORD not in worker.log
        assert "Traceback" not in worker.log, worker.log
        assert "] ERROR" not in worker.log or worker in rig.gone, worker.log
