"""Constants of the package that a test makes smaller: it has no hour."""

import json
from pkgutil import resolve_name

from msgspec import Struct
from msgspec.structs import replace


class Constants:
    """Sets what `tests.harness.crawl.constants` says: values of modules, classes or objects."""

    def update_settings(self, settings):
        for place, value in json.loads(settings.get("CONSTANTS", "{}")).items():
            path, _, name = place.rpartition(".")
            owner = resolve_name(path)
            assert isinstance(getattr(owner, name), (int, float))
            if isinstance(owner, Struct):  # the name of its module stands for another one
                module, _, holder = path.rpartition(".")
                setattr(resolve_name(module), holder, replace(owner, **{name: value}))
            else:
                setattr(owner, name, value)
