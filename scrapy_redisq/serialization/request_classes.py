"""Scrapy's request classes, and the codes that stand for them in entries."""

from __future__ import annotations

from scrapy.http import FormRequest, JsonRequest, Request, XmlRpcRequest

from scrapy_redisq.serialization.entries import RequestClass

REQUEST = RequestClass.of(Request, "")

SCRAPY_CLASSES = (
    REQUEST,
    RequestClass.of(FormRequest, "F"),
    RequestClass.of(JsonRequest, "J"),
    RequestClass.of(XmlRpcRequest, "X"),
)

CODES = {kind.code: kind.cls.__name__ for kind in SCRAPY_CLASSES}
