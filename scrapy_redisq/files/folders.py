"""Folders on disks and object stores, in which a file is there as a whole or not at all."""

from __future__ import annotations

import glob
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from urllib.parse import unquote

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from scrapy_redisq.errors import RedisqError, SettingError, SinkUnavailable
from scrapy_redisq.server.url import redact

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

AT_ONCE = 16
"""Files that are read at once from object stores, which take their time for each."""


def open_folder(url: str, settings: Mapping[str, Any], name: str) -> Folder:
    """The folder at a path or an fsspec URL; ``settings`` are Scrapy's, for its ``AWS_…``. Errors
    say ``name``: the setting that has the URL.

    Writes nothing yet. Raises `SettingError` for a URL that cannot be used, `SinkUnavailable` if
    connecting, where that is part of it, does not work.
    """
    protocol, _, rest = url.partition("://") if "://" in url else ("file", "", url)
    shown = Shown(url, settings, name)
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
        # Pipelines try again by themselves, and claim nothing meanwhile.
        "config_kwargs": {"retries": {"total_max_attempts": 1}},
    }


class Shown:
    """A URL of the setting ``name``, and errors that mention it, without what is secret.
    ``address`` is the URL."""

    def __init__(self, url: str, settings: Mapping[str, Any], name: str) -> None:
        self.address = redact(url)
        self._name = name
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
        return SettingError(self._name, self.address, takes)

    def cannot_write(self, error: Exception, what: str = "no file can be written to") -> Exception:
        return SinkUnavailable(
            f"{what} {self.address} ({self._name}): {type(error).__name__}: {self.words(error)}"
        )

    def cannot_read(self, error: Exception) -> Exception:
        return self.cannot_write(error, "files cannot be read from")


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
            if isinstance(self._system, LocalFileSystem):
                _write_to_disk(Path(target), [data])
            else:
                self._upload(target, lambda path: self._system.pipe_file(path, bytes(data)))
        except Exception as error:
            # The file is none of the errors' business, so that it can only be the way or the
            # other end: all of them can be mended from outside.
            raise self._shown.cannot_write(error) from None

    def put_lines(self, name: str, lines: Iterable[bytes]) -> None:
        """`put` for a large file, which several processes may write at once: the last one counts.

        Raises also the errors of this package that ``lines`` raises.
        """
        target, token = f"{self._root}/{name}", f".{secrets.token_hex(4)}"
        try:
            if isinstance(self._system, LocalFileSystem):
                _write_to_disk(Path(target), lines, token)
                return
            with NamedTemporaryFile() as file:
                file.writelines(lines)
                file.flush()
                self._upload(target, lambda path: self._system.put_file(file.name, path), token)
        except RedisqError:
            raise
        except Exception as error:
            raise self._shown.cannot_write(error) from None

    def remove_halves(self, name: str) -> None:
        """Remove what processes that were killed in `put_lines` have left on this machine. One that
        goes on fails by that."""
        if isinstance(self._system, LocalFileSystem):
            for left in Path(self._root).glob(f".{glob.escape(name)}.*.tmp"):
                with suppress(OSError):
                    left.unlink()

    def get(self, name: str) -> bytes:
        """A small file's contents, b"" if there is none. Raises `SinkUnavailable`."""
        try:
            data: bytes = self._system.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return b""
        except Exception as error:
            raise self._shown.cannot_read(error) from None
        return data

    def names(self, folder: str, ending: str) -> list[str]:
        """The files in a folder below that end so, sorted, without hidden ones. Raises
        `SinkUnavailable`."""
        try:
            self._system.invalidate_cache()
            paths = self._system.find(f"{self._root}/{folder}", maxdepth=1)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._shown.cannot_read(error) from None
        names = (path.rpartition("/")[2] for path in paths if path.endswith(ending))
        return sorted(name for name in names if name[:1] != ".")

    def read(self, folder: str, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Files of a folder below, as they are asked for. Raises `SinkUnavailable`."""
        at_once = 1 if isinstance(self._system, LocalFileSystem) else AT_ONCE
        for at in range(0, len(names), at_once):
            some = names[at : at + at_once]
            paths = [f"{self._root}/{folder}/{name}" for name in some]
            try:
                contents = self._system.cat_ranges(paths, None, None, on_error="raise")
            except Exception as error:
                raise self._shown.cannot_read(error) from None
            yield from zip(some, contents, strict=True)

    def _upload(self, target: str, upload: Callable[[str], None], token: str = "") -> None:
        if self._atomic:
            upload(target)
            return
        folder, _, name = target.rpartition("/")
        hidden = f"{folder}/.{name}{token}.tmp"
        self._system.makedirs(folder, exist_ok=True)
        upload(hidden)
        # There from an attempt before, whose answer did not arrive; some do not rename onto it.
        if self._system.exists(target):
            self._system.rm_file(target)
        self._system.mv(hidden, target)


def _write_to_disk(target: Path, chunks: Iterable[bytes], token: str = "") -> None:
    hidden = target.with_name(f".{target.name}{token}.tmp")
    if not target.parent.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        _sync(target.parent.parent)
    try:
        with hidden.open("wb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(target)
    except BaseException:
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
