"""``scrapy redisq migrate``: from a frontier of scrapy-redis into one of this package."""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import redis
from scrapy.utils.misc import load_object

from scrapy_redisq.commands.display import clean, console, one_line, sentence, table
from scrapy_redisq.commands.options import add_command, add_name
from scrapy_redisq.commands.project import Project
from scrapy_redisq.control.words import counted
from scrapy_redisq.dupefilter import ScrapyRedisFingerprinter
from scrapy_redisq.errors import FrontierError, SettingError
from scrapy_redisq.ops.migration.migration import Migration, Moved, check_target
from scrapy_redisq.ops.migration.new_settings import new_lines
from scrapy_redisq.ops.migration.old_frontier import PLACES, OldFrontier, key_names, old_client
from scrapy_redisq.ops.migration.requests import request_classes
from scrapy_redisq.settings.setting import path_of

TEXT = """\
Add the requests of a scrapy-redis frontier (0.9.1, or Scrapy-Redis-BloomFilter) to a frontier.
Stop its processes before, by one Ctrl-C or SIGTERM. If a process was killed, the requests that it
had taken are in the old dupefilter, and no longer in the old queue. Their URLs cannot be found
again.

The old frontier is found by the settings of scrapy-redis, also by -s REDIS_URL=redis://…; without
any it is on the server of REDISQ_URL. Nothing is deleted there without --delete. An interrupted
call may be repeated: it adds nothing twice.

Pickles are read by a process that builds plain values alone. A request that holds an object of any
other class, or cannot be stored, is refused with its reason, and stays where it is.

--seen says what becomes of the URLs that the old dupefilter has seen. It is needed if there are
any:
  queue          they are left. Only what is in the queue is known: pages that
                 were fetched before are fetched again where a link leads there.
  fingerprinter  they are taken over. The project sets for as long as the crawl
                 lasts, which makes the fingerprints of scrapy-redis,
                   REQUEST_FINGERPRINTER_CLASS =
                       "scrapy_redisq.ScrapyRedisFingerprinter"
                 The bits of a Bloom filter cannot be taken over.
"""

EXAMPLES = """\
examples:
  scrapy redisq migrate books --settings
  scrapy redisq migrate books --seen fingerprinter --dry-run
  scrapy redisq migrate books --seen queue -s REDIS_URL=redis://old.example/0

"""


def add_options(commands: Any) -> None:
    """The sub command and its options."""
    help = "requests and settings from scrapy-redis"
    parser = add_command(commands, "migrate", run, help=help, text=TEXT, examples=EXAMPLES)
    add_name(parser)
    parser.add_argument(
        "--seen", choices=("queue", "fingerprinter"), help="what becomes of the URLs that were seen"
    )
    parser.add_argument("--dry-run", action="store_true", help="write nothing anywhere")
    parser.add_argument(
        "--delete",
        action="store_true",
        help="delete in the old frontier what was taken, a hundred requests at a time",
    )
    parser.add_argument(
        "--add",
        action="store_true",
        help="also to a frontier that has live workers or other requests",
    )
    parser.add_argument(
        "--settings",
        action="store_true",
        help="only print the settings that take the place of scrapy-redis' ones",
    )


def run(arguments: Namespace, project: Project) -> int:
    """Move all that can be; 1 if a request was refused."""
    if arguments.settings:
        print_settings(project)
        return 0
    if not project.settings.resume:
        takes = "True until the crawl is complete: the first worker would forget what is moved"
        raise SettingError("REDISQ_RESUME", False, takes)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(project.server(to_write=not arguments.dry_run))
        frontier = stack.enter_context(project.frontier_to_push(server, arguments.name))
        old = stack.enter_context(_old_frontier(project, arguments.name))
        _check_seen(arguments, project, old)
        if not arguments.add:
            check_target(frontier)
        name = clean(frontier.name)
        frontier.waiting_to_push = lambda why: print(f"{name}: {why}", file=sys.stderr, flush=True)
        migration = Migration(
            old,
            frontier,
            request_classes(project.settings.request_classes),
            lambda what, why: print(f"refused: {clean(what)}: {one_line(why)}", file=sys.stderr),
            seen=arguments.seen == "fingerprinter",
            delete=arguments.delete,
            dry_run=arguments.dry_run,
        )
        try:
            moved = migration.run()
        except BaseException:
            print(
                f"{name}: stopped after {counted(migration.moved.found, 'request')}; the same call "
                f"goes on",
                file=sys.stderr,
            )
            raise
        _show(arguments, old, moved)
    return 1 if moved.refused else 0


def print_settings(project: Project) -> None:
    """Lines for settings.py, each behind the one in whose place it stands."""
    lines = list(new_lines(project.scrapys, project.spider))
    if not lines:
        print("# No setting of scrapy-redis is set here.")
    for line in lines:
        print(f"# {clean(line.old)}")
        if line.new:
            print(clean(line.new))
        if line.why:
            print(f"#   {'' if line.new else 'no line: '}{line.why}")


@contextlib.contextmanager
def _old_frontier(project: Project, name: str) -> Iterator[OldFrontier]:
    settings = project.scrapys
    serializer = settings.get("SCHEDULER_SERIALIZER") or "scrapy_redis.picklecompat"
    if serializer not in {"scrapy_redis.picklecompat", "pickle"}:
        raise FrontierError(f"SCHEDULER_SERIALIZER is {serializer}: only pickles can be read")
    names = key_names(settings, project.spider, project.spider_name or name)
    with contextlib.ExitStack() as stack:
        if any(map(settings.get, PLACES)) or project.embedded_folder is not None:
            client, address = old_client(settings)
        else:
            server = stack.enter_context(project.server())
            made = server.client()
            if not isinstance(made, redis.Redis):
                raise FrontierError("say where the old frontier is: -s REDIS_URL=redis://…")
            client, address = made, server.address
        stack.callback(client.close)
        yield OldFrontier(client, address, names)


def _check_seen(arguments: Namespace, project: Project, old: OldFrontier) -> None:
    """Raise `FrontierError` unless what was seen can become what was asked for."""
    seen = old.seen
    if arguments.seen is None and seen.size:
        raise FrontierError(
            f"{seen.name} ({seen.kind}) holds what the old crawl has seen: say --seen queue or "
            f"--seen fingerprinter (-h says what each means)"
        )
    if arguments.seen != "fingerprinter":
        return
    if seen.kind not in {"set", "none"}:
        raise FrontierError(
            f"{seen.name} is a {seen.kind}: only a set of fingerprints can be taken over; --seen "
            f"queue leaves it"
        )
    fingerprinter = project.scrapys["REQUEST_FINGERPRINTER_CLASS"]
    if load_object(fingerprinter) is not ScrapyRedisFingerprinter:
        raise FrontierError(
            f"REQUEST_FINGERPRINTER_CLASS is {path_of(fingerprinter)}: --seen fingerprinter needs "
            f'"scrapy_redisq.ScrapyRedisFingerprinter" there, in the settings of all workers'
        )


def _show(arguments: Namespace, old: OldFrontier, moved: Moved) -> None:
    """The counts before and after, and what becomes of the rest."""
    taken = "would be taken" if arguments.dry_run else "taken"
    rows = []
    for what, key, numbers in (
        ("requests", old.queue, [moved.pushed, moved.duplicates, moved.refused]),
        ("seen", old.seen, [moved.seen] if arguments.seen == "fingerprinter" else []),
        ("start URLs", old.start_urls, []),
        ("items", old.items, []),
    ):
        counts = [f"{number:,}" for number in (key.size, *numbers)]
        rows.append([what, key.name, *counts, *[""] * (4 - len(counts)), f"{old.now(key):,}"])
    out = console()
    out.print(f"From {clean(old.address)}{': nothing was written' * arguments.dry_run}")
    columns = ("what", "key", "found", taken, "duplicates", "refused", "left there")
    out.print(table(columns, rows, left={"key"}))
    for reason, number in moved.reasons.most_common(20):
        out.print(sentence(f"{counted(number, 'request')} refused: {reason}", "yellow"))
    for line in _remarks(old, moved):
        out.print(sentence(line))


def _remarks(old: OldFrontier, moved: Moved) -> Iterator[str]:
    if not (old.queue.size or old.seen.size):
        yield (
            "Neither requests nor seen URLs are there: say other names of these keys by -s "
            "SCHEDULER_QUEUE_KEY=… and -s SCHEDULER_DUPEFILTER_KEY=…"
        )
    if moved.found != old.queue.size:
        yield (
            f"{old.queue.name} had {old.queue.size:,} requests at first and {moved.found:,} were "
            f"read: stop scrapy-redis, and say this again."
        )
    if old.start_urls.size:
        yield (
            f"{old.start_urls.name} stays as it is: workers read it by "
            f"scrapy_redisq.RedisSpider or REDISQ_FEEDS."
        )
    if old.items.size:
        yield f"{old.items.name} stays as it is."
    if old.seen.kind == "string":
        yield f"{old.seen.name} counts bytes: it is a Bloom filter, and stays."
