"""Where a shared store is: a URL without secrets, and what has to be installed to reach it."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.config.install import install_command
from pipeline.engine.store.shared.objects import FileObjects, MemoryObjects, Objects, RemoteObjects
from pipeline.errors import ConfigError

KEY = "execution.shared_store"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_EXTRAS = {"s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "gcs": ("gcsfs", "gcs")}
_ALLOWED = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, file:///FOLDER or the whole path of a folder"
_CONNECT_S, _READ_S = 5, 15
_SPELT = re.compile(r"[A-Za-z0-9+.-]+:|(?:s3a?|gs|gcs|file)/", re.IGNORECASE)
"""How an address begins that was meant to be a URL; of a folder the whole path is asked for."""
_LAYOUT = "v1"
"""Folder of all objects. What lays them out otherwise, or other manifests in them, takes another name."""


def check_address(url: str) -> None:
    """See that a shared store can be what it is said to be; nothing is asked of it.

    Raises:
        ConfigError: It cannot, or the URL holds what is secret; that is not repeated.
    """
    if _split(url)[0] == "memory":
        raise ConfigError(f"{KEY}={url}: the memory of this process is shared with nobody. Use {_ALLOWED}")
    _opener(url)


def open_objects(url: str) -> Objects:
    """The objects of a shared store; nothing is asked of it yet.

    Raises:
        ConfigError: As `check_address`.
    """
    return _opener(url)()


def is_folder(url: str) -> bool:
    """Whether an address is that of a folder."""
    return _split(url)[0] in ("", "file")


def _opener(url: str) -> Callable[[], Objects]:
    scheme, rest = _split(url)
    if scheme in ("", "file"):
        if scheme and not rest.startswith("/"):
            raise ConfigError(f"{KEY}={url}: a file:// URL needs the whole path: file:///FOLDER")
        return lambda: FileObjects(Path(rest).absolute() / _LAYOUT)
    if scheme != "memory" and scheme not in _EXTRAS:
        raise ConfigError(
            f"{KEY}={url}: {scheme}:// is not known to make an object only where there is none, on which two "
            f"machines must be able to rely. Use {_ALLOWED}"
        )
    bucket = rest.partition("/")[0]
    if not bucket or ".." in rest.split("/"):
        raise ConfigError(f"{KEY}={url}: it names no place. Use {_ALLOWED}")
    place = f"{rest.rstrip('/')}/{_LAYOUT}"
    if scheme == "memory":
        return lambda: MemoryObjects(_system("memory"), f"/{place}")
    module, extra = _EXTRAS[scheme]
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"{KEY}={url} needs {module}, which is not installed: {install_command(extra)}")

    def open_there() -> Objects:
        _import(url, module)
        return RemoteObjects(_system("gs", timeout=_READ_S) if extra == "gcs" else _s3(), place)

    return open_there


def _import(url: str, module: str) -> None:
    """Refuse a library that is there and does not work; of what it stands on a part may be missing or too old."""
    try:
        importlib.import_module(module)
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ConfigError(
            f"{KEY}={url} needs {module}, which is here and cannot be imported ({said}): pip install -U {module}"
        ) from error


def _split(url: str) -> tuple[str, str]:
    """Scheme and the rest."""
    if not url or not url.isprintable() or url != url.strip():
        raise ConfigError(f"{KEY}: it names no place. Use {_ALLOWED}")
    found = _SCHEME.match(url)
    if found is None:
        if _SPELT.match(url):
            told = "it" if "@" in url else url  # a password may stand before it
            raise ConfigError(f"{KEY}: {told} is neither a URL nor the whole path of a folder. Use {_ALLOWED}")
        if not url.startswith("/"):
            raise ConfigError(
                f"{KEY}={url}: give the whole path of a folder, which begins with /, so that it is the same one "
                "wherever the command is typed (~ is your home folder on a command line alone, without quotes)"
            )
        return "", url
    rest = url[found.end() :]
    if "@" in rest.partition("/")[0] or "?" in rest or "#" in rest:
        raise ConfigError(
            f"{KEY}: a URL with a user, a password, a token or parameters in it is refused, since settings are "
            "written down. Give the address alone, and credentials where the library looks for them, as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
        )
    return found[1].lower(), rest


def _s3() -> Any:
    # Who asks asks again (`session.py`), and knows when to give up, which is said only once an attempt has ended.
    waits = {
        "connect_timeout": _CONNECT_S,
        "read_timeout": _READ_S,
        "retries": {"total_max_attempts": 1, "mode": "standard"},
    }
    system = _system("s3", config_kwargs=waits)
    system.retries = 1
    return system


def _system(protocol: str, **settings: Any) -> Any:
    import fsspec  # type: ignore[import-untyped]  # most runs have no use for it

    return fsspec.filesystem(protocol, use_listings_cache=False, skip_instance_cache=True, **settings)
