"""What the spiders put into databases."""

from dataclasses import dataclass
from datetime import datetime


@dataclass
class Page:
    url: str
    page: int
    fetched_at: datetime


@dataclass
class Fact:
    """One of several on a page; nothing in it is a key."""

    page: int
    number: int
