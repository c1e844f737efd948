"""The sub commands and their options."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any, NoReturn

GLOBAL_OPTIONS = """\
Scrapy's own options work too, among them:
  -s NAME=VALUE   a setting, such as -s REDISQ_URL=redis://localhost:6379/0
Inside a project its settings are used. Without REDISQ_URL it is the embedded server in the
project's .scrapy/redisq (outside a project: in the current folder's).

Exit codes: 0 done, 1 it failed or was refused, 2 it was called in a wrong way.
"""

PUSH_TEXT = """\
Add requests to a frontier, and begin it if there is none. A complete one begins a new run, unless
that has a name (REDISQ_RUN): then it goes on.

A request is a URL (REDISQ_SCHEMES), or a JSON object with url and any of: method, headers, body,
cookies, meta, cb_kwargs, callback and errback (names of methods of the spider), priority,
dont_filter. Bad ones are reported with their number; the others are pushed all the same.
"""
PUSH_EXAMPLES = """\
examples:
  scrapy redisq push books https://books.example/
  scrapy redisq push books - < urls.txt
  echo '{"url": "https://books.example/1", "priority": 10, "callback": "parse_book"}' \\
      | scrapy redisq push books -
"""
STATUS_TEXT = """\
Show where a crawl stands and who works on it. Without NAME: all frontiers of the server, one line
each; if there is only one, all of it.
"""
SLOTS_TEXT = """\
Show the slots (hosts) of a frontier: how many requests wait and are with workers, when the next
may be started, the limits that hold and where they come from, what is wrong. Those that are
paused, set aside or backed off come first, then those with the most requests. A slot that has
nothing but delayed requests (retries that wait) is not listed.

Without NAME: the only frontier of the server. One that is called like an action is given after --.

Actions, each with its own help (scrapy redisq slots pause -h):
  pause    start nothing of a slot until it is resumed
  resume   let a slot go on at once, after a pause, in a back-off, or when it was set aside
  limit    give a slot another limit than that of the settings
  drop     give up a slot's requests
They take effect within a second, while the crawl runs.
"""
AUTOSCALE_TEXT = """\
Start and stop worker processes on this machine, between --min and --max, as many as have work: by
what is due and hosts' limits, and as far as CPU and memory allow. It ends with the run, and with
the workers' exit code.

All workers are in one run (REDISQ_RUN; without that setting the unfinished run's, or a new one), so
that one that is started late, or again after a crash, never begins the crawl anew. One that crashes
is replaced, after a pause that doubles up to a minute; when all end at once it is given up.

Ctrl-C and SIGTERM go on to the workers: they finish what they hold. The second time at once. One
worker too many for a while is stopped like that, the newest first. If autoscale itself is killed,
its workers stop by themselves on Linux; elsewhere they go on.
"""
AUTOSCALE_EXAMPLES = """\
examples:
  scrapy redisq autoscale -- scrapy crawl books
  scrapy redisq autoscale --min 2 --max 8 books -- uv run scrapy crawl books -a part=1
"""
EXPORTER_TEXT = """\
Answer Prometheus and autoscalers by HTTP: /metrics, of all frontiers of the server; /scale/NAME,
how many workers would have work now, within ?min= and max= (JSON); /healthz. It changes nothing.

It takes pip install "scrapy-redisq[metrics]". Anyone who reaches the address may read: the crawls'
names and figures, no host and no URL.
"""
SLOT_ACTIONS = {
    "pause": """\
Pause a slot: no worker starts a request of it until it is resumed; what is being downloaded goes
on. Its requests are kept, and the crawl stays open for them: to let it end, resume or drop them.
Holds through restarts and in the next runs.
""",
    "resume": """\
Let a slot go on at once: after a pause, in a back-off, or when it was set aside.
""",
    "limit": """\
Give a slot a limit for all workers together, in the place of that of the settings. What is left out
stays as it is; 0 takes one away. Holds through restarts and in the next runs, until --none.
""",
    "drop": """\
Give up the requests of a slot that are queued or delayed. They count as finished (dropped), so that
the crawl can end without them, and remain seen. What workers hold goes on, and what is found later
is added as ever: pause the slot first if it should get nothing more.
""",
}
URL_TEXT = """\
Show what became of a URL: whether it was seen, and where its request is: queued, delayed (until
when), with a worker (which, since when), dead (why). Up to 100,000 requests of its slot are looked
at, a few at a time, so that a running crawl does not wait for it.
"""
WORKERS_TEXT = """\
Show the workers of a frontier: what code they run, what they hold and have done, what their
processes cost (those that share a process have one HOST:PID), and whether they are quiet.

Without NAME: the only frontier of the server. One that is called like an action is given after --.

Actions, each with its own help (scrapy redisq workers quiet -h):
  quiet    claim nothing more, and finish what is held
  work     claim again
  stop     leave, as by SIGTERM
They take effect within a second. Who joins later is not told.
"""
WORKER_ACTIONS = {
    "quiet": """\
Have workers claim nothing more and finish what they hold, until they are told to work or to stop.
They stay in the crawl; with all of them quiet it stands still.
""",
    "work": """\
Let quiet workers claim requests again.
""",
    "stop": """\
Stop workers, as SIGTERM does: they finish what is being downloaded, give back what they have not
begun, and leave. Whoever has started them may start them again.
""",
}
DOCTOR_TEXT = """\
Look for what makes a crawl slow, lossy or rude: each Redis server (version, memory, persistence,
replicas, speed), the rights of its user one by one, the cluster, a frontier (what it has lost, what
it takes), and the settings of the project that fight each other. Each line says what was found,
why it matters and what to set. Nothing is changed, and a running crawl does not notice.

Without NAME: the only frontier of the server, if there is just one.

Levels: ok, note (worth knowing), warning (slow, lossy or rude in some cases), problem (it is, or no
crawl works so). Exit codes, for CI: 0 nothing is worse than a note, 1 there is a warning or a
problem, 2 it was called in a wrong way.
"""
RESET_TEXT = """\
Delete a frontier: its queue, leases, dead letters, counters and the URLs it has seen. Refused while
workers are alive; one that was killed counts as alive until its REDISQ_LEASE_TTL has passed.
"""

_WORKER = re.compile(r".+-[0-9]+-[0-9a-f]{8}|.+:[0-9]+")
"""What names a worker: its id, or its host and pid as tables have them."""

DASHBOARD_TEXT = """\
Serve pages that show all crawls of the server, and let people steer them: charts, hosts, workers,
dead letters, URLs. Runs until Ctrl-C.

On 127.0.0.1 anybody on this machine may look. On another address whoever asks needs a token: give
--token-file FILE or REDISQ_DASHBOARD_TOKEN, and put TLS in front of it.
"""

_LETTER_ID = re.compile(r"[0-9]{1,9}-[0-9]+")


class _Parser(argparse.ArgumentParser):
    """Without abbreviations: they would change their meaning with each new option."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.format_usage()}{self.prog}: {message}\n")


_ACTIONS = {"slots": SLOT_ACTIONS, "workers": WORKER_ACTIONS}


class _Commands(_Parser):
    """All of ``scrapy redisq``. An action of slots or workers is a command of its own, because
    argparse knows no name that may be left out beside sub commands."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if args[1:] and args[1] in _ACTIONS.get(args[0], ()):
            args = [f"{args[0]} {args[1]}", *args[2:]]
        if list(args[:1]) == ["autoscale"] and "--" in args:
            at = list(args).index("--")
            namespace = namespace or argparse.Namespace()
            namespace.worker, args = args[at + 1 :], args[:at]
        parsed, rest = super().parse_known_args(args, namespace)
        if "words" in parsed:
            _name_workers(parsed)
        return parsed, rest


def _name_workers(arguments: argparse.Namespace) -> None:
    """``words`` are the frontier, which may be left out, and workers."""
    words: list[str] = arguments.words
    has_name = bool(words) and (arguments.all or not _WORKER.fullmatch(words[0]))
    arguments.name, arguments.ids = (words[0], words[1:]) if has_name else (None, words)
    if bool(arguments.ids) == arguments.all:
        arguments.error("either --all, or workers as 'scrapy redisq workers' shows them")


def _letter_id(text: str) -> str:
    if not _LETTER_ID.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the id of a dead letter, such as 0-17")
    return text


def _limit(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number (0: no limit)")
    return min(int(text), sys.maxsize)


def make_parser() -> argparse.ArgumentParser:
    """The parser of everything behind ``scrapy redisq``."""
    parser = _Commands(
        prog="scrapy redisq",
        description="Look at a scrapy-redisq frontier, feed it, mend it.",
        epilog="Each has its own help: scrapy redisq status -h\n\n" + GLOBAL_OPTIONS,
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    _add_status(commands)
    _add_autoscale(commands)
    _add_exporter(commands)
    _add_slots(commands)
    _add_url(commands)
    _add_workers(commands)
    _add_push(commands)
    _add_dead(commands)
    reset = commands.add_parser(
        "reset", help="delete a frontier", description=RESET_TEXT, epilog=GLOBAL_OPTIONS
    )
    _add_name(reset)
    reset.add_argument(
        "--yes", action="store_true", help="do it; without this, only say what would be deleted"
    )
    _add_server(commands)
    _add_doctor(commands)
    _add_dashboard(commands)
    return parser


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the frontier; by default the spider's name")


def _add_status(commands: Any) -> None:
    status = commands.add_parser(
        "status",
        help="where a crawl stands, and who works on it",
        description=STATUS_TEXT,
        epilog=GLOBAL_OPTIONS,
    )
    status.add_argument("name", metavar="NAME", nargs="?", help="the frontier; default: all")
    status.add_argument(
        "--watch", action="store_true", help="refresh every second, with rates, until Ctrl-C"
    )
    status.add_argument(
        "--json", action="store_true", help="one JSON object for each frontier, each on one line"
    )


def _add_autoscale(commands: Any) -> None:
    autoscale = commands.add_parser(
        "autoscale",
        help="start and stop workers on this machine, as many as have work",
        description=AUTOSCALE_TEXT,
        epilog=AUTOSCALE_EXAMPLES + "\n" + GLOBAL_OPTIONS,
        usage="%(prog)s [--min N] [--max N] [NAME] -- scrapy crawl SPIDER …",
    )
    autoscale.set_defaults(error=autoscale.error)
    autoscale.add_argument(
        "name", metavar="NAME", nargs="?", help="the frontier; default: the command's spider's"
    )
    autoscale.add_argument(
        "--min", metavar="N", type=_limit, default=1, help="workers at least (default: 1)"
    )
    autoscale.add_argument(
        "--max", metavar="N", type=_limit, help="workers at most (default: the number of CPUs)"
    )
    autoscale.add_argument(
        "--max-cpu",
        metavar="PERCENT",
        type=_limit,
        default=90,
        help="start no more than --min while the CPUs are that busy; 0: never mind (default: 90)",
    )
    autoscale.add_argument(
        "--patience",
        metavar="SECONDS",
        type=_limit,
        default=30,
        help="stop a worker when there has been one too many for so long (default: 30)",
    )
    autoscale.add_argument(
        "--grace",
        metavar="SECONDS",
        type=_limit,
        default=0,
        help="kill a worker that has not left so long after it was told to, or stop one that stays "
        "when the run is complete; 0: wait for it (default: 0)",
    )
    autoscale.add_argument(
        "--logs",
        metavar="FOLDER",
        help="write what workers say to files there (default: on a terminal below "
        ".scrapy/autoscale, else where this writes)",
    )


def _add_exporter(commands: Any) -> None:
    exporter = commands.add_parser(
        "exporter",
        help="metrics for Prometheus, and numbers of workers for autoscalers",
        description=EXPORTER_TEXT,
        epilog=GLOBAL_OPTIONS,
    )
    exporter.add_argument(
        "--bind",
        metavar="HOST:PORT",
        type=_address,
        default="127.0.0.1:9449",
        help="where to listen (default: 127.0.0.1:9449)",
    )


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST:PORT, such as 127.0.0.1:9449")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _add_slots(commands: Any) -> None:
    slots = commands.add_parser(
        "slots",
        help="hosts: what waits, limits, trouble; pause, resume, limit or drop one",
        description=SLOTS_TEXT,
        epilog=GLOBAL_OPTIONS,
        usage="%(prog)s [NAME] [--limit N] [--watch] [--json]\n"
        "       %(prog)s {pause,resume,limit,drop} [NAME] SLOT …",
    )
    slots.set_defaults(action="list")
    slots.add_argument(
        "name", metavar="NAME", nargs="?", help="the frontier; default: the only one there is"
    )
    slots.add_argument(
        "--limit",
        metavar="N",
        type=_limit,
        help="show at most N, 0: all, of over 1,000 in no order (default: 50, with --json all)",
    )
    slots.add_argument(
        "--watch", action="store_true", help="refresh every second or less often, until Ctrl-C"
    )
    slots.add_argument("--json", action="store_true", help="one JSON object for each, on one line")
    for action, text in SLOT_ACTIONS.items():
        parser = commands.add_parser(f"slots {action}", description=text, epilog=GLOBAL_OPTIONS)
        parser.set_defaults(action=action, error=parser.error)
        parser.add_argument(
            "name", metavar="NAME", nargs="?", help="the frontier; default: the only one there is"
        )
        parser.add_argument("slot", metavar="SLOT", help="a host, or what download_slot says")
        if action == "limit":
            _add_limits(parser)
        if action == "drop":
            parser.add_argument(
                "--yes", action="store_true", help="do it; without this, only say what would go"
            )


def _add_workers(commands: Any) -> None:
    workers = commands.add_parser(
        "workers",
        help="who works on a crawl; tell them to be quiet, or to stop",
        description=WORKERS_TEXT,
        epilog=GLOBAL_OPTIONS,
        usage="%(prog)s [NAME] [--watch] [--json]\n"
        "       %(prog)s {quiet,work,stop} [NAME] WORKER … | --all",
    )
    workers.set_defaults(action="list")
    workers.add_argument(
        "name", metavar="NAME", nargs="?", help="the frontier; default: the only one there is"
    )
    workers.add_argument(
        "--watch", action="store_true", help="refresh every second or less often, until Ctrl-C"
    )
    workers.add_argument("--json", action="store_true", help="one JSON object for each")
    for action, text in WORKER_ACTIONS.items():
        parser = commands.add_parser(
            f"workers {action}",
            description=text,
            epilog=GLOBAL_OPTIONS,
            usage="%(prog)s [NAME] WORKER … | --all",
        )
        parser.set_defaults(action=action, error=parser.error)
        parser.add_argument(
            "words",
            metavar="WORKER",
            nargs="*",
            help="HOST:PID, or an id; before them the frontier, if there are several",
        )
        parser.add_argument("--all", action="store_true", help="all workers of the frontier")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    for name, metavar, text in (
        ("delay", "SECONDS", "between two starts"),
        ("concurrency", "N", "requests in progress at a time"),
        ("rate", "RATE", "requests in a time, such as 30/m; per s, m, h or d"),
        ("burst", "N", "so many of the rate may come at once"),
    ):
        parser.add_argument(f"--{name}", metavar=metavar, help=text)
    parser.add_argument(
        "--none", action="store_true", help="take it away: the settings' limit holds again"
    )


def _add_url(commands: Any) -> None:
    url = commands.add_parser(
        "url",
        help="what became of a URL; forget it, fetch it again",
        description=URL_TEXT,
        epilog=GLOBAL_OPTIONS,
    )
    _add_name(url)
    url.add_argument("url", metavar="URL", help="of a GET request")
    url.add_argument("--slot", metavar="S", help="its download_slot; default: its host")
    url.add_argument("--json", action="store_true", help="as a JSON object")
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


def _add_push(commands: Any) -> None:
    push = commands.add_parser(
        "push",
        help="add requests",
        description=PUSH_TEXT,
        epilog=PUSH_EXAMPLES + "\n" + GLOBAL_OPTIONS,
    )
    _add_name(push)
    push.add_argument(
        "requests",
        metavar="URL",
        nargs="+",
        help="a URL or a JSON object; or - alone: read them from stdin, one on each line",
    )


def _add_dead(commands: Any) -> None:
    dead = commands.add_parser(
        "dead",
        help="requests that failed for good: look at them, try them again",
        description="Requests that failed for good: look at them, try them again, delete them.",
        epilog=GLOBAL_OPTIONS,
    )
    actions = dead.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser(
        "list",
        help="show dead letters, newest first",
        description="Show the dead letters of a frontier, newest first.",
        epilog=GLOBAL_OPTIONS,
    )
    _add_name(listing)
    _add_filters(listing)
    listing.add_argument(
        "--limit",
        metavar="N",
        type=_limit,
        help="show at most N, 0: all (default: 20, with --json all)",
    )
    listing.add_argument(
        "--json", action="store_true", help="one JSON object for each, with all of the request"
    )
    show = actions.add_parser(
        "show",
        help="all that is known of one",
        description="Show all that is known of one dead letter.",
        epilog=GLOBAL_OPTIONS,
    )
    _add_name(show)
    show.add_argument("id", metavar="ID", type=_letter_id, help="such as 0-17")
    show.add_argument("--json", action="store_true", help="as a JSON object")
    requeue = actions.add_parser(
        "requeue",
        help="put dead letters back to the front of the queue",
        description="Put dead letters back to the front of the queue, past the dupefilter, with\n"
        "deliveries and retries counted from zero.",
        epilog=GLOBAL_OPTIONS,
    )
    _add_name(requeue)
    _add_choice(requeue)
    requeue.set_defaults(error=requeue.error)
    purge = actions.add_parser(
        "purge",
        help="delete dead letters",
        description="Delete dead letters: those chosen, or all; who sits at a terminal is asked\n"
        "without --all. They remain counted.\n"
        "With --exported just those that a file of export holds, as far as they are still there\n"
        "and the same: none that has come since, or that was changed in the file.",
        epilog=GLOBAL_OPTIONS,
    )
    _add_name(purge)
    _add_choice(purge)
    purge.add_argument("--exported", metavar="FILE", help="only those that this export holds")
    purge.set_defaults(error=purge.error)
    export = actions.add_parser(
        "export",
        help="write dead letters to a file",
        description="Write dead letters to a file, as JSON lines like those of list --json, each "
        "with\nits stored request (entry, base64). FILE is replaced as a whole, and not\n"
        "by nothing. Then: scrapy redisq dead purge NAME --exported FILE",
        epilog=GLOBAL_OPTIONS,
    )
    _add_name(export)
    export.add_argument("file", metavar="FILE", help="is replaced if it is there; - for stdout")
    _add_filters(export)


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reason", metavar="R", help="only those that died of this")
    parser.add_argument("--slot", metavar="S", help="only those of this slot (host)")


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="*", type=_letter_id, help="such as 0-17")
    parser.add_argument("--all", action="store_true", help="all dead letters")
    _add_filters(parser)


def _add_dashboard(commands: Any) -> None:
    dashboard = commands.add_parser(
        "dashboard",
        help="pages in a browser: all crawls, hosts, workers, dead letters",
        description=DASHBOARD_TEXT,
        epilog=GLOBAL_OPTIONS,
    )
    dashboard.add_argument(
        "--bind",
        metavar="HOST:PORT",
        type=_address,
        default=("127.0.0.1", 8765),
        help="where it listens (default: 127.0.0.1:8765; port 0: a free one)",
    )
    dashboard.add_argument(
        "--token-file", metavar="FILE", help="whoever asks needs the token that is in FILE"
    )
    dashboard.add_argument(
        "--host",
        metavar="NAME",
        action="append",
        help="a name by which it is reached (may be repeated); addresses and localhost need none",
    )
    dashboard.add_argument(
        "--read-only", action="store_true", help="nothing can be changed, only looked at"
    )


def _add_server(commands: Any) -> None:
    server = commands.add_parser(
        "server",
        help="the embedded server: keep it running, stop it, look at it",
        description="The embedded server of an embedded:// REDISQ_URL. Crawls start and stop it by "
        "themselves;\nthis is for keeping it between crawls.",
        epilog=GLOBAL_OPTIONS,
    )
    actions = server.add_subparsers(dest="action", metavar="ACTION", required=True)
    for action, text in {
        "start": "start it and keep it running until 'stop'",
        "stop": "stop it; its data stays. While it is in use, the last user to leave stops it",
        "status": "say whether it runs, where, and how large it is; starts nothing",
    }.items():
        actions.add_parser(action, help=text, description=text, epilog=GLOBAL_OPTIONS)
    actions.choices["stop"].add_argument(
        "--force", action="store_true", help="at once, although others use it"
    )
    actions.choices["status"].add_argument("--json", action="store_true", help="as a JSON object")


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="what makes a crawl slow, lossy or rude: server, rights, frontier, settings",
        description=DOCTOR_TEXT,
        epilog=GLOBAL_OPTIONS,
    )
    doctor.add_argument(
        "name", metavar="NAME", nargs="?", help="the frontier; default: the only one there is"
    )
    doctor.add_argument("--json", action="store_true", help="as a JSON object")
    doctor.add_argument("--bad", action="store_true", help="only warnings and problems")
