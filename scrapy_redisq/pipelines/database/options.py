"""REDISQ_TABLES: what it says about each class of items, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from itemadapter import ItemAdapter
from scrapy.utils.misc import load_object

from scrapy_redisq.errors import SettingError
from scrapy_redisq.pipelines.annotations import KINDS
from scrapy_redisq.pipelines.database.fields import class_path, kind_of
from scrapy_redisq.settings.declared import SinkSettings

SETTING = SinkSettings.tables.name

_TAKES = (
    'a dict such as {"shop.items.Book": {"table": "books", "key": ["url"]}}, with import paths of '
    'item classes or "dict"'
)


Name = Annotated[str, msgspec.Meta(min_length=1)]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the items of one class are written. ``columns`` maps fields to kinds."""

    table: Name | None = None
    key: tuple[Name, ...] = ()
    on_conflict: Literal["update", "ignore"] = "update"
    version: Name | None = None
    extra: Name | None = None
    columns: Mapping[str, Any] = {}


def read_options(tables: Mapping[Any, Mapping[str, Any]]) -> dict[type, Options]:
    """The options of each class that is named; raises `SettingError`."""
    if not isinstance(tables, Mapping):
        raise SettingError(SETTING, tables, _TAKES)
    options = {}
    for named, given in tables.items():
        item_class = _item_class(named)
        if item_class in options:
            raise SettingError(SETTING, sorted(map(str, tables)), "each class once")
        options[item_class] = _options(item_class, given)
    return options


def wrong(item_class: type, option: str, value: object, takes: str) -> SettingError:
    """The error for one option of one class."""
    return SettingError(f"{SETTING}[{class_path(item_class)!r}][{option!r}]", value, takes)


def _item_class(named: Any) -> type:
    if named == "dict":
        return dict
    try:
        item_class = load_object(named) if isinstance(named, str) else named
    except Exception as problem:
        raise SettingError(SETTING, named, f"{_TAKES} ({problem})") from None
    if not isinstance(item_class, type) or not ItemAdapter.is_item_class(item_class):
        raise SettingError(SETTING, named, f"{_TAKES}; this is no class of items")
    return item_class


def _options(item_class: type, given: Any) -> Options:
    name = f"{SETTING}[{class_path(item_class)!r}]"
    takes = f"a dict with some of {', '.join(Options.__struct_fields__)}"
    if not isinstance(given, Mapping):
        raise SettingError(name, given, takes)
    read = dict(given)
    if isinstance(key := read.get("key"), str):
        read["key"] = [key]
    try:
        options = msgspec.convert(read, Options)
    except msgspec.ValidationError as problem:
        raise SettingError(name, given, f"{takes} ({problem})") from None
    if len(set(options.key)) < len(options.key):
        raise wrong(item_class, "key", key, "each name once")
    columns = _columns(item_class, options.columns)
    return msgspec.structs.replace(options, columns=columns)


def _columns(item_class: type, given: Mapping[str, Any]) -> dict[str, str]:
    takes = f"a dict of fields with one of {', '.join(KINDS)}"
    fields = ItemAdapter.get_field_names_from_class(item_class)
    columns = {}
    for name, kind in given.items():
        if fields is not None and name not in fields:
            raise wrong(item_class, "columns", name, f"fields of the class: {', '.join(fields)}")
        try:
            columns[name] = kind_of(kind)
        except ValueError:
            raise wrong(item_class, "columns", {name: kind}, takes) from None
    return columns
