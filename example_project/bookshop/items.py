"""What the spider finds. `REDISQ_TABLES` in the settings makes a table of each, keyed by URL."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Page:
    """Any page of the shop, books included. ``worker`` is the pid of the process that read it."""

    url: str
    kind: str
    title: str
    found_on: str
    worker: int


@dataclass
class Book:
    """One book. ``price`` is in cents, ``rating`` goes from 1 to 5."""

    url: str
    title: str
    author: str
    category: str
    price: int
    rating: int
    in_stock: bool
