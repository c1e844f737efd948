"""What the spiders crawl: a site of which each spider has two hosts of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from lab.site import Answer, Hit, Site

Page = str | Answer | Callable[[Hit, int], "Answer | str | None"]
"""The function is given a hit, and how often this page has been asked for, from 1."""

Pages = Mapping[str, Page]


def links(*targets: str) -> str:
    """A page that links to these."""
    anchors = "".join(f'<a href="{target}">{target}</a>' for target in targets)
    return f"<html><title>{len(targets)}</title><body>{anchors}</body></html>"


def redirect(target: str, status: int = 302) -> Answer:
    return Answer(status=status, headers={"Location": target})


def echo(*headers: str) -> Page:
    """A page of some of the headers that it was asked for with."""

    def page(hit: Hit, visit: int) -> str:
        told = [hit.headers.get(name.lower(), "") for name in headers]
        told = ["; ".join(sorted(value.split("; "))) for value in told]  # cookies come in any order
        return "; ".join(f"{name}={value}" for name, value in zip(headers, told, strict=True))

    return page


def posted(hit: Hit, visit: int) -> str:
    """A page of what was sent to it."""
    return f"{hit.method} {hit.headers.get('content-type', '')} {hit.body.decode()}"


class Hosts(Site):
    """The hosts of all spiders: of each by its number one for its pages, and another one."""

    def __init__(self, pages: list[Pages]) -> None:
        super().__init__(lambda path: None, hosts=2 * len(pages))
        self._pages = pages
        self._visits: Counter[tuple[str, str]] = Counter()

    def main(self, number: int) -> str:
        return f"http://127.0.0.{2 * number + 1}:{self.port}"

    def other(self, number: int) -> str:
        return f"http://127.0.0.{2 * number + 2}:{self.port}"

    def answer(self, hit: Hit) -> Answer | str | None:
        number = int(hit.host.partition(":")[0].rpartition(".")[2]) - 1
        self._visits[hit.host, hit.path] += 1
        page = self._pages[number // 2].get(hit.path)
        return page(hit, self._visits[hit.host, hit.path]) if callable(page) else page

    def fetched(self, number: int) -> Counter[str]:
        """How often each page of a spider was fetched, and with what."""
        names = {self.main(number): "", self.other(number): "other:"}
        return Counter(
            " ".join(filter(None, [hit.method, names[url] + hit.path, hit.body.decode("latin-1")]))
            for hit in self.hits
            if (url := f"http://{hit.host}") in names
        )
