"""Items as Parquet files, in a folder or in an object store."""

from __future__ import annotations

import hashlib
import itertools
import re
import secrets
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from scrapy.utils.python import global_object_name

from scrapy_redisq.errors import SettingError
from scrapy_redisq.pipelines.batch import BatchPipeline, Row

if TYPE_CHECKING:
    from scrapy_redisq.pipelines.parquet.arrow import Columns
    from scrapy_redisq.pipelines.parquet.folders import Folder

LONGEST_NAME = 80
"""Most characters of each part of a file's name; file systems take 255 for all of it."""


class ParquetPipeline(BatchPipeline):
    """Writes items to Parquet files below REDISQ_PARQUET_URL, at least once.

    A file holds the rows of one item class, at most ``batch_rows``, and is written when the
    oldest of them is ``batch_seconds`` old. Its name is never used again. Scrapy does not
    wait for it, the page's lease does. If the process dies between the two, rows are in two files
    with the same ``redisq_key``. Dicts have columns of text, and only those of their batch.

    What a killed process leaves behind is hidden (``.….tmp``), or on S3 an incomplete upload that a
    lifecycle rule of the bucket can remove. S3 takes its keys, endpoint and region from Scrapy's
    ``AWS_…`` settings or from where all AWS tools look; other stores from fsspec's configuration.
    """

    batch_rows = 10_000
    batch_seconds = 5.0  # which a finished page's lease is kept at most
    silent_seconds = 300.0  # large files to slow stores; meanwhile at most two batches gather

    _folder: Folder

    async def open(self) -> None:
        """Check that files can be written. Raises `SettingError` and `SinkUnavailable`."""
        settings = self.settings
        url = settings.parquet_url % {"spider": safe_name(self.spider_name)}
        began = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        worker = self.worker.replace(":", ".")
        # A host and a process id may come back, even within the second.
        self._prefix = (
            f"{safe_name(self.frontier_name)}-{safe_name(worker)}-{began}-{secrets.token_hex(4)}"
        )
        self._numbers = itertools.count(1)
        self._number = next(self._numbers)
        self._columns: dict[type, Columns | None] = {}
        self._folder = await self._batches.call(self._open_folder, url)

    def _open_folder(self, url: str) -> Folder:
        try:
            # Not above: they are an extra, and slow to import.
            from scrapy_redisq.pipelines.parquet import arrow  # noqa: PLC0415
            from scrapy_redisq.pipelines.parquet.folders import open_folder  # noqa: PLC0415
        except ImportError as error:
            raise SettingError(
                "ITEM_PIPELINES",
                "scrapy_redisq.pipelines.ParquetPipeline",
                f"what `pip install scrapy-redisq[parquet]` brings ({error})",
            ) from None
        self._arrow = arrow
        folder = open_folder(url, self.crawler.settings)
        folder.check()
        return folder

    def row(self, item: Any, key: str) -> Row:
        """Raises `RowRefused` for values that do not fit their column, `SinkMismatch` for a class
        whose fields cannot all be columns."""
        row = Row(item, key)
        kind = type(item)
        if kind not in self._columns:
            self._columns[kind] = self._arrow.Columns.of(kind)
        columns = self._columns[kind]
        values = columns.convert(row) if columns else self._arrow.convert_free(row)
        return Row(item, key, values)

    async def write(self, rows: list[Row]) -> None:
        """One file for each item class. Rows that are tried again replace their own files."""
        await self._batches.call(self._write, rows)
        self._number = next(self._numbers)

    def _write(self, rows: list[Row]) -> None:
        by_class: dict[type, list[Row]] = {}
        for row in rows:
            by_class.setdefault(type(row.item), []).append(row)
        files = {}
        for kind, mine in by_class.items():
            folder = safe_name(global_object_name(kind).removeprefix("builtins."))
            files[f"{folder}/{self._prefix}-{self._number:06}.parquet"] = self._file(kind, mine)
        for name, data in files.items():
            self._folder.put(name, data)

    def _file(self, kind: type, rows: list[Row]) -> Any:
        columns = self._columns[kind]
        if columns is None:
            names = dict.fromkeys(itertools.chain.from_iterable(rows))
            columns = self._arrow.Columns.of_names(names)
        return columns.file(rows)


def safe_name(name: str) -> str:
    """A name as a part of file names: percent-encoded, not hidden, no longer than LONGEST_NAME.

    Different names stay different.
    """
    quoted = quote(name, safe="", errors="backslashreplace")
    if quoted[:1] in {".", "_"}:  # readers of data sets pass over these
        quoted = f"%{ord(quoted[0]):02X}{quoted[1:]}"
    if len(quoted) > LONGEST_NAME:
        digest = hashlib.sha256(quoted.encode()).hexdigest()[:12]
        cut = re.sub("%[0-9A-F]?$", "", quoted[: LONGEST_NAME - 13])
        quoted = f"{cut}~{digest}"
    return quoted
