"""REDISQ_TABLES: what it says about each class of items, checked."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from itemadapter import ItemAdapter
from scrapy.utils.misc import load_object

from scrapy_redisq.errors import SettingError
from scrapy_redisq.pipelines.database.fields import KINDS, class_path, kind_of
from scrapy_redisq.settings.sinks import SinkSettings

SETTING = SinkSettings.tables.name
ON_CONFLICT = ("update", "ignore")

_TAKES = (
    'a dict such as {"shop.items.Book": {"table": "books", "key": ["url"]}}, with import paths of '
    'item classes or "dict"'
)


@dataclass(frozen=True)
class Options:
    """How the items of one class are written. ``columns`` maps fields to kinds."""

    table: str | None = None
    key: tuple[str, ...] = ()
    on_conflict: str = "update"
    version: str | None = None
    extra: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)


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


def nearest(name: object, names: Iterable[str]) -> str:
    """A hint for a name that is not among ``names``, or nothing."""
    found = difflib.get_close_matches(str(name), list(names), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


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
    known = list(Options.__dataclass_fields__)
    if not isinstance(given, Mapping):
        name = f"{SETTING}[{class_path(item_class)!r}]"
        raise SettingError(name, given, f"a dict with some of {', '.join(known)}")
    for option in given:
        if option not in known:
            takes = f"no such option, but {', '.join(known)}{nearest(option, known)}"
            raise wrong(item_class, option, given[option], takes)
    read = dict(given)
    for option in ("table", "version", "extra"):
        value = read.get(option)
        if value is not None and not (isinstance(value, str) and value):
            raise wrong(item_class, option, value, "a name")
    key = read.get("key") or ()
    read["key"] = key = (key,) if isinstance(key, str) else key
    if not isinstance(key, (list, tuple)) or not all(isinstance(name, str) for name in key):
        raise wrong(item_class, "key", key, "a list of names of columns")
    if len(set(key)) < len(key):
        raise wrong(item_class, "key", key, "each name once")
    read["key"] = tuple(key)
    if read.get("on_conflict", "update") not in ON_CONFLICT:
        raise wrong(item_class, "on_conflict", read["on_conflict"], "'update' or 'ignore'")
    read["columns"] = _columns(item_class, read.get("columns") or {})
    return Options(**read)


def _columns(item_class: type, given: Any) -> dict[str, str]:
    takes = f"a dict of fields with one of {', '.join(KINDS)}"
    if not isinstance(given, Mapping):
        raise wrong(item_class, "columns", given, takes)
    fields = ItemAdapter.get_field_names_from_class(item_class)
    columns = {}
    for name, kind in given.items():
        if not isinstance(name, str) or (fields is not None and name not in fields):
            hint = nearest(name, fields or ())
            raise wrong(item_class, "columns", name, f"fields of the class{hint}")
        try:
            columns[name] = kind_of(kind)
        except ValueError:
            hint = nearest(kind, KINDS)
            raise wrong(item_class, "columns", {name: kind}, f"{takes}{hint}") from None
    return columns
