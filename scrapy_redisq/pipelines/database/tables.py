"""Tables of the classes of items, and the rows that items become."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy
from itemadapter import ItemAdapter

from scrapy_redisq.errors import SettingError, SinkMismatch
from scrapy_redisq.pipelines.database import schema
from scrapy_redisq.pipelines.database.columns import KEY_COLUMN
from scrapy_redisq.pipelines.database.fields import Field, class_path, item_fields
from scrapy_redisq.pipelines.database.keys import KEY_LENGTH, has_default
from scrapy_redisq.pipelines.database.mapping import (
    make_plan,
    make_table,
    split_name,
    table_name,
)
from scrapy_redisq.pipelines.database.options import Options, read_options, wrong
from scrapy_redisq.pipelines.database.plans import Plan
from scrapy_redisq.pipelines.database.records import Record, references
from scrapy_redisq.pipelines.exact_json import json_text
from scrapy_redisq.settings.sinks import SinkSettings

_COLLECTIONS = (list, tuple, set, frozenset)


class Tables:
    """What is written where.

    A class of items has the table that ``REDISQ_TABLES`` names, else the one called like it in
    snake case; in the project's `MetaData` if it is there, which is used as it is, else one of our
    own. Names in `Target` and `Record` are keys of the table's columns, which are their names if a
    project's column has no other key. Records of one target have the same columns all, but for
    those that are left to the database.

    `records` may run while `prepare` does so in another thread, once that was called for the first
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
        self._given = dict(metadata.tables) if metadata is not None else {}
        self._plans: dict[type, Plan] = {}
        self._children: dict[tuple[type, type], Plan | None] = {}
        self._pending: list[Plan] = []
        self._owners: dict[str, tuple[type, sqlalchemy.Table]] = {}
        self._started = False
        self._begin()

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
            if not self._started:
                self._start(connection)
            pending = list(self._pending)
            own = dict.fromkeys(plan.target.table for plan in pending if not plan.given)
            schema.create(connection, own)
            for plan in pending:
                schema.check(connection, plan)
        self._started = True
        # Only here plans go, at the front; `records` adds some at the end meanwhile.
        del self._pending[: len(pending)]

    def records(self, item: Any, key: str) -> list[Record]:
        """The rows of an item, parents before children.

        ``key``: 32 hexadecimal characters, the same when the item is scraped again, for tables
        whose rows have no key of their own. Raises `RowRefused` for this item, `SinkMismatch` for
        its class. A table that is new is made by the next `prepare`.
        """
        plan = self._plans.get(type(item)) or self._plan(type(item))
        if plan.flat:
            return [Record(plan.target, plan.values(item, key))]
        records: list[Record] = []
        self._add(plan, item, key, None, records)
        return records

    def take_keys(self, item_class: type) -> bool:
        """Whether `records` uses the key that it is given. Raises `SinkMismatch`."""
        plan = self._plans.get(item_class) or self._plan(item_class)
        return plan.key_column is not None

    def _begin(self) -> None:
        self._plans.clear()
        self._children.clear()
        self._pending.clear()
        self._owners.clear()
        for item_class, options in self._options.items():
            given = self._given_table(item_class)
            if given is None and item_class is dict and not options.columns:
                continue  # the database will know its columns
            try:
                self._plan(item_class)
            except (SinkMismatch, SettingError):
                # It may still do for child rows, some of whose columns come from the parent.
                if given is None or not given.foreign_keys:
                    raise

    def _start(self, connection: sqlalchemy.Connection) -> None:
        """Take tables as they are that the settings leave to the database."""
        if self._metadata is not None:
            schema.create_given(connection, self._metadata)
        found = {}
        for item_class, options in self._options.items():
            name = options.table or table_name(item_class)
            if name in self._given:
                continue
            undescribed = item_class is dict and not options.columns
            table = schema.reflect(connection, *split_name(name))
            if table is not None and (undescribed or table.foreign_keys):
                found[name] = table
            elif undescribed:
                takes = f"the kinds of a dict's fields, as there is no table {name}"
                raise wrong(item_class, "columns", {}, takes)
        if found:
            self._given.update(found)
            self._begin()

    def _plan(self, item_class: type) -> Plan:
        """The plan for items of a class that come by themselves."""
        if item_class not in self._options and issubclass(item_class, dict):
            if item_class is not dict:
                return self._plans.get(dict) or self._plan(dict)
            raise SinkMismatch(
                "items are plain dicts, whose fields are not known: describe them, as in "
                "REDISQ_TABLES = {'dict': {'table': 'items', 'columns': {'url': 'str'}}}, or use a "
                "class of items"
            )
        plan = self._make(item_class, None)
        self._plans[item_class] = plan
        return plan

    def _make(self, item_class: type, parent: Plan | None) -> Plan:
        options = self._options.get(item_class, Options())
        table = self._given_table(item_class)
        given = table is not None
        fields = self._fields(item_class, options, table)
        full_name = table.fullname if table is not None else self._full_name(item_class)
        children = [
            field.name
            for field in fields.values()
            if field.items and all(self._is_child(nested, full_name) for nested in field.items)
        ]
        if table is None:
            columns = {name: fields[name] for name in fields if name not in children}
            table = self._own_table(item_class, columns, options)
        foreign = {} if parent is None else self._foreign(item_class, table, parent)
        plan = make_plan(
            item_class, fields, children, options, table, foreign, given, self._dialect
        )
        self._pending.append(plan)
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
        return self._given.get(self._full_name(item_class))

    def _own_table(
        self, item_class: type, fields: Mapping[str, Field], options: Options
    ) -> sqlalchemy.Table:
        """A table of our own, which two classes may share if both are told to."""
        full_name = self._full_name(item_class)
        name = full_name if self._dialect.name == "postgresql" else full_name.lower()
        table = make_table(item_class, fields, options, self._dialect, sqlalchemy.MetaData())
        if name not in self._owners:
            self._owners[name] = (item_class, table)
            return table
        owner, made = self._owners[name]
        told = all(self._options.get(each, Options()).table for each in (owner, item_class))
        if told and _shape(made) == _shape(table):
            return made
        words = (
            f"{class_path(owner)} and {class_path(item_class)} would have the same table "
            f"{full_name!r}"
        )
        if told:
            raise wrong(item_class, "table", full_name, f"one table a class: {words}")
        raise SinkMismatch(f"{words}: give each a 'table' in REDISQ_TABLES")

    def _is_child(self, item_class: type, parent_table: str) -> bool:
        table = self._given_table(item_class)
        return (
            table is not None
            and not issubclass(item_class, dict)
            and ItemAdapter.is_item_class(item_class)
            and any(other.fullname == parent_table for other in references(table).values())
        )

    def _foreign(self, item_class: type, table: sqlalchemy.Table, parent: Plan) -> dict[str, str]:
        """Columns of a child's table that refer to the parent's, and which they refer to."""
        path, above = class_path(item_class), parent.target.table
        to_above = [
            key for key, other in references(table).items() if other.fullname == above.fullname
        ]
        if len(to_above) > 1:
            raise SinkMismatch(
                f"{path}: table {table.fullname} has {len(to_above)} foreign keys to "
                f"{above.fullname}, and which one ties rows to their parents is not known"
            )
        foreign = {}
        filled = {filled.column for filled in parent.filled} | {parent.key_column}
        for element in to_above[0].elements:
            (column,) = (c for c in above.columns if c.name == element.column.name)
            if column.key not in filled and column.key not in dict(parent.foreign):
                raise SinkMismatch(
                    f"{path}: {table.fullname}.{element.parent.name} refers to {above.fullname}."
                    f"{column.name}, which no field fills; let it refer to a column that is known "
                    f"before the row is written: {', '.join(parent.target.key)}"
                )
            foreign[element.parent.key] = column.key
        return foreign

    def _add(
        self, plan: Plan, item: Any, key: str, parent: Record | None, records: list[Record]
    ) -> None:
        values = plan.values(item, key)
        if parent is not None:
            for column, above in plan.foreign:
                if values.get(column) is None:
                    values[column] = parent.values[above]
        record = Record(plan.target, values)
        records.append(record)
        left = plan.leftovers(item)
        for name in (*plan.children, *left):
            value = left[name] if name in left else plan.get(item, name)
            if value is None or self._add_nested(plan, record, name, value, records):
                left.pop(name, None)
            else:
                left[name] = value
        if left or plan.extra is not None:
            plan.put_extra(values, left)

    def _add_nested(
        self, plan: Plan, record: Record, name: str, value: Any, records: list[Record]
    ) -> bool:
        """Add child records if all that the field holds are items with a table for them."""
        nested = value if isinstance(value, _COLLECTIONS) else (value,)
        if not nested:
            return name in plan.children or plan.extra is None
        plans = [self._child_plan(type(each), plan) for each in nested]
        if not all(plans):
            return False
        if isinstance(value, (set, frozenset)):
            nested = sorted(nested, key=json_text)  # so that each has the same place next time
        for index, (child, each) in enumerate(zip(plans, nested, strict=True)):
            assert child is not None
            self._add(child, each, _child_key(record, name, index), record, records)
        return True

    def _child_plan(self, item_class: type, parent: Plan) -> Plan | None:
        relation = item_class, parent.item_class
        if relation not in self._children:
            is_child = self._is_child(item_class, parent.target.table.fullname)
            self._children[relation] = self._make(item_class, parent) if is_child else None
        return self._children[relation]


def _shape(table: sqlalchemy.Table) -> list[tuple[str, str, bool | None, bool]]:
    return [
        (column.name, repr(column.type), column.nullable, column.primary_key)
        for column in table.columns
    ]


def _child_key(parent: Record, name: str, index: int) -> str:
    """The key of a child row without one of its own: from the parent's key and its place there."""
    key = [str(parent.values[column]) for column in parent.target.key]
    place = json.dumps([parent.target.table.fullname, key, name, index])
    return hashlib.blake2b(place.encode(), digest_size=KEY_LENGTH // 2).hexdigest()
