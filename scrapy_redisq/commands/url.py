"""``scrapy redisq url``: what became of a URL; forget it, fetch it again."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from scrapy_redisq.commands.display import ago, clean, console, sentence
from scrapy_redisq.commands.options import add_command, add_json, add_name
from scrapy_redisq.commands.project import Project, check_known
from scrapy_redisq.control import Frontier
from scrapy_redisq.control.words import counted, time_text, utc

STYLES = {"dead": "bold red", "unknown": "yellow", "leased": "green", "queued": "green"}

TEXT = """\
Show what became of a URL: whether it was seen, and where its request is: queued, delayed (until
when), with a worker (which, since when), dead (why). Up to 100,000 requests of its slot are looked
at, a few at a time, so that a running crawl does not wait for it.
"""


def add_options(commands: Any) -> None:
    """The sub command and its options."""
    help = "what became of a URL; forget it, fetch it again"
    url = add_command(commands, "url", run, help=help, text=TEXT, check=_check)
    add_name(url)
    url.add_argument("urls", metavar="URL", nargs="*", help="of a GET request")
    url.add_argument("--slot", metavar="S", help="its download_slot; default: its host")
    url.add_argument(
        "--host", metavar="H", help="with --forget: all URLs of this host that REDISQ_HISTORY has"
    )
    add_json(url, "as a JSON object for each URL, a line each")
    action = url.add_mutually_exclusive_group()
    action.add_argument(
        "--forget",
        action="store_true",
        help="let it count as never seen (ExactDupeFilter alone can): the next link is followed",
    )
    action.add_argument(
        "--fetch",
        action="store_true",
        help="fetch it again: a dead letter as it was, else as a new request of parse(). What "
        "waits anyway is left alone",
    )


def _check(arguments: Namespace) -> None:
    if bool(arguments.urls) == bool(arguments.host) or (arguments.host and not arguments.forget):
        arguments.error("either URLs, or --forget --host HOST")


def run(arguments: Namespace, project: Project) -> int:
    """Look, forget or fetch again; 1 if a URL cannot be one, or was not there to be forgotten."""
    project.check_something_is_there()
    with (
        project.server(to_write=arguments.fetch or arguments.forget) as server,
        project.frontier_to_push(server, arguments.name) as frontier,
    ):
        check_known(frontier)
        if arguments.host:
            return _forget_host(arguments, frontier)
        wrong = False
        for one in arguments.urls:
            try:
                _do(arguments, one, frontier)
            except ValueError as error:
                print(f"scrapy redisq: {clean(str(error))}", file=sys.stderr)
                wrong = True
    return int(wrong)


def _forget_host(arguments: Namespace, frontier: Frontier) -> int:
    number = frontier.forget_host(arguments.host)
    if arguments.json:
        told = {"frontier": frontier.name, "host": arguments.host, "forgotten": number}
        print(json.dumps(told))
    else:
        print(
            f"{clean(frontier.name)}: {number:,} URLs of {clean(arguments.host)} count as never "
            "seen. Those that the history does not have stay seen"
        )
    return int(not number)


HOW = {
    "waits": "It will be fetched anyway: nothing was done.",
    "requeued": "It is tried again, from the front of its queue.",
    "pushed": "It was pushed as a new request, past the dupefilter.",
}


def _do(arguments: Namespace, url: str, frontier: Frontier) -> None:
    slot = arguments.slot
    if arguments.forget and not frontier.forget(url, slot=slot):
        raise ValueError(f"{url} has not been seen: there is nothing to forget")
    told = frontier.fetch_again(url, slot=slot) if arguments.fetch else frontier.url(url, slot=slot)
    if arguments.json:
        forgotten = {"forgotten": True} if arguments.forget else {}
        print(json.dumps({"frontier": frontier.name, **told, **forgotten}))
        return
    if arguments.forget:
        print(f"{clean(frontier.name)}: {clean(url)} counts as never seen")
        return
    out, state = console(), told["state"]
    out.print(Text.assemble((state, STYLES.get(state, "bold")), "  ", clean(told["url"])))
    for line in (*sentences(told), HOW.get(told.get("how", ""), "")):
        if line:
            out.print(sentence(line))


def sentences(told: Mapping[str, Any]) -> list[str]:
    """The reply of `Frontier.url`, for people."""
    lines = [_where(told), *_history(told["history"])]
    died = told["deliveries"]
    if died:
        lines.append(
            f"{died:,} of its workers died with it." if died > 1 else "A worker died with it."
        )
    if told["seen"] is None:
        lines.append("Whether it was seen is known to the project's own dupefilter alone.")
    elif told["seen"] and not told["certain"] and told["state"] == "seen":
        lines.append("That it was seen is what a Bloom filter says, which errs now and then.")
    if not told["looked_through"] and told["state"] in {"seen", "unknown"}:
        lines.append(
            f"Not all requests of {told['slot']} could be looked at ({told['looked_at']:,} were): "
            "it may wait among the others."
        )
    return lines


def _history(record: Mapping[str, Any] | None) -> list[str]:
    """The record that is kept since the request was finished last."""
    if record is None:
        return []
    how = "fetched" if record["outcome"] == "done" else f"given up ({record['outcome']})"
    answer = f"status {record['status']}" if record["status"] else "no answer"
    return [
        f"It was {how} {ago(utc(record['ended']))} ago by worker {record['worker']}: {answer}, "
        f"{counted(record['items'], 'item')}, {counted(record['attempts'], 'attempt')}, "
        f"{record['seconds']:,.1f} s."
    ]


def _where(told: Mapping[str, Any]) -> str:
    state = told["state"]
    if state == "leased":
        since = f", since {ago(told['since'])}" if told["since"] else ""
        return f"Worker {told['worker']} has it{since}."
    if state == "delayed":
        return f"It waits for its time, due in {time_text(told['due_in'])} ({told['due']})."
    if state == "queued":
        return (
            f"It waits in the queue of {told['slot']}, priority {told['priority']}, behind "
            f"{told['before']:,} others of that."
        )
    if state == "dead":
        status = f" ({told['status']})" if told["status"] else ""
        return (
            f"It is dead letter {told['letter']}: {told['reason']}{status}, {ago(told['at'])} ago. "
            f"{told['detail'].splitlines()[0] if told['detail'] else ''}"
        ).strip()
    if state == "done":
        return "Nothing of it waits."
    if state == "seen":
        return "It was asked for, and nothing of it waits: it was fetched, or dropped by hand."
    return "It has not been asked for in this run, or it was forgotten since (REDISQ_SEEN_TTL)."
