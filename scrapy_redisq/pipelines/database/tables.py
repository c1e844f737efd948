"""Tables of the classes of items, and the rows that items become."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy

from scrapy_redisq.errors import SettingError, SinkMismatch
from scrapy_redisq.pipelines.database import schema
from scrapy_redisq.pipelines.database.columns import KEY_COLUMN
from scrapy_redisq.pipelines.database.fields import Field, class_path, item_fields
from scrapy_redisq.pipelines.database.mapping import make_plan, make_table, table_name
from scrapy_redisq.pipelines.database.options import Options, read_options, wrong
from scrapy_redisq.pipelines.database.plans import Plan
from scrapy_redisq.pipelines.database.unique import has_default
from scrapy_redisq.pipelines.database.upsert import Record
from scrapy_redisq.settings.declared import SinkSettings


class Tables:
    """The table of each class of items.

    A class of items has the table that ``REDISQ_TABLES`` names, else the one called like it in
    snake case: the project's if its `MetaData` has it, else one of our own. Names in `Target` and
    `Record` are keys of the table's columns.

    `record` may run while `prepare` does so in another thread, once that was called. Raises
    `SettingError` for what is wrong in the settings, `SinkMismatch` for classes that do not fit the
    project's tables.
    """

    def __init__(
        self,
        tables: Mapping[Any, Mapping[str, Any]],
        metadata: sqlalchemy.MetaData | None,
        dialect: sqlalchemy.Dialect,
    ) -> None:
        if metadata is not None and not isinstance(metadata, sqlalchemy.MetaData):
            takes = "the import path of a sqlalchemy.MetaData, such as 'shop.models.metadata'"
            raise SettingError(SinkSettings.metadata.name, metadata, takes)
        self._options = read_options(tables)
        self._metadata = metadata
        self._dialect = dialect
        self._plans: dict[type, Plan] = {}
        self._pending: list[Plan] = []
        self._owners: dict[str, type] = {}
        self._started = False
        for item_class in self._options:
            self._plan(item_class)

    def prepare(self, begin: Callable[[], AbstractContextManager[sqlalchemy.Connection]]) -> None:
        """Make the tables that are missing and compare the others with the items: all that are new
        since the last call, if any.

        ``begin`` gives a transaction of their own: tables that are made in that of a batch are
        rolled back with it. Raises `SinkMismatch`; after errors of the database, which go through,
        the next call does the same.
        """
        if self._started and not self._pending:
            return
        with begin() as connection:
            if not self._started and self._metadata is not None:
                schema.create_given(connection, self._metadata)
            pending = list(self._pending)
            own = dict.fromkeys(plan.target.table for plan in pending if not plan.given)
            schema.create(connection, own)
            for plan in pending:
                schema.check(connection, plan)
        self._started = True
        # Only here plans go, at the front; `record` adds some at the end meanwhile.
        del self._pending[: len(pending)]

    def record(self, item: Any, key: str) -> Record:
        """The row of an item, with ``key`` if its table has no key of its own.

        Raises `RowRefused` for this item, `SinkMismatch` for its class.
        """
        plan = self._plans.get(type(item)) or self._plan(type(item))
        return Record(plan.target, plan.values(item, key))

    def _plan(self, item_class: type) -> Plan:
        if item_class not in self._options and issubclass(item_class, dict):
            if item_class is not dict:
                return self._plans.get(dict) or self._plan(dict)
            raise SinkMismatch(
                "items are plain dicts, whose fields are not known: describe them, as in "
                "REDISQ_TABLES = {'dict': {'table': 'items', 'columns': {'url': 'str'}}}, or use a "
                "class of items"
            )
        options = self._options.get(item_class, Options())
        name = options.table or table_name(item_class)
        table = None if self._metadata is None else self._metadata.tables.get(name)
        given = table is not None
        if item_class is dict and table is None and not options.columns:
            takes = f"the kinds of a dict's fields, as REDISQ_METADATA has no table {name}"
            raise wrong(item_class, "columns", {}, takes)
        if item_class is dict and table is not None and not options.columns:
            fields = {
                column.name: Field(column.name)
                for column in table.columns
                if column.name in options.key
                or (column.name not in (options.extra, KEY_COLUMN) and not has_default(column))
            }
        else:
            fields = item_fields(item_class, options.columns)
        if table is None:
            self._check_owner(item_class, name)
            table = make_table(item_class, name, fields, options, self._dialect)
        plan = make_plan(item_class, fields, options, table, given, self._dialect)
        self._pending.append(plan)
        self._plans[item_class] = plan
        return plan

    def _check_owner(self, item_class: type, name: str) -> None:
        same = name if self._dialect.name == "postgresql" else name.lower()
        owner = self._owners.setdefault(same, item_class)
        if owner is not item_class:
            raise SinkMismatch(
                f"{class_path(owner)} and {class_path(item_class)} would have the same table "
                f"{name!r}: give each a 'table' in REDISQ_TABLES, or describe one for both in "
                "REDISQ_METADATA"
            )
