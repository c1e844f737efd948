"""Folders on disks and object stores, in which a file is there as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from scrapy_redisq.errors import SettingError, SinkUnavailable
from scrapy_redisq.server.url import redact
from scrapy_redisq.settings.declared import SinkSettings

ATOMIC = {"abfs", "abfss", "adl", "az", "gcs", "gs", "s3", "s3a"}
"""Protocols where an object is there from the moment at which its upload is complete."""

S3_OPTIONS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_SESSION_TOKEN": "token",
    "AWS_ENDPOINT_URL": "endpoint_url",
}
SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
S3_CLIENT_OPTIONS = {
    "AWS_REGION_NAME": "region_name",
    "AWS_USE_SSL": "use_ssl",
    "AWS_VERIFY": "verify",
}
"""Scrapy's settings, which its feeds use as well, and what s3fs calls them."""


def open_folder(url: str, settings: Mapping[str, Any]) -> Folder:
    """The folder at a path or an fsspec URL; ``settings`` are Scrapy's, for its ``AWS_…``.

    Writes nothing yet. Raises `SettingError` for a URL that cannot be used, `SinkUnavailable` if
    connecting, where that is part of it, does not work.
    """
    protocol, _, rest = url.partition("://") if "://" in url else ("file", "", url)
    shown = Shown(url, settings)
    s3 = protocol in {"s3", "s3a"}
    if "::" in url or not rest or (s3 and not rest.strip("/")):
        raise shown.wrong("a folder or a single fsspec URL")
    if s3 and "@" in rest:
        raise shown.wrong("no key before the bucket: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY")
    try:
        system, root = url_to_fs(url, **(_s3_options(settings) if s3 else {}))
    except ImportError as error:
        extra = "pip install scrapy-redisq[s3]" if s3 else "install its driver"
        raise shown.wrong(f"{protocol}:// after you {extra} ({shown.words(error)})") from None
    except ValueError as error:
        raise shown.wrong(f"a folder or an fsspec URL ({shown.words(error)})") from None
    except Exception as error:  # each driver has its own
        raise shown.cannot_write(error) from None
    return Folder(system, root, shown, atomic=protocol in ATOMIC)


def _s3_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    options = {ours: settings.get(name) for name, ours in S3_OPTIONS.items()}
    client = {ours: settings.get(name) for name, ours in S3_CLIENT_OPTIONS.items()}
    return {
        **{name: value for name, value in options.items() if value},
        "client_kwargs": {name: value for name, value in client.items() if value is not None},
        # The pipeline tries again by itself, and claims nothing meanwhile.
        "config_kwargs": {"retries": {"total_max_attempts": 1}},
    }


class Shown:
    """A URL, and errors that mention it, without what is secret. ``address`` is the URL."""

    def __init__(self, url: str, settings: Mapping[str, Any]) -> None:
        self.address = redact(url)
        user = url.partition("://")[2].rpartition("@")[0]
        self._secrets = {str(settings.get(name) or "") for name in SECRETS}
        self._secrets |= {user.partition(":")[2]}

    def words(self, error: Exception) -> str:
        """An error's text, in one line."""
        words = " ".join(redact(str(error)).split())
        for secret in filter(None, self._secrets):
            words = words.replace(unquote(secret), "***").replace(secret, "***")
        return f"{words:.300}"

    def wrong(self, takes: str) -> SettingError:
        return SettingError(SinkSettings.parquet_url.name, self.address, takes)

    def cannot_write(self, error: Exception) -> SinkUnavailable:
        return SinkUnavailable(
            f"no file can be written to {self.address} (REDISQ_PARQUET_URL): "
            f"{type(error).__name__}: {self.words(error)}"
        )


class Folder:
    """A folder of a file system of fsspec. ``address`` is its URL without password.

    Where uploads are not ``atomic``, a file is written under a hidden name, which readers of data
    sets pass over, and then renamed; on this machine both are flushed to the disk.
    """

    def __init__(
        self, system: fsspec.AbstractFileSystem, root: str, shown: Shown, *, atomic: bool
    ) -> None:
        self._system = system
        self._root = root.rstrip("/")
        self._atomic = atomic
        self._shown = shown
        self.address = shown.address

    def check(self) -> None:
        """Raise `SinkUnavailable` if no file can be written; leaves none behind."""
        # The same name each time: who may write is not always allowed to delete.
        probe = f"{self._root}/_redisq"
        try:
            if not self._atomic:
                self._system.makedirs(self._root, exist_ok=True)
            self._system.pipe_file(probe, b"")
        except Exception as error:  # each driver has its own
            raise self._shown.cannot_write(error) from None
        with suppress(Exception):
            self._system.rm_file(probe)

    def put(self, name: str, data: Any) -> None:
        """Write a file; ``name`` may hold slashes. What was there under this name is replaced.

        Raises `SinkUnavailable`; there is no file then, or a whole one.
        """
        target = f"{self._root}/{name}"
        try:
            if self._atomic:
                self._system.pipe_file(target, bytes(data))
            elif isinstance(self._system, LocalFileSystem):
                _write_to_disk(Path(target), data)
            else:
                self._rename_into_place(target, bytes(data))
        except Exception as error:
            # The file is none of the errors' business, so that it can only be the way or the
            # other end: all of them can be mended from outside.
            raise self._shown.cannot_write(error) from None

    def _rename_into_place(self, target: str, data: bytes) -> None:
        folder, _, name = target.rpartition("/")
        hidden = f"{folder}/.{name}.tmp"
        self._system.makedirs(folder, exist_ok=True)
        self._system.pipe_file(hidden, data)
        # There from an attempt before, whose answer did not arrive; some do not rename onto it.
        if self._system.exists(target):
            self._system.rm_file(target)
        self._system.mv(hidden, target)


def _write_to_disk(target: Path, data: Any) -> None:
    hidden = target.with_name(f".{target.name}.tmp")
    if not target.parent.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        _sync(target.parent.parent)
    try:
        with hidden.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(target)
    except OSError:
        with suppress(OSError):
            hidden.unlink()
        raise
    _sync(target.parent)


def _sync(folder: Path) -> None:
    """Have the names in a folder outlive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
