"""Constants of the package that a test makes smaller: it has no hour."""

import json
from dataclasses import is_dataclass
from pkgutil import resolve_name


class Constants:
    """Sets what `tests.harness.crawl.constants` says: values of modules, classes or objects."""

    def update_settings(self, settings):
        for place, value in json.loads(settings.get("CONSTANTS", "{}")).items():
            path, _, name = place.rpartition(".")
            owner = resolve_name(path)
            assert isinstance(getattr(owner, name), (int, float))
            is_frozen = is_dataclass(owner) and not isinstance(owner, type)
            (object.__setattr__ if is_frozen else setattr)(owner, name, value)
