"""The server and the configuration that workers of the project would have.

Whatever a producer does must be what a worker of the project would do: the same server, the same
configuration for a new run, and above all the same fingerprints.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.python import global_object_name

from scrapy_redisq.control import Frontier
from scrapy_redisq.control.seeds import DEFAULT_FINGERPRINTER
from scrapy_redisq.control.stored import frontier_names
from scrapy_redisq.errors import FrontierError, RedisqError, SettingError, reason
from scrapy_redisq.server.connection import Server
from scrapy_redisq.server.url import embedded_folder
from scrapy_redisq.settings.settings import RedisqSettings, open_server_of, project_folder

MOST_NAMES = 20
"""Frontiers that a message lists."""

ANY_ARGUMENTS = "…"
"""In the name of a frontier, for a spider's arguments that are not known."""


def _person() -> str:
    """Who runs this command, for the action log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have no name
        user = str(os.getuid()) if hasattr(os, "getuid") else "?"
    return f"{user}@{socket.gethostname()}"


def listed(names: list[str]) -> str:
    return ", ".join(names[:MOST_NAMES]) + " …" * (len(names) > MOST_NAMES)


def only_frontier(server: Server) -> str:
    """The name of the only frontier there is. Raises `FrontierError` where there are others."""
    with contextlib.closing(server.client()) as client:
        names, not_all = frontier_names(client)
    if len(names) == 1 and not not_all:
        return names[0]
    if names:
        raise FrontierError(f"name one of the frontiers: {listed(names)}")
    why = f" ({not_all})" if not_all else ""
    raise FrontierError(f"there is no frontier on {server.address}{why}")


def check_known(frontier: Frontier) -> None:
    """Raises `FrontierError`, with the names that there are, if nothing is there."""
    if frontier.config() is None:
        names, _ = frontier_names(frontier.client)
        others = f"; there are: {listed(names)}" if names else ""
        raise FrontierError(f"there is no frontier {frontier.name!r}{others}")


class Project:
    """The settings of one call: Scrapy's, the spider's whose frontier it is, and the add-ons'.

    ``frontier`` is the name of the frontier that is meant, if one is; ``others`` are those of all
    spiders where none of them has one so called. Or ``spider_name`` says which spider is meant.
    Raises `SettingError`.
    """

    def __init__(
        self, settings: Settings, frontier: str | None = None, spider_name: str = ""
    ) -> None:
        self.given = settings
        self.others: list[str] = []
        spider: type[Spider] | None = None
        if frontier:
            spider, self.others = _spider_of(settings, frontier)
        elif spider_name:
            with contextlib.suppress(Exception, SystemExit):  # its own worker says what is wrong
                spider = _loader(settings).load(spider_name)
        self.spider_name: str = spider.name if spider else ""
        # It never crawls; it is how Scrapy puts settings together and builds what they name.
        self._crawler = Crawler(spider or Spider, settings)
        try:
            self._crawler.addons.load_settings(self._crawler.settings)
        except RedisqError:
            raise
        except Exception as error:
            addons = dict(self._crawler.settings.getdict("ADDONS"))
            raise SettingError("ADDONS", addons, f"what can be loaded ({reason(error)})") from error
        self.settings = RedisqSettings.read(self._crawler.settings)
        self.folder = project_folder()

    @property
    def scrapys(self) -> Settings:
        """All settings, those of the spider and of the add-ons among them."""
        return self._crawler.settings

    @property
    def spider(self) -> type[Spider]:
        """Whose frontier it is; Scrapy's base class if that is not known."""
        return self._crawler.spidercls

    @property
    def embedded_folder(self) -> Path | None:
        """Where the embedded server is or would be; None if REDISQ_URL names another."""
        return embedded_folder(self.settings.url, self.folder)

    def nothing_there(self) -> bool:
        """Whether no embedded server has ever run here: nothing to look at, nothing to start."""
        folder = self.embedded_folder
        return folder is not None and not (folder.is_dir() and any(folder.iterdir()))

    def check_something_is_there(self) -> None:
        """Raises `FrontierError` if `nothing_there`."""
        if self.nothing_there():
            raise FrontierError(f"no embedded server has run in {self.embedded_folder}")

    @contextmanager
    def server(self, *, to_write: bool = False) -> Iterator[Server]:
        """The server, answering; one that takes no writes for now is waited for if ``to_write``.
        Raises `ServerError` if there is none."""
        with open_server_of(self.settings, self.folder) as server:
            server.wait(to_write=to_write)
            yield server

    def frontier(self, server: Server, name: str) -> Frontier:
        """The frontier ``name``, for everything but pushing."""
        frontier = Frontier(server, name)
        frontier.by = _person()
        return frontier

    @contextmanager
    def chosen_frontier(self, name: str | None) -> Iterator[Frontier]:
        """The frontier ``name``, or the only one of the server. Raises `FrontierError` if there is
        none, or several to choose from; no embedded server is started to look for it."""
        self.check_something_is_there()
        with (
            self.server() as server,
            self.frontier(server, name or only_frontier(server)) as frontier,
        ):
            check_known(frontier)
            yield frontier

    def frontier_to_push(self, server: Server, name: str) -> Frontier:
        """The frontier ``name``, with the fingerprinter and the configuration of this project; if
        no spider of it has a frontier so called, a new run is configured as the one before.

        Raises `SettingError` if the frontier was begun with another fingerprinter.
        """
        self.settings.check_shards(server.masters)
        fingerprinter = self._load("REQUEST_FINGERPRINTER_CLASS", build=True)
        path = global_object_name(type(fingerprinter))
        frontier = Frontier(
            server,
            name,
            # What `scrapy_redisq.Scheduler` would begin a run with.
            self.settings.frontier_config(
                dupefilter=self._dupefilter(), fingerprinter=path, spider=self.spider_name
            ),
            settings=self.settings,
            # Left to Scrapy's own if that is what the project has: then `Frontier.push` checks it.
            fingerprint=None if path == DEFAULT_FINGERPRINTER else fingerprinter.fingerprint,
            # A worker has what its spider says, and nobody knows here which one that is.
            keep_config=not self.spider_name,
        )
        frontier.by = _person()
        try:
            stored = frontier.config()
            if stored is not None and stored.fingerprinter != path:
                raise SettingError(
                    "REQUEST_FINGERPRINTER_CLASS", path, f"{stored.fingerprinter!r} for {name!r}"
                )
        except BaseException:
            frontier.close()
            raise
        return frontier

    def _dupefilter(self) -> str:
        if self._crawler.settings.getpriority("DUPEFILTER_CLASS") == 0:  # Scrapy's own default
            return "bloom"
        cls = self._load("DUPEFILTER_CLASS")
        return getattr(cls, "kind", None) or global_object_name(cls)

    def _load(self, setting: str, *, build: bool = False) -> Any:
        """The class that a setting names, or an object of it."""
        path = self._crawler.settings[setting]
        try:
            cls = load_object(path)
            return build_from_crawler(cls, self._crawler) if build else cls
        except Exception as error:
            takes = f"a class's import path, which can be built ({reason(error)})"
            raise SettingError(setting, path, takes) from error


def _loader(settings: Settings) -> Any:
    return load_object(settings["SPIDER_LOADER_CLASS"]).from_settings(settings.frozencopy())


def _spider_of(settings: Settings, frontier: str) -> tuple[type[Spider] | None, list[str]]:
    """The spider whose frontier is called so: its ``custom_settings`` count as they do for workers.

    None if there is none in this project, with the frontiers that there are, or if several spiders
    share the frontier. One broken spider does not keep people from the frontiers of the others.
    """
    if not settings.getlist("SPIDER_MODULES"):
        return None, []
    found, others, names_all = [], [], True
    try:
        loader = _loader(settings)
        spiders: list[type[Spider]] = [loader.load(name) for name in loader.list()]
    except (Exception, SystemExit) as error:
        _leave_out("spiders", error)
        return None, []
    for spider in spiders:
        try:
            own = Crawler(spider, settings).settings
        except (Exception, SystemExit) as error:
            _leave_out(f"spider {spider.name!r}", error)
            names_all = False
            continue
        pattern = own.get(RedisqSettings.frontier.name) or RedisqSettings.frontier.default
        try:
            name = pattern % {"spider": spider.name, "arguments": ANY_ARGUMENTS}
        except (TypeError, ValueError, KeyError):
            names_all = False  # a bad value: its own worker says so
            continue
        if re.fullmatch(re.escape(name).replace(ANY_ARGUMENTS, ".+"), frontier):
            found.append(spider)
        others.append(name)
    return (found[0] if len(found) == 1 else None), others if names_all and not found else []


def _leave_out(what: str, error: BaseException) -> None:
    text = f"scrapy redisq: custom_settings of {what} are left out: {reason(error)}"
    print(text, file=sys.stderr)
