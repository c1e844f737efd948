"""REDISQ_URL: what it may say, what is refused, and how it is shown without its passwords."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from scrapy_redisq.errors import SettingError
from scrapy_redisq.server.address import ClusterNodes, SentinelService, parse
from scrapy_redisq.server.connection import open_server
from scrapy_redisq.server.url import embedded_folder, redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://:pw@localhost/0", "redis://:***@localhost/0"),
        ("rediss://bob:pw@h:1?db=2", "rediss://bob:***@h:1?db=2"),
        ("redis://pw@localhost", "redis://***@localhost"),
        ("redis://h/0?db=1&password=p@w&db=1", "redis://h/0?db=1&password=***"),
        ("rediss://h?ssl_password=pw#pw", "rediss://h?ssl_password=***"),
        (
            "unix://bob:pw@/run/redis.sock?password=pw",
            "unix://bob:***@/run/redis.sock?password=***",
        ),
        ("redis://:p/w?w#w@h", "redis://:***@h"),
        ("redis://:p w@h", "redis://:***@h"),
        ("redis://p@w:x@h", "redis://***@h"),
        ("REDIS://:pw@h", "REDIS://:***@h"),
        ("cannot reach redis://bob:pw@h, retry", "cannot reach redis://bob:***@h, retry"),
        ("'redis://:pw@a' or 'redis://:pw@b'", "'redis://:***@a' or 'redis://:***@b'"),
        ("mail to bob@example.org", "mail to bob@example.org"),
        ("redis://h?password=ab&cdpw", "redis://h?password=***"),
        ("'redis://h?password=ab&cdpw' is", "'redis://h?password=*** is"),
    ],
)
def test_redact_hides_passwords_and_leaves_the_rest(text: str, shown: str) -> None:
    """URLs keep scheme, user, host and path; other text stays as it is."""
    assert redact(text) == shown


@pytest.mark.parametrize(
    ("url", "takes"),
    [
        ("http://bob:s3cret@h", "redis://"),
        ("redis://:s3cret/1@h", "%2F"),
        ("redis://:s3c[ret@h", "%2F"),
        ("redis://:s3c#ret@h", "%23"),
        ("redis://bob:s3cret@h/database", "/0"),
        ("redis://h/0/1", "/0"),
        ("redis://bob:s3cret@h:99999", "HOST:PORT"),
        ("redis://h:0", "HOST:PORT"),
        ("redis://h1,h2", "redis+cluster://"),
        ("redis://bob:s3cret@h?db=one", "db"),
        ("redis://h?db=1&db=2", "once"),
        ("redis://bob:s3cret@h?decode_responses=1", "decode_responses"),
        ("redis://bob:s3cret@h?ssl_cert_reqs=none", "only with rediss://"),
        ("rediss://bob:s3cret@h?ssl_ca_certs=/nowhere.pem", "ssl_ca_certs"),
        ("unix://bob:s3cret@path/redis.sock", "three slashes"),
        ("unix://", "three slashes"),
        ("redis://h?password=ab&s3cret", "%26"),
        ("redis://h?password=ab?s3cret&db=x", "db"),
        ("redis://h?PASSWORD=ab&s3cret", "%26"),
        ("redis://h?pass=ab&s3cret=1", "pass"),
        ("redis://h?password=ab#s3cret", "%23"),
        ("redis://:12?34s3cret@h", "%26"),
        ("redis://:12?password=1&s3cret@h", "%26"),
        ("redis:/:s3cret@h", "redis://"),
        ("bob:s3cret@h:6379", "redis://"),
        (" redis://:s3cret@h", "redis://"),
        ("REDIS://:s3cret@h", "redis://"),
        ("embedded://relative/path", "three slashes"),
        ("embedded:///path?db=1", "three slashes"),
        ("redis+cluster://h1:6379,h2:6379/1", "database"),
        ("redis+cluster://h1,h2?db=3", "database"),
        ("redis+cluster://", "nodes"),
        ("redis+cluster://h1,,h2", "nodes"),
        ("redis+cluster://:s3cret/1@h1,h2", "nodes"),
        ("redis+cluster://bob:s3cret@h1,h2?ssl_ca_certs=x", "ssl_ca_certs"),
        ("redis+sentinel://:s3cret@h/", "/SERVICE"),
        ("redis+sentinel://:s3cret@h/s/db", "/SERVICE"),
        ("redis+sentinel://:s3cret@h/s/0/1", "/SERVICE"),
        ("redis+sentinel://:s3cret@::1/s", "IPv6 in brackets"),
        ("redis+sentinel://:s3c?ret@h/s", "%26"),
        ("redis+sentinel://:s3cret@h/s?db=1", "db"),
        ("redis+sentinel://h/s?sentinel_password=a&s3cret", "%26"),
        ("redis://h?sentinel_password=s3cret", "%26"),
    ],
)
def test_a_url_that_cannot_be_used(url: str, takes: str) -> None:
    """Refused before anything is sent, with what REDISQ_URL takes instead, without a password."""
    with pytest.raises(SettingError, match="REDISQ_URL") as caught:
        open_server(url)
    assert takes in str(caught.value).partition("takes")[2]
    assert not re.search("s3c|ret@", str(caught.value) + repr(caught.value))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    "option",
    [
        *("protocol=9", "protocol=", "protocol=2.0", "db=-1", "db=1_0", "db="),
        *("socket_timeout=0", "socket_timeout=-1", "socket_timeout=nan", "socket_timeout=1e99"),
        *("socket_connect_timeout=soon", "client_name=a%20b", "client_name="),
        *("ssl_check_hostname=maybe", "ssl_certfile=/nowhere", "ssl_cert_reqs="),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_its_name(option: str) -> None:
    """At once, not at the first command or after REDISQ_CONNECT_TIMEOUT."""
    with pytest.raises(SettingError) as caught:
        open_server(f"rediss://h?{option}")
    assert f"for {option.partition('=')[0]} " in str(caught.value)


def test_a_host_name_that_is_not_checked_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Once, where the server is opened; with the default there is none."""
    open_server("rediss://h?socket_timeout=0.5&protocol=3")
    assert caplog.messages == []
    open_server("rediss://h?ssl_check_hostname=No")
    (warning,) = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert "ssl_check_hostname=false" in warning
    with pytest.raises(SettingError, match="ssl_check_hostname=true"):
        open_server("rediss://h?ssl_cert_reqs=none&ssl_check_hostname=true")


def test_the_embedded_folder_is_the_projects_or_the_one_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No path: ``.scrapy/redisq`` of the project or the current folder. A path: just that."""
    assert embedded_folder("embedded://", tmp_path) == tmp_path / ".scrapy" / "redisq"
    assert embedded_folder("embedded:///", tmp_path) == tmp_path / ".scrapy" / "redisq"
    monkeypatch.chdir(tmp_path)
    assert embedded_folder("embedded://", None) == tmp_path / ".scrapy" / "redisq"
    assert embedded_folder("embedded:///a%20b/c", tmp_path) == Path("/a b/c")
    assert embedded_folder("redis://localhost", tmp_path) is None


def test_addresses_of_a_cluster() -> None:
    """Ports are 6379 by themselves; IPv6 in brackets; user and options hold for each node."""
    address = parse("rediss+cluster://bob:p%40w@h1,[::1]:7000,h1:6379/0?socket_timeout=2")
    assert isinstance(address, ClusterNodes)
    assert address.nodes == (("h1", 6379), ("::1", 7000))
    assert address.url_of("::1", 7000) == "rediss://bob:p%40w@[::1]:7000/0?socket_timeout=2"
    assert "p@w" in address.passwords


@pytest.mark.parametrize(
    ("url", "sentinels", "service", "db"),
    [
        ("redis+sentinel://a/s", [("a", 26379)], "s", 0),
        ("rediss+sentinel://a:1,b:2,a:1/s/3", [("a", 1), ("b", 2)], "s", 3),
        (
            "redis+sentinel://[::1],[fe80::1%eth0]:7/my%2Fs/",
            [("::1", 26379), ("fe80::1%eth0", 7)],
            "my/s",
            0,
        ),
    ],
)
def test_addresses_by_sentinels(
    url: str, sentinels: list[tuple[str, int]], service: str, db: int
) -> None:
    """Several Sentinels, IPv6 in brackets, the service, a database; users and passwords decoded."""
    scheme, rest = url.split("://")
    logins = {
        "": (None,) * 4,
        "bob:s3cr%2Fet%20p%40ss@": ("bob", "s3cr/et p@ss", "eve", "s3cr:wächter"),
    }
    for user, login in logins.items():
        query = "?sentinel_username=eve&sentinel_password=s3cr%3Aw%C3%A4chter" if user else ""
        address = parse(f"{scheme}://{user}{rest}{query}")
        assert isinstance(address, SentinelService)
        assert address.tls is url.startswith("rediss")
        assert (list(address.sentinels), address.service, address.db) == (sentinels, service, db)
        given = (address.username, address.password)
        assert (*given, address.sentinel_username, address.sentinel_password) == login
        shown = repr(open_server(address.url)) + str(open_server(address.url).address)
        assert "s3cr" not in shown
        assert ("eve" in shown) is bool(user)
