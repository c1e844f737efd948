"""Who may ask and change what: strangers on the network, pages of other origins, own pages."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest

from lab.launcher import fork
from lab.servers import RedisServer, wait_until
from scrapy_redisq.commands.dashboard import NoDashboard, kept_token, token_of
from scrapy_redisq.control import Frontier
from scrapy_redisq.ops.dashboard.guard import HEADERS, Rules
from tests.dashboard.served import Served
from tests.harness.command import Redisq, at
from tests.harness.worker import NAME

STATIC = Path(str(resources.files("scrapy_redisq.ops.dashboard"))) / "static"
HOSTS = f"/api/crawls/{NAME}/hosts"
PAUSE = {"action": "pause", "match": {}}
TOKEN = "a-token-that-nobody-guesses"


def paused(frontier: Frontier) -> int:
    paused = frontier.status()["paused"]
    assert isinstance(paused, int)
    return paused


def test_nobody_is_given_the_token(dashboard: Served, frontier: Frontier) -> None:
    """Whoever asks on a loopback address, as any user of the machine may, learns nothing by which
    something can be read or changed; all data needs the token, in a header alone."""
    frontier.push(["https://a.example/"])
    token = dashboard.rules.token
    pages = [dashboard.ask(path, headers={}) for path in ("/api/session", "/", "/main.js")]
    assert [answer.status for answer in pages] == [200, 200, 200]
    assert pages[0].json == {"read_only": False}
    assert not any(word.encode() in page.body for page in pages for word in (token, NAME))
    wrong = ("Bearer x", "Bearer ä", token, f"Basic {token}")
    for headers in ({}, {"Cookie": f"token={token}"}, *({"Authorization": one} for one in wrong)):
        for path in ("/api/crawls", f"/api/crawls/{NAME}", HOSTS, "/api/doctor", "/api/nothing"):
            answer = dashboard.ask(f"{path}?token={token}", headers=headers)
            assert (answer.status, list(answer.json)) == (401, ["error"])
        assert dashboard.ask(HOSTS, PAUSE, headers).status == 401
    assert paused(frontier) == 0
    assert dashboard.ask(HOSTS, PAUSE, dashboard.token).json["changed"] == 1
    assert paused(frontier) == 1


def test_pages_of_other_origins(dashboard: Served, frontier: Frontier) -> None:
    """They are refused even with the token, and do not get it."""
    frontier.push(["https://a.example/"])
    origins = ("https://evil.example", "null", "http://127.0.0.1:1")
    for headers in (
        *({"Origin": origin} for origin in origins),
        *({"Sec-Fetch-Site": site} for site in ("cross-site", "same-site")),
    ):
        assert dashboard.ask(HOSTS, PAUSE, {**dashboard.token, **headers}).status == 403
        assert dashboard.ask("/api/session", headers=headers).status == 403
    assert paused(frontier) == 0


def test_the_host_that_is_asked(guarded: Callable[[Rules], Served]) -> None:
    """A name that a stranger made lead here is refused: addresses and given names are not. Whoever
    says none is refused, and no name is looked up for them."""
    served = guarded(Rules(TOKEN, hosts=frozenset({"crawls.lan"})))
    for status, hosts in (
        (200, ("127.0.0.1", "localhost:9", "[::1]:8765", "crawls.lan")),
        (421, ("evil.example", "127.0.0.1.evil.example", "0.0.0.0", "", "[")),
    ):
        for host in hosts:
            for path in ("/api/session", "/", "/main.js"):
                assert served.ask(path, headers={"Host": host}).status == status, host
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
        connection.sendall(b"GET /api/session HTTP/1.0\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.0 421"


def test_read_only(guarded: Callable[[Rules], Served], frontier: Frontier) -> None:
    """Nothing is changed, whoever asks."""
    frontier.push(["https://a.example/"])
    served = guarded(Rules(TOKEN, read_only=True))
    answer = served.ask(HOSTS, PAUSE, served.token)
    assert (answer.status, answer.json["error"]) == (403, "this dashboard is read-only")
    assert served.ask("/api/session").json == {"read_only": True}
    assert (paused(frontier), served.get(HOSTS)["total"]) == (0, 1)


def test_what_is_posted(dashboard: Served, frontier: Frontier) -> None:
    """Far too much, whether its size is told before or not, another type, no JSON, or not what is
    taken: refused with what is wrong."""
    frontier.push(["https://a.example/"])
    for status, name, value in (
        (413, "Content-Length", "99999999"),
        (415, "Content-Type", "application/x-www-form-urlencoded"),
    ):
        assert dashboard.ask(HOSTS, b"{}", {**dashboard.token, name: value}).status == status
    for body in (
        b"",
        b"{",
        b"[" * 100_000,
        b"\xff",
        {"action": "explode", "match": {}},
        {"action": "pause"},
        {"action": "pause", "match": {}, "hosts": ["a.example"]},
        {"action": "pause", "hosts": []},
        {"action": "pause", "match": {"state": "great"}},
        {"action": "pause", "match": {}, "delay": 3},
        {"action": "limit", "match": {}},
        {"action": "limit", "match": {}, "rate": "__import__('os')"},
        {"action": "pause", "match": {}, "more": 1},
    ):
        answer = dashboard.ask(HOSTS, body, dashboard.token)
        assert (answer.status, list(answer.json)) == (400, ["error"]), body
    assert paused(frontier) == 0
    parts = iter([b'{"requests": ["', *[b"x" * 1_000_000] * 10])
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it does not read on
        answer = dashboard.ask(f"/api/crawls/{NAME}/push", parts, dashboard.token)
        assert answer.status == 413
    assert frontier.status()["created"] == 1


def test_headers_of_every_answer(dashboard: Served, frontier: Frontier) -> None:
    """Pages, data and errors."""
    frontier.push(["https://a.example/"])
    answers = [
        dashboard.ask(path)
        for path in ("/", "/main.js", "/api/crawls", "/api/nothing", "/nothing", "/api/crawls/x")
    ]
    answers.append(dashboard.ask(HOSTS, {}, {}))
    for answer in answers:
        assert HEADERS.items() <= dict(answer.headers).items()
    assert [answer.status for answer in answers] == [200, 200, 200, 404, 404, 404, 401]
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_files(dashboard: Served) -> None:
    """All static files are served, once to each who keeps them, and nothing else is."""
    for file in STATIC.iterdir():
        path = "/" if file.name == "index.html" else f"/{file.name}"
        answer = dashboard.ask(path)
        assert answer.body == file.read_bytes()
        again = dashboard.ask(path, headers={"If-None-Match": answer.headers["ETag"]})
        assert (again.status, again.body) == (304, b"")
    for path in ("/../app.py", "/%2e%2e/app.py", "/static/main.js", "//etc/passwd", "/app.py"):
        assert dashboard.ask(path).status == 404


def test_nothing_is_ever_evaluated() -> None:
    """No inline script or style, no HTML made of text: what our files say, uPlot apart."""
    page = (STATIC / "index.html").read_text("utf-8")
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|style=", page)
    for reference in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert (STATIC / reference).is_file()
    for file in [*STATIC.glob("*.js"), STATIC.parent / "app.py"]:
        if file.name != "uplot.js":
            text = file.read_text("utf-8")
            assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
            assert not re.search(r"new Function|setTimeout\([\"']|javascript:", text)


def test_the_command(redisq: Redisq, tmp_path: Path) -> None:
    """What cannot be is refused with what to give."""
    (tmp_path / "empty").touch()
    told = redisq("dashboard", "--token-file", str(tmp_path / "empty"))
    assert (told.code, "holds no token" in told.err) == (1, True)
    assert redisq("dashboard", "--token-file", str(tmp_path / "nothing")).code == 1
    for token in (b"short", b"\xff" * 20, "Übersetzungsfehler".encode()):
        (tmp_path / "token").write_bytes(token)
        told = redisq("dashboard", "--token-file", str(tmp_path / "token"))
        assert (told.code, "at least 16 characters" in told.err) == (1, True)
        assert str(tmp_path / "token") in told.err
    for bind in ("8765", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", "a:1/b"):
        assert redisq("dashboard", "--bind", bind).code == 2


def test_the_token_of_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is drawn once, into a file that only its user can read; unless the environment has one."""
    path = tmp_path / "project" / ".scrapy" / "redisq-dashboard-token"
    monkeypatch.setenv("REDISQ_DASHBOARD_TOKEN", TOKEN)
    assert (token_of(None, path), path.exists()) == ((TOKEN, None), False)
    token = kept_token(path)
    assert Rules(token).token == path.read_text().strip() == kept_token(path)
    assert (path.stat().st_mode & 0o777, path.stat().st_uid) == (0o600, os.geteuid())


def test_a_token_that_others_know(tmp_path: Path) -> None:
    """In a folder that others can write to it may be theirs: it is not used."""
    read_by_others, theirs, link, folder = (tmp_path / name for name in "abcd")
    for path, mode in ((read_by_others, 0o644), (theirs, 0o600)):
        path.write_text(TOKEN)
        path.chmod(mode)
    link.symlink_to(theirs)
    folder.mkdir()
    if os.geteuid() == 0:  # nobody else can give a file away
        os.chown(theirs, 65534, 65534)
    for path in (read_by_others, link, folder, *([theirs] if os.geteuid() == 0 else [])):
        with pytest.raises(NoDashboard, match="--token-file FILE"):
            kept_token(path)


def test_a_process(redis_server: RedisServer, frontier: Frontier, tmp_path: Path) -> None:
    """It says where it is, and where its token is, not what it is; only who can read that file gets
    in. It ends well by SIGTERM."""
    frontier.push(["https://a.example/"])
    log, kept = tmp_path / "log", tmp_path / ".scrapy" / "redisq-dashboard-token"
    log.touch()
    command = ["redisq", "dashboard", "--bind", "127.0.0.1:0", *at(redis_server)]
    process = fork("scrapy", command, tmp_path, log, dict(os.environ))
    try:
        wait_until(lambda: f"{kept}\n" in log.read_text() or process.poll(), 30, "its address")
        url, token = log.read_text().split()[0], kept.read_text().strip()
        assert token not in log.read_text()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url}api/crawls", timeout=20)
        headers = {"Authorization": f"Bearer {token}"}
        asked = urllib.request.Request(f"{url}api/crawls", headers=headers)
        with urllib.request.urlopen(asked, timeout=20) as answer:
            assert len(json.load(answer)["crawls"]) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, log.read_text()
    finally:
        process.kill()
