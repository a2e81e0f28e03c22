"""Who uses a store now, and which output folders ever did: what a clean-up must know before it removes anything.

Runs hold ``<root>/.lock`` shared for as long as they last; what removes outputs holds it alone.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.engine.store.os_errors import explained
from pipeline.errors import StoreError
from pipeline.files import write_whole
from pipeline.foreign import read_plain
from pipeline.locks import LocksUnsupportedError, lock

log = logging.getLogger("pipeline")

_PATH_BYTES = 1 << 16


@contextmanager
def in_use(root: Path) -> Iterator[None]:
    """Hold a store's lock together with other runs; see `Store.in_use`."""
    descriptor = _open_lock(root)
    try:
        if descriptor is not None:
            with suppress(LocksUnsupportedError):
                if not lock(descriptor, shared=True, wait=False):
                    log.warning("waiting for the clean-up of %s to end", root)
                    lock(descriptor, shared=True)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Hold a store's lock alone, or refuse; see `Store.alone`."""
    descriptor = _open_lock(root)
    if descriptor is None:
        raise StoreError(f"{root} cannot be written to, so nothing in it can be removed")
    try:
        try:
            free = lock(descriptor, wait=False)
        except LocksUnsupportedError as error:
            raise StoreError(
                f"the file system of {root} has no locks, so whether a run uses it is unknown"
            ) from error
        if not free:
            raise StoreError(f"a run is using {root}: nothing was removed. Try again when the run has ended.")
        yield
    finally:
        os.close(descriptor)


def remember_user(root: Path, output_dir: Path) -> None:
    """Note that runs of an output folder use a store that lies somewhere else."""
    folder = output_dir.absolute()
    if around(root) == folder:
        return
    path = root / ".users" / hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    with suppress(OSError, ValueError):  # losing the note costs computing something again at worst
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            write_whole(path, f"{folder}\n")


def around(root: Path) -> Path | None:
    """The output folder that a store lies in by default, ``<output_dir>/.store``, if it lies there."""
    return root.absolute().parent if root.name == ".store" else None


def is_store(folder: Path) -> bool:
    """Whether a folder is a store, by its name or by what it holds."""
    held = (folder / ".claims", folder / ".lock")
    return folder.name == ".store" or all(os.path.exists(path) for path in held)  # noqa: PTH110 - Path.exists may raise


def users(root: Path) -> list[Path]:
    """The output folders whose runs use a store, as far as it knows."""
    found = [folder for folder in [around(root)] if folder]
    for path in sorted((root / ".users").glob("[!.]*")):
        with suppress(OSError, ValueError):
            text = read_plain(path, _PATH_BYTES).decode().rstrip("\n")
            if text.startswith("/") and "\0" not in text:
                found.append(Path(text))
    return found


def _open_lock(root: Path) -> int | None:
    """The lock file, open; None where the store may only be read and never had one."""
    path = root / ".lock"
    try:
        root.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS) or not os.path.isdir(root):  # noqa: PTH112 - Path.is_dir may raise
            raise explained(f"could not use {root}", error) from error
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
