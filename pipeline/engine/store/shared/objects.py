"""Objects by name in the place of a shared store: S3, GCS or a folder, by fsspec."""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import shlex
from pathlib import Path
from typing import Any

from pipeline.config.install import install_command
from pipeline.errors import ConfigError

KEY = "execution.shared_store"
_ALLOWED = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, file:///FOLDER or the whole path of a folder"
_LIBRARIES = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "file": ("fsspec", "")}
_CONNECT_S, _READ_S = 5, 15
_SENT_S, _SLOWEST = 15.0, 100_000
"""Seconds and bytes a second: of what takes longer the place cannot be reached."""
_LAYOUT = "v1"
"""Folder of all objects. What lays them out otherwise takes another name."""
# Who asks asks again (`session.py`), and knows when to give up, which is said only once an attempt has ended.
_RETRIES = {"total_max_attempts": 1, "mode": "standard"}
_WAITS = {"connect_timeout": _CONNECT_S, "read_timeout": _READ_S, "retries": _RETRIES}
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": _WAITS},
    "gs": {"timeout": _READ_S},
    "file": {"auto_mkdir": True},
}


class UnreachableError(Exception):
    """The place did not do what was asked, and may do it when it is asked again; the text says why."""


class RefusedError(UnreachableError):
    """The place answers, and does not let this user do what was asked."""


def check_address(url: str) -> tuple[str, str]:
    """Split an address into kind and place; nothing is asked of it.

    Raises:
        ConfigError: It cannot be one, or holds what may be secret, which is not repeated.
    """
    kind, is_url, place = url.partition("://")
    if not is_url:
        kind, place = "file", url
    if "@" in place.partition("/")[0] or "?" in place or "#" in place:
        raise ConfigError(
            f"{KEY}: a user, a password, a token or parameters are refused in it, as settings are written down. "
            "Give the address alone, and credentials where the library looks for them, as AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY in the environment"
        )
    is_place = place.startswith("/") if kind == "file" else place.partition("/")[0]
    if kind not in _LIBRARIES or not is_place or not url.isprintable() or ".." in place.split("/"):
        raise ConfigError(f"{KEY}={url}: this is no place for a shared store. Use {_ALLOWED}")
    if kind == "file" and not Path(place).is_dir():
        raise ConfigError(
            f"{KEY}={url}: there is no folder {place}. Mount it, see that it is spelt right, or make it by "
            f"mkdir -p {shlex.quote(place)}"
        )
    module, extra = _LIBRARIES[kind]
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"{KEY}={url} needs {module}, which is not installed: {install_command(extra)}")
    return kind, place


class Objects:
    """Objects below one address. Safe for several threads; all may raise `UnreachableError`."""

    def __init__(self, url: str) -> None:
        """Use an address; nothing is asked of it yet.

        Raises:
            ConfigError: As `check_address`, or its library is broken.
        """
        kind, place = check_address(url)
        self._root, self._is_folder, self._was_there = f"{place.rstrip('/')}/{_LAYOUT}", kind == "file", False
        try:
            import fsspec  # type: ignore[import-untyped]  # most runs have no use for it

            options = {"use_listings_cache": False, "skip_instance_cache": True, **_OPTIONS[kind]}
            self._system = fsspec.filesystem(kind, **options)
        except Exception as error:  # a library may raise what it likes where a part of it is missing or too old
            raise ConfigError(f"{KEY}={url} cannot be used: {said_of(error)}") from error
        if kind == "s3":
            self._system.retries = 1

    def read(self, name: str, limit: int) -> bytes | None:
        """Read the first ``limit + 1`` bytes of an object; None where there is none."""
        data: bytes | None = self._ask("cat_file", name, start=0, end=limit + 1)
        return data

    def sizes(self, folder: str) -> dict[str, int]:
        """List the names and sizes, in bytes, of the objects in a folder."""
        found = self._ask("find", folder, detail=True) or {}
        return {path.rpartition("/")[2]: int(info["size"]) for path, info in found.items()}

    def create(self, name: str, data: bytes) -> bool:
        """Make an object that becomes visible whole; False, and nothing done, where one has that name."""
        if not self._is_folder:
            return self._ask("pipe_file", name, data, mode="create") is not False
        temporary = f"{name}.{secrets.token_hex(8)}"
        self._ask("pipe_file", temporary, data)
        try:
            os.link(f"{self._root}/{temporary}", f"{self._root}/{name}")
        except FileExistsError:
            return False
        except OSError as error:
            raise UnreachableError(said_of(error)) from None
        finally:
            self.remove(temporary)
        return True

    def send(self, path: Path, name: str) -> None:
        """Make an object of a file."""
        self._ask("put_file", str(path), name, size=path.stat().st_size)

    def bring(self, name: str, path: Path, size: int) -> None:
        """Write an object of that size, in bytes, to a file."""
        self._ask("get_file", name, str(path), size=size)

    def move(self, name: str, to: str) -> None:
        """Give an object another name."""
        self._ask("mv", name, f"{self._root}/{to}")

    def remove(self, name: str) -> None:
        """Remove an object or a folder of objects, if it is there."""
        self._ask("rm", name, recursive=True)

    def _ask(self, method: str, *given: Any, size: int = 0, **options: Any) -> Any:
        """Call fsspec; None where nothing is there, False where an object was to be made and one was there."""
        source = method == "put_file"
        given = (given[0], f"{self._root}/{given[1]}") if source else (f"{self._root}/{given[0]}", *given[1:])
        if self._is_folder:
            # Where a disk was mounted nothing may be written meanwhile.
            if self._was_there and not Path(self._root).is_dir():
                raise UnreachableError(f"{self._root} is not there any more")
            self._was_there = Path(self._root).is_dir()
        elif method not in ("mv", "rm"):
            options["timeout"] = _SENT_S + max(size, len(given[-1]) if method == "pipe_file" else 0) / _SLOWEST
        try:
            return getattr(self._system, method)(*given, **options)
        except Exception as error:  # libraries raise errors of theirs, of HTTP, of the system, of time
            if isinstance(error, FileExistsError) or _code(error) in ("PreconditionFailed", "412"):
                return False
            if isinstance(error, FileNotFoundError | NotADirectoryError) and method not in (
                "put_file",
                "pipe_file",
            ):
                return None
            kind = RefusedError if _is_refusal(error) else UnreachableError
            raise kind(said_of(error)) from None  # its traceback may hold what is secret


def said_of(error: Exception) -> str:
    """A failure in a line, in which no credential of the environment stands."""
    text = " ".join(str(error).split()) or type(error).__name__
    for name, value in os.environ.items():
        if re.search("^(AWS|FSSPEC|GOOGLE)_.*(KEY|SECRET|TOKEN)", name) and value:
            text = text.replace(value, "***")
    return "".join(char if char.isprintable() else "?" for char in text)[:200]


def _is_refusal(error: Exception) -> bool:
    known = isinstance(error, PermissionError | FileNotFoundError | NotADirectoryError)
    return known or type(error).__name__.endswith("CredentialsError") or "Forbidden" in str(error)


def _code(error: Exception) -> str:
    response = getattr(error.__cause__ or error, "response", None)
    told = response.get("Error") if isinstance(response, dict) else None
    return str(told.get("Code", "")) if isinstance(told, dict) else ""
