"""Of a robots.txt as much as can be parsed, and asked about, in a bounded time."""

from __future__ import annotations

import re

from scrapy_redisq.frontier.shared_robots import MAX_TEXT

MAX_COST = 10_000
"""Rules for this crawler that are heeded, each counted once for each user agent of its group. They
take about 0.3 s to parse and up to some milliseconds for each URL."""

MAX_COST_OF_OTHERS = 2_000
"""The same for rules that are for other user agents, and for site maps."""

WILDCARD_COST = 10
"""A rule with a wildcard is compared with each URL; all others are looked for at once."""

MAX_AGENTS = 100
"""User agents of one group."""

MAX_LINE = 2_000
"""Characters of a line. Longer ones are no rules that any URL needs."""

_AGENT = re.compile(r"user[-\s]*agent\s*:?\s*(.*)", re.IGNORECASE)
_OF_GROUP = re.compile(r"(crawl[-\s]delay|request[-\s]rate|visit[-\s]time)", re.IGNORECASE)
_RULE = re.compile(r"(allow|d[ias]+l+[oa]w)\b", re.IGNORECASE)  # also what Protego takes for one
_OF_SITE = re.compile(r"(site-?maps?|host)\b", re.IGNORECASE)


def condensed(text: bytes, agent: str) -> tuple[bytes, bool]:
    """The lines of ``text`` that are worth parsing for a crawler that calls itself ``agent``.

    -> them, and whether rules were left out because there are too many. They are the first ones of
    each kind. Takes a time that grows with `MAX_TEXT` only.
    """
    if len(text) > MAX_TEXT:
        # Half a rule may forbid more than the whole one.
        text = text[: max(0, text.rfind(b"\n", 0, MAX_TEXT))]
    agent = agent.lower()
    left = {True: MAX_COST, False: MAX_COST_OF_OTHERS}
    kept: list[str] = []
    too_many = in_head = ours = False
    agents = 0
    for whole_line in text.decode("utf-8-sig", "ignore").splitlines():
        line = whole_line.partition("#")[0].strip()
        if not line or len(line) > MAX_LINE:
            continue
        if named := _AGENT.match(line):
            if not in_head:
                in_head, ours, agents = True, False, 0
            name = named[1].lower()
            is_ours = name.replace("*", "") in agent  # also of "*"
            ours = ours or is_ours
            agents += 1 if name == "*" or "*" not in name else 2  # with and without it
            if agents > MAX_AGENTS and not is_ours:
                continue
        elif _RULE.match(line):
            in_head = False
            special = "*" in line or line.endswith("$")
            cost = min(agents, 2 * MAX_AGENTS) * (WILDCARD_COST if special else 1)
            if cost > left[ours]:
                too_many = too_many or ours
                continue
            left[ours] -= cost
        elif _OF_GROUP.match(line):
            in_head = False
        elif _OF_SITE.match(line) and left[False]:
            left[False] -= 1
        else:
            continue
        kept.append(line)
    return "\n".join(kept).encode(), too_many
