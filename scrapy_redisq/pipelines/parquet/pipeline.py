"""Items as Parquet files, in a folder or in an object store."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from scrapy.utils.python import global_object_name

from scrapy_redisq.errors import SettingError
from scrapy_redisq.files import safe_name
from scrapy_redisq.pipelines.batch import Row
from scrapy_redisq.pipelines.file_batch import FilePipeline
from scrapy_redisq.settings.declared import SinkSettings

if TYPE_CHECKING:
    from scrapy_redisq.files.folders import Folder
    from scrapy_redisq.pipelines.parquet.arrow import Columns


class ParquetPipeline(FilePipeline):
    """Writes items to Parquet files below REDISQ_PARQUET_URL, at least once.

    A file holds the rows of one item class, at most ``batch_rows``, and is written when the
    oldest of them is ``batch_seconds`` old. Its name is never used again. Scrapy does not
    wait for it, the page's lease does. If the process dies between the two, rows are in two files
    with the same ``redisq_key``. Dicts have columns of text, and only those of their batch.

    What a killed process leaves behind is hidden (``.….tmp``), or on S3 an incomplete upload that a
    lifecycle rule of the bucket can remove. S3 takes its keys, endpoint and region from Scrapy's
    ``AWS_…`` settings or from where all AWS tools look; other stores from fsspec's configuration.
    """

    _folder: Folder

    def _open(self) -> None:
        try:
            # Not above: they are an extra, and slow to import.
            from scrapy_redisq.files.folders import open_folder  # noqa: PLC0415
            from scrapy_redisq.pipelines.parquet import arrow  # noqa: PLC0415
        except ImportError as error:
            raise SettingError(
                "ITEM_PIPELINES",
                "scrapy_redisq.pipelines.ParquetPipeline",
                f"what `pip install scrapy-redisq[parquet]` brings ({error})",
            ) from None
        self._arrow = arrow
        self._columns: dict[type, Columns | None] = {}
        url = self.settings.parquet_url % {"spider": safe_name(self.spider_name)}
        name = SinkSettings.parquet_url.name
        self._folder = open_folder(url, self.crawler.settings, name)
        self._folder.check()

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

    def _write(self, rows: list[Row]) -> None:
        """One file for each item class."""
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
