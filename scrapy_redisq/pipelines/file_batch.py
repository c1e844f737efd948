"""Item pipelines that write a file for each batch."""

from __future__ import annotations

import itertools
import secrets
import time

from scrapy_redisq.files import safe_name
from scrapy_redisq.pipelines.batch import BatchPipeline, Row


class FilePipeline(BatchPipeline):
    """Writes files, each under a name that is never used again: ``_prefix`` and ``_number`` are in
    it. A subclass has `_open` and `_write`, which run in a thread."""

    batch_rows = 10_000
    batch_seconds = 5.0  # which a finished page's lease is kept at most
    silent_seconds = 300.0  # large files to slow stores; meanwhile at most two batches gather

    async def open(self) -> None:
        """Check that files can be written. Raises `SettingError` and `SinkUnavailable`."""
        began = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        worker = self.worker.replace(":", ".")
        # A host and a process id may come back, even within the second.
        self._prefix = (
            f"{safe_name(self.frontier_name)}-{safe_name(worker)}-{began}-{secrets.token_hex(4)}"
        )
        self._numbers = itertools.count(1)
        self._number = next(self._numbers)
        await self._batches.call(self._open)

    def _open(self) -> None:
        raise NotImplementedError

    async def write(self, rows: list[Row]) -> None:
        """Rows that are tried again replace their own files."""
        await self._batches.call(self._write, rows)
        self._number = next(self._numbers)

    def _write(self, rows: list[Row]) -> None:
        raise NotImplementedError
