"""What is in deploy/ names settings, commands, options and metrics that there are; validators that
this machine has find nothing."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from scrapy.settings import default_settings

from scrapy_redisq.commands.parser import make_parser
from scrapy_redisq.control import Frontier
from scrapy_redisq.ops.autoscale import CrawlCommand
from scrapy_redisq.ops.metrics.exporter import scale
from scrapy_redisq.ops.metrics.families import EVENTS, METRICS, STATES, WAITS
from scrapy_redisq.server.connection import SOCKET_TIMEOUT
from scrapy_redisq.settings.setting import TOKEN_VARIABLE, settings_of
from scrapy_redisq.settings.settings import RedisqSettings
from tests.docs.test_readme import blocks
from tests.harness.command import run_well

yaml = pytest.importorskip("yaml", reason="NO PyYAML: deploy/ is not tested")

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TEXTS = {path: path.read_text("utf-8") for path in sorted(DEPLOY.rglob("*")) if path.is_file()}
YAMLS = [text for path, text in TEXTS.items() if path.suffix in {".yml", ".yaml"}]
DOCUMENTS = [document for text in YAMLS for document in yaml.safe_load_all(text)]
UNITS = sorted((DEPLOY / "systemd").iterdir())
SETTINGS = {setting.name: setting for setting in settings_of(RedisqSettings)}


def lists(value: Any) -> Iterator[list[str]]:
    """All lists of texts in a document."""
    if isinstance(value, list):
        if value and all(isinstance(item, str) for item in value):
            yield value
        for item in value:
            yield from lists(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from lists(item)


def commands() -> list[list[str]]:
    """What comes behind ``scrapy`` in all of the files."""
    found = [words for words in lists(DOCUMENTS) if words[0] in {"crawl", "redisq"}]
    for unit in UNITS:
        (line,) = re.findall(r"^ExecStart=(.*)", unit.read_text("utf-8"), re.M)
        found.append(shlex.split(line)[1:])
    return found


def test_commands_and_options() -> None:
    """Each is one of ours, or a crawl with settings that Scrapy has."""
    assert len(commands()) >= 9
    for words in commands():
        crawl = CrawlCommand(words)
        assert set(crawl.settings) <= set(vars(default_settings)) | set(SETTINGS)
        if words[0] == "redisq":
            parsed = make_parser().parse_args(words[1:])
            assert parsed.command == words[1]
        else:
            assert crawl.spider


def test_settings() -> None:
    """Each REDISQ_… there is a setting, and its value one that it takes."""
    for path, text in TEXTS.items():
        assert set(re.findall(r"\bREDISQ_\w+", text)) <= {*SETTINGS, TOKEN_VARIABLE}, path
    pair = r"(REDISQ_\w+)(?:: |, value: )\"?([^\"}$\n]+)\"?[ }]*$"
    given = re.findall(pair, "\n".join(YAMLS), re.M)
    assert len(given) > 8
    for name, value in given:
        SETTINGS[name].check.read(name, value)


def test_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines for settings.py do that."""
    (code,) = blocks("docs/operate/deploy.md", "python")
    monkeypatch.setenv("REDISQ_LEASE_TTL", "77")
    settings: dict[str, Any] = {}
    exec(code, settings)
    assert RedisqSettings.read(settings).lease_ttl == 77


def test_grace_periods() -> None:
    """A worker has time for its downloads, its sink and one exchange."""
    with_workers = [text for text in TEXTS.values() if "DOWNLOAD_TIMEOUT=" in text]
    assert len(with_workers) == 5
    for text in with_workers:
        (download,) = set(re.findall(r"DOWNLOAD_TIMEOUT=(\d+)", text))
        closing = re.findall(r"REDISQ_CLOSE_TIMEOUT\W+(?:value: )?\"(\d+)", text)
        longest = max(map(float, closing), default=SETTINGS["REDISQ_CLOSE_TIMEOUT"].default)
        needed = float(download) + longest + SOCKET_TIMEOUT
        pattern = r"(?:terminationGracePeriodSeconds: |TimeoutStopSec=|stop_grace_period: )(\d+)"
        assert max(map(int, re.findall(pattern, text))) >= needed


def test_redis_is_configured_as_documented() -> None:
    """In the container and in Kubernetes."""
    (block,) = blocks("docs/operate/redis.md", "conf")
    wanted = set(block.splitlines())
    (config,) = [document for document in DOCUMENTS if document.get("kind") == "ConfigMap"]
    for text in (TEXTS[DEPLOY / "redis.conf"], config["data"]["redis.conf"]):
        assert wanted <= set(text.splitlines())


def test_what_keda_asks(frontier: Frontier) -> None:
    """Its URL is one that the exporter answers, and the value is there; zero is no activation."""
    scaled = [one for one in DOCUMENTS if one.get("kind") in {"ScaledObject", "ScaledJob"}]
    triggers = [trigger for one in scaled for trigger in one["spec"]["triggers"]]
    assert len(triggers) == 2
    for trigger in triggers:
        metadata = trigger["metadata"]
        assert trigger["type"] == "metrics-api"
        assert (metadata["targetValue"], metadata["activationTargetValue"]) == ("1", "0")
        url = urlsplit(metadata["url"])
        assert (url.port, url.path) == (9449, "/scale/books")
        # KEDA asks from a namespace of its own.
        assert re.fullmatch(r"redisq-exporter\.[a-z-]+\.svc", url.hostname or "")
        told = scale(frontier, dict(parse_qsl(url.query)))
        assert told[metadata["valueLocation"]] == 1, "the run has not begun"


# Metrics


def test_metrics() -> None:
    """Each metric of a rule or panel exists, with these labels; so do states and events."""
    of_workers, of_requests = {"working", "quiet", "dead"}, {"queued", "delayed", "leased"}
    states = {*STATES, *WAITS, *of_requests, *of_workers, "due"}
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text("utf-8"))
    found = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    board = json.loads((DEPLOY / "grafana" / "redisq.json").read_text("utf-8"))
    found += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    found += [
        one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"
    ]
    for expression in found:
        used = re.findall(r"\b(redisq_\w+)(?:\{([^}]*)\})?", expression)
        assert used, expression
        for written, selector in used:
            name = re.sub(r"_(?:bucket|sum|count)$", "", written)
            kind, _, labels = METRICS[name]
            assert (kind == "histogram") == ("_bucket" in expression), expression
            for label, value in re.findall(r'(\w+)!?=~?"([^"]*)"', selector):
                assert label in labels, expression
                assert label != "state" or set(value.split("|")) <= states, expression
                assert label != "event" or value in EVENTS.values(), expression


# Validators


def _tool(name: str) -> str:
    """Of this environment or on the PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"NO {name} ON THIS MACHINE")
    return found


FOLDER = DEPLOY / "prometheus"


@pytest.mark.parametrize(
    "command",
    [
        ("promtool", "check", "rules", "alerts.yml"),
        ("promtool", "test", "rules", "alerts_test.yml"),
        ("promtool", "check", "config", "prometheus.yml"),
        ("amtool", "check-config", "alertmanager.yml"),
        ("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"),
        # KEDA's kinds are looked at above.
        ("kubernetes-validate", "--strict", *(DEPLOY / "kubernetes").iterdir()),
        ("hadolint", DEPLOY / "Dockerfile"),
    ],
    ids=lambda command: " ".join(map(str, command[:3])),
)
def test_validators(command: tuple[str | Path, ...]) -> None:
    """They find nothing in rules and their tests, configurations, schemas and the Dockerfile."""
    run_well([_tool(str(command[0])), *command[1:]], FOLDER)


def test_units(tmp_path: Path) -> None:
    """systemd-analyze takes them, with a program that there is."""
    tool = _tool("systemd-analyze")
    for unit in UNITS:
        text = unit.read_text("utf-8").replace("/srv/crawl/.venv/bin/scrapy", sys.executable)
        (tmp_path / unit.name).write_text(text)
    run_well([tool, "verify", "--man=no", *(tmp_path / unit.name for unit in UNITS)])
