"""A site drawn by a seed, what its pages ask for, and what must come of a crawl of it."""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lab.simulation.plan import Plan

DELAY = 0.4
"""Seconds between two starts at a host with a limit."""

RATE, BURST = 2.5, 2
"""Starts a second at host 0 with a rate, and how many may come at once."""

RETRY_AFTER = 2
"""Seconds for which a host asks to be left alone."""

RETRY_TIMES = 2

RETRY_DELAY, LONGER_DELAY = 0.2, 2
"""Seconds until a request is tried again, and where its answer says so."""

NEVER = 1_000
"""Answers."""

SLOWEST = 0.3
"""Seconds that a page takes at most."""

MANY = 40
"""Requests that the first page asks for with a lambda, if it asks for many."""


@dataclass
class Page:
    """``answers``: statuses before the page itself, 0 for no answer; as many as `NEVER`: it never
    answers well. ``hidden``: so many pages that it asks for with a lambda. ``deep``: each of those
    asks for more, also with a lambda. ``hidden_fails``: then it raises. ``shared``: a page that
    others ask for with a lambda, too. ``tries``: its callback asks so often to be tried again.
    ``retry_after``: the answers say for how long to stay away. ``kills``: the worker that fetches
    it. ``heavy``: its leaves are of megabytes.
    ``session``: what is hidden shares a session with it, and could be stored. ``fails_again``: to
    fetch it once more fails once. ``waits_longer``: its answers say for how long to wait, but the
    host is in no trouble."""

    number: int
    host: int
    links: list[int] = field(default_factory=list)
    priorities: dict[int, int] = field(default_factory=dict)
    delays: dict[int, float] = field(default_factory=dict)
    leaves: int = 0
    chain: int = 0
    hidden: int = 0
    answers: list[int] = field(default_factory=list)
    redirect: int | None = None
    raises: bool = False
    item_raises: bool = False
    slow: float = 0.0
    side: bool = False
    shared: int | None = None
    refused: bool = False
    retry_after: bool = False
    closes: bool = False
    deep: bool = False
    hidden_fails: bool = False
    kills: bool = False
    heavy: bool = False
    tries: int = 0
    session: bool = False
    fails_again: bool = False
    waits_longer: bool = False
    seconds: float = 0.05

    @property
    def url(self) -> str:
        return f"http://h{self.host}.sim/{self.number}"

    @property
    def most_requests(self) -> int:
        """How many requests that can be stored it asks for at most."""
        return len(self.links) + self.leaves + bool(self.chain) + 2 * self.tries + self.hidden + 1


class Site:
    """All pages, and a log of what was asked for: (virtual second, host, path, worker)."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        chance = random.Random(f"site {plan.seed}")
        later = random.Random(f"more of site {plan.seed}")
        self.pages = [self._page(chance, later, number) for number in range(plan.pages)]
        for page in self.pages:
            page.links = [link for link in page.links if link < plan.pages]
            if page.redirect is not None and page.redirect >= plan.pages:
                page.redirect = None
        for number in range(1, plan.pages):  # each is linked by one before it
            before = self.pages[(number - 1) // 3]
            if number not in before.links:
                before.links.append(number)
        if "poison" in plan.features:
            page = self.pages[later.randrange(1, plan.pages)]
            page.kills, page.answers, page.redirect = True, [], None
        for page in self.pages:
            if page.redirect is not None:  # its retries count there
                self.pages[page.redirect].tries = 0
        for page in reversed(self.pages):
            if page.redirect is not None or page.closes:
                page.raises = False
            # Scrapy counts the retries of a request over its redirects.
            if page.redirect is not None and self._failures(page) > RETRY_TIMES:
                page.answers = []
        starts = [0, *self.pages[0].links[:2]] if "cookies" in plan.features else [0]
        self.starts = list(dict.fromkeys(starts))
        several = {*self.starts, *(page.redirect for page in self.pages)}
        for page in self.pages:
            drawn = random.Random(f"again {plan.seed} {page.number}").random() < 0.3
            page.fails_again = (
                drawn
                and "fails_again" in plan.features
                and page.number not in several
                and page.redirect is None
                and not (page.answers or page.tries or page.kills)
            )
            drawn = random.Random(f"longer {plan.seed} {page.number}").random() < 0.5
            page.waits_longer = drawn and "waits_longer" in plan.features
        self.log: list[tuple[float, str, str, int]] = []
        self.hits: Counter[str] = Counter()
        self.begun: dict[str, list[float]] = defaultdict(list)
        self.rivals: dict[str, list[float]] = defaultdict(list)
        """The same of another crawl."""
        self.active: Counter[tuple[str, int]] = Counter()
        """Downloads that go on, by host and worker."""
        self.going_on: Counter[tuple[str, int]] = Counter()
        """The same by request and worker."""
        self.at_once: list[tuple[float, str, int]] = []
        """When a worker began to fetch what it was fetching."""
        self.not_before: dict[str, float] = {}
        """Requests whose last answer was a failure, and until when they are not tried again."""
        self.hasty: list[tuple[float, str]] = []
        """When one was tried again too soon."""
        self.crowded: list[tuple[float, str, int]] = []
        """When one began at a host where others went on, as a worker that lives would know, and how
        many."""
        self.away: dict[str, float] = {}
        """Hosts that answer nothing but 503, and when they first did: infinity, not yet."""
        self.pressed: list[tuple[float, str]] = []
        """When more than one download went on at such a host."""
        self.asked_for: dict[int, float] = {}
        """Pages, and when a link to each was found first."""
        self.sent_away: list[tuple[float, str]] = []
        """When a host asked to be left alone."""
        self.closed = False

    def _failures(self, page: Page) -> int:
        """How often a request of it fails until it leads to something."""
        after = 0 if page.redirect is None else self._failures(self.pages[page.redirect])
        return len(page.answers) + after

    def requests_of(self, number: int) -> set[str]:
        """URLs of the requests that may fetch this page: its own and what redirects to it."""
        urls = {self.pages[number].url}
        for page in self.pages[:number]:
            if page.redirect == number:
                urls |= self.requests_of(page.number)
        return urls

    def is_of_start(self, number: int) -> bool:
        """Whether a start request may fetch this page."""
        return any(self.pages[one].url in self.requests_of(number) for one in self.starts)

    def _page(self, chance: random.Random, later: random.Random, number: int) -> Page:
        """``later``: of features that came later, so that a seed's site stays as it was."""
        has = self.plan.features.__contains__

        def often(feature: str, share: float, chance: random.Random = chance) -> bool:
            drawn = chance.random() < share  # also where it is of no use: others stay as they are
            return has(feature) and drawn

        page = Page(number, chance.randrange(self.plan.hosts))
        page.links = [chance.randrange(max(1, number), 100) for _ in range(chance.randrange(5))]
        page.links += [chance.randrange(0, number + 1) for _ in range(chance.randrange(3))]
        if often("priorities", 0.5):
            page.priorities = {link: chance.randrange(-2, 3) for link in page.links}
        if often("delays", 0.1):
            page.delays = {link: chance.choice([0.2, 2.0]) for link in page.links[:1]}
        page.leaves = chance.randrange(1, 4) if often("leaves", 0.3) else 0
        page.chain = chance.randrange(1, 6) if often("chains", 0.1) else 0
        page.hidden = chance.randrange(1, 3) if often("hidden", 0.15) else 0
        if often("failures", 0.15):
            page.answers = [chance.choice([500, 502, 0]) for _ in range(chance.randrange(1, 3))]
        if often("trouble", 0.1):
            page.answers = [503] * chance.randrange(1, 3)
        if often("give_up", 0.06) and number:
            page.answers = [500] * NEVER
        page.raises = often("raises", 0.06) and number > 0
        page.item_raises = often("item_raises", 0.06)
        if often("redirects", 0.1) and number > 2:
            page.redirect = chance.randrange(number + 1, number + 9)
        page.slow = chance.choice([0.1, 1.5]) if often("slow_callbacks", 0.2) else 0.0
        page.side = often("side", 0.1)
        page.closes = often("close_spider", 0.04)
        if often("big", 0.05):
            page.links += [chance.randrange(0, 100) for _ in range(100)]
        page.seconds = chance.choice([0.01, 0.05, 0.05, SLOWEST])
        page.shared = later.randrange(3) if often("shared_hidden", 0.15, later) else None
        page.refused = often("refused_rows", 0.06, later)
        if often("retry_after", 0.06, later) and not page.answers:
            page.answers, page.retry_after = [later.choice([429, 503])], True
        page.deep = often("deep_hidden", 0.5, later)
        page.hidden_fails = often("hidden_fails", 0.3, later) and page.hidden > 0
        if often("tries_again", 0.1, later) and not page.answers:
            page.tries = later.randrange(1, RETRY_TIMES + 1)
        # What a session is redirected to is its own, and not the page that others have a link to.
        page.session = often("sessions", 0.5, later) and page.hidden > 0 and page.redirect is None
        page.heavy = has("heavy") and number == 0
        if has("many_hidden") and number == 0:
            page.hidden = MANY
        if page.heavy:
            page.leaves = 6
        return page

    def asked(self, at: float, host: str, path: str, worker: int, *, waits: bool) -> None:
        """``waits``: for its limits, or else it does not count for these."""
        self.log.append((at, host, path, worker))
        self.hits[path] += 1
        due = self.not_before.pop(path, -math.inf)
        if at < due and not self._has_several(path):
            self.hasty.append((at, path))
        if waits:
            self.begun[host].append(at)

    @contextmanager
    def begin(self, name: str, worker: int) -> Iterator[None]:
        """A worker fetches a request."""
        if self.going_on[name, worker] and not self._has_several(name):
            self.at_once.append((self.log[-1][0], name, worker))
        self.going_on[name, worker] += 1
        try:
            yield
        finally:
            self.going_on[name, worker] -= 1

    def _has_several(self, name: str) -> bool:
        """Several requests of one name may be there."""
        if '.same"' in name or name.partition("?")[2].startswith(("side", "shared", "own")):
            return True
        number = re.match(r"\d*", name)[0]  # type: ignore[index]
        return number != "" and (
            int(number) in self.starts or any(page.redirect == int(number) for page in self.pages)
        )

    @property
    def rows_of_tries(self) -> dict[str, int]:
        """Keys of what each try of a page asks for anew, and how many rows there are of it."""
        return {f"{page.number}.same": page.tries for page in self.pages if page.tries}

    def led_to(self, numbers: Collection[int]) -> set[int]:
        """These pages, and all that they lead to."""
        found, todo = set(numbers), list(numbers)
        while todo:
            page = self.pages[todo.pop()]
            leads = {*page.links, *([] if page.redirect is None else [page.redirect])} - found
            found |= leads
            todo += leads
        return found

    def expected(self, refused: Collection[int] = ()) -> tuple[set[str], set[int]]:
        """(Keys that must be in the sink, pages of which a dead letter must be there), without
        those that only pages lead to that were ``refused``."""
        keys: set[str] = set()
        dead: set[int] = set()
        todo, known = list(self.starts), set(self.starts)

        def ask(number: int) -> None:
            if number not in known:
                known.add(number)
                todo.append(number)

        while todo:
            page = self.pages[todo.pop()]
            if page.number in refused:
                continue
            if len(page.answers) == NEVER:
                if "errbacks" in self.plan.features:
                    keys.add(f"{page.number}.caught")
                else:
                    dead.add(page.number)
                continue
            if page.redirect is not None:
                ask(page.redirect)
                continue
            if page.kills:
                dead.add(page.number)
                continue
            name = f"{page.number}"
            if page.item_raises or page.raises or page.refused or page.hidden_fails:
                dead.add(page.number)
            if not (page.item_raises or page.refused):
                keys.add(name)
            if page.shared is not None:
                keys.add(f"shared{page.shared}")
            keys |= {f"{name}.leaf{n}" for n in range(page.leaves)}
            keys |= {f"{name}.try{n}" for n in range(page.tries)}
            if page.tries:
                keys.add(f"{name}.same")
            keys |= {f"{name}.chain{n}" for n in range(page.chain)}
            for kind in ("hidden", "deep", "deeper")[: 3 if page.deep else 1]:
                keys |= {f"{name}.{kind}{n}" for n in range(page.hidden)}
            for link in page.links:
                ask(link)
        if "cookies" in self.plan.features:
            keys |= {f"start{n}" for n in range(3)}
        if "own_starts" in self.plan.features:
            keys.add("own")
        return keys, dead
