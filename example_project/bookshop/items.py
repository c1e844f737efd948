"""What the spider finds. The URL is the key of both: the same page seen again is the same row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Page:
    """Any page of the shop, books included."""

    url: str
    kind: str
    title: str
    found_on: str


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
