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
from scrapy_redisq.pipelines.database.keys import has_default
from scrapy_redisq.pipelines.database.mapping import make_plan, make_table, table_name
from scrapy_redisq.pipelines.database.options import Options, read_options, wrong
from scrapy_redisq.pipelines.database.plans import Plan
from scrapy_redisq.pipelines.database.upsert import Record
from scrapy_redisq.settings.sinks import SinkSettings


class Tables:
    """What is written where.

    A class of items has the table that ``REDISQ_TABLES`` names, else the one called like it in
    snake case; in the project's `MetaData` if it is there, which is used as it is, else one of our
    own. Names in `Target` and `Record` are keys of the table's columns, which are their names if a
    project's column has no other key. Records of one target have the same columns all, but for
    those that are left to the database.

    `record` may run while `prepare` does so in another thread, once that was called for the first
    time. Raises `SettingError` for what is wrong in the settings, `SinkMismatch` for classes that
    do not fit the project's tables.
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
        """Make the tables that are missing and compare the others with the items.

        All that are known and have not been prepared; without any it does nothing. ``begin`` gives
        a transaction, which is committed at its end: one of their own, because tables that are made
        in that of a batch are rolled back with it. Several workers may do so at the same moment.
        Raises `SinkMismatch`; errors of the database go through, and the same is done at the next
        call.
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
        """The row of an item.

        ``key``: 32 hexadecimal characters, the same when the item is scraped again, for tables
        whose rows have no key of their own. Raises `RowRefused` for this item, `SinkMismatch` for
        its class. A table that is new is made by the next `prepare`.
        """
        plan = self._plans.get(type(item)) or self._plan(type(item))
        return Record(plan.target, plan.values(item, key))

    def take_keys(self, item_class: type) -> bool:
        """Whether `record` uses the key that it is given. Raises `SinkMismatch`."""
        plan = self._plans.get(item_class) or self._plan(item_class)
        return plan.key_column is not None

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
        table = self._given_table(item_class)
        given = table is not None
        if item_class is dict and not given and not options.columns:
            takes = (
                "the kinds of a dict's fields, as REDISQ_METADATA has no table "
                f"{self._full_name(item_class)}"
            )
            raise wrong(item_class, "columns", {}, takes)
        fields = self._fields(item_class, options, table)
        if table is None:
            table = self._own_table(item_class, fields, options)
        plan = make_plan(item_class, fields, options, table, given, self._dialect)
        self._pending.append(plan)
        self._plans[item_class] = plan
        return plan

    def _fields(
        self, item_class: type, options: Options, table: sqlalchemy.Table | None
    ) -> dict[str, Field]:
        if item_class is dict and table is not None and not options.columns:
            return {
                column.name: Field(column.name)
                for column in table.columns
                if column.name in options.key
                or (column.name not in (options.extra, KEY_COLUMN) and not has_default(column))
            }
        return item_fields(item_class, options.columns)

    def _full_name(self, item_class: type) -> str:
        options = self._options.get(item_class)
        return options.table if options and options.table else table_name(item_class)

    def _given_table(self, item_class: type) -> sqlalchemy.Table | None:
        if self._metadata is None:
            return None
        return self._metadata.tables.get(self._full_name(item_class))

    def _own_table(
        self, item_class: type, fields: Mapping[str, Field], options: Options
    ) -> sqlalchemy.Table:
        """A table of our own."""
        full_name = self._full_name(item_class)
        name = full_name if self._dialect.name == "postgresql" else full_name.lower()
        owner = self._owners.setdefault(name, item_class)
        if owner is not item_class:
            raise SinkMismatch(
                f"{class_path(owner)} and {class_path(item_class)} would have the same table "
                f"{full_name!r}: give each a 'table' in REDISQ_TABLES, or describe one for both in "
                "REDISQ_METADATA"
            )
        return make_table(item_class, fields, options, self._dialect, sqlalchemy.MetaData())
