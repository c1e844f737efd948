"""Classes of requests that may be stored: Scrapy's own, and those that a setting lists."""

from __future__ import annotations

from typing import Any, NamedTuple

from scrapy.http import FormRequest, JsonRequest, Request, XmlRpcRequest
from scrapy.utils.misc import load_object

from scrapy_redisq.errors import SettingError, Unserializable, reason
from scrapy_redisq.serialization.values import type_name


class RequestClass(NamedTuple):
    """A request class that may be stored, the code that entries hold for it ('': Request), and
    its constructor's attributes beside those of Request."""

    cls: type[Request]
    code: str
    extra: tuple[str, ...]

    @classmethod
    def of(cls, request_class: type[Request], code: str) -> RequestClass:
        extra = [name for name in request_class.attributes if name not in Request.attributes]
        return cls(request_class, code, tuple(extra))

    @classmethod
    def listed(cls, given: type | str) -> RequestClass:
        """One of ``REDISQ_REQUEST_CLASSES``. Raises `SettingError` for what is none."""
        try:
            loaded = load_object(given) if isinstance(given, str) else given
            if not issubclass(loaded, Request):
                raise TypeError("it is none")
        except Exception as error:
            takes = f"subclasses of scrapy.Request or their import paths ({reason(error)})"
            raise SettingError("REDISQ_REQUEST_CLASSES", given, takes) from error
        return cls.of(loaded, type_name(loaded))

    def extra_of(self, request: Request) -> dict[str, Any]:
        """What the request has beside the attributes of Request. Raises `Unserializable`."""
        try:
            extra = {name: getattr(request, name) for name in self.extra}
        except Exception as error:
            # A property of the project's own class; the request can still be run locally.
            raise Unserializable(f"{type_name(self.cls)}: {reason(error)}") from error
        if self.cls is JsonRequest and extra["dumps_kwargs"] == {"sort_keys": True}:
            del extra["dumps_kwargs"]  # the constructor fills that in
        return extra


REQUEST = RequestClass.of(Request, "")

SCRAPY_CLASSES = (
    REQUEST,
    RequestClass.of(FormRequest, "F"),
    RequestClass.of(JsonRequest, "J"),
    RequestClass.of(XmlRpcRequest, "X"),
)

CODES = {kind.code: kind.cls.__name__ for kind in SCRAPY_CLASSES}
