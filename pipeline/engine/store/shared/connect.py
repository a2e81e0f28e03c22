"""Begins the use of a shared store: whether it can be reached, keeps to what is relied on, and what is there."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import TypeVar

from pipeline.engine.store.shared.address import KEY, is_folder, open_objects
from pipeline.engine.store.shared.answers import Timeouts
from pipeline.engine.store.shared.objects import Objects, RefusedError, UnreachableError, keeps_first
from pipeline.engine.store.shared.outputs import SharedOutputs
from pipeline.engine.store.shared.reach import Reach
from pipeline.engine.store.store import Store
from pipeline.errors import ConfigError
from pipeline.hints import recall, remember

_T = TypeVar("_T")
_PACE = Timeouts()


def look(url: str, pace: Timeouts = _PACE) -> tuple[set[str], str]:
    """The keys of what is there, and why that cannot be told, or ""; nothing is written.

    Raises:
        ConfigError: It may not be read, or there is no such place.
    """
    _check_folder(url)
    try:
        objects = open_objects(url)
        return _patiently(objects, pace, SharedOutputs(objects).keys), ""
    except RefusedError as error:
        raise _refused(url, error) from error
    except UnreachableError as error:
        return set(), str(error)


def connect(url: str, pace: Timeouts = _PACE) -> tuple[Objects, set[str], str]:
    """Its objects, the keys of what is there, and why it cannot be reached now, or "".

    Raises:
        ConfigError: It may not be written, there is no such place, or it does not make an object only where there
            is none.
    """
    _check_folder(url)
    objects = open_objects(url)
    try:
        if not _patiently(objects, pace, lambda: keeps_first(objects)):
            raise ConfigError(
                f"{KEY}={url}: it replaces an object although it was asked to make it only where there is none, "
                "so that two machines could write over each other. Use one that knows If-None-Match, as S3 does"
            )
        return objects, _patiently(objects, pace, SharedOutputs(objects).keys), ""
    except RefusedError as error:
        raise _refused(url, error) from error
    except UnreachableError as error:
        return objects, set(), str(error)


def _patiently(objects: Objects, pace: Timeouts, ask: Callable[[], _T]) -> _T:
    """Ask, and again for a while, as during the run: one bad answer is no reason to go on without the place."""
    return Reach(objects, pace, closing=Event(), away="").patiently(ask, pace.asked_s)


def _check_folder(url: str) -> None:
    """Refuse a folder that is not there: a name that was mistyped, or a disk that is not mounted."""
    if is_folder(url) and not Path(folder := url.removeprefix("file://")).is_dir():
        raise ConfigError(
            f"{KEY}={url}: there is no folder {folder}. Mount it, see that it is spelt right, or make it by "
            f"mkdir -p {shlex.quote(folder)}"
        )


def name_of(store: Store) -> str:
    """A name of a local store that no other has."""
    path, place = store.hints / "shared_store.json", _place(store)
    known = recall(path, dict[str, str]) or {}
    if not known.get("name") or known.get("place") != place:  # or it was copied, with all that is in it
        known = {"name": secrets.token_hex(16), "place": place}
        remember(path, known)
        known = recall(path, dict[str, str]) or known  # of another run that did so at the same time
    return known["name"][:64]


def _place(store: Store) -> str:
    """Where a store is, by what a copy of it has otherwise."""
    with suppress(OSError):
        there = store.hints.stat()
        return f"{os.uname().nodename}:{there.st_dev}:{there.st_ino}"
    return ""


def _refused(url: str, error: RefusedError) -> ConfigError:
    if is_folder(url):
        advice = "See that all who share it may write there: its owner, group and mode, and those of what is in it"
    else:
        advice = (
            "See that the place exists, and that credentials for it are where the library looks for them, as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment (AWS_ENDPOINT_URL for another server "
            "than Amazon's)"
        )
    return ConfigError(f"{KEY}={url}: it cannot be used: {str(error).rstrip('.')}. {advice}")
