"""Folders for what runs have not finished, and the one rule that says which of them nobody needs any more.

    <root>/.tmp/<run>-<pid>/        the folder
    <root>/.tmp/<run>-<pid>.lock    locked by the run while it lives; made before the folder, removed after it

A folder whose lock is free belongs to a run that is gone: the kernel frees the lock of a process that dies, and
the server of a shared file system that of a machine that does. Process ids are not asked, since they mean nothing
on another machine and are given out again. Where locks are not supported, no folder is taken for a leftover.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from pipeline.files import remove_tree
from pipeline.locks import Claim, claim, is_held

_NAME = re.compile(r".+-\d+")
"""As runs name their folders. What people have put beside them is left alone."""
_LOCK = ".lock"


class Scratch:
    """The folder of one run, from `open` to `close`.

    Attributes:
        claim: The lock that says that the run lives; None before `open`.
    """

    def __init__(self, path: Path) -> None:
        """Describe it; nothing is made yet.

        Args:
            path: What `Store.scratch` gives for a name that no other run has, and that ends with the process id.
        """
        self.path = path
        self.claim: Claim | None = None

    def open(self) -> None:
        """Make the lock, then the folder.

        Raises:
            OSError: They cannot be made.
        """
        self.claim = claim(self.path.name, lock_of(self.path), wait=True)
        self.path.mkdir(exist_ok=True)

    def close(self) -> None:
        """Remove the folder, then the lock. Doing it twice does nothing."""
        remove_tree(self.path)
        if self.claim is not None:
            self.claim.release()


def lock_of(path: Path) -> Path:
    """The lock of a scratch folder, beside it."""
    return path.with_name(path.name + _LOCK)


def is_lock(path: Path) -> bool:
    """Whether a path beside scratch folders is the lock of one."""
    return path.name.endswith(_LOCK)


def living(root: Path) -> list[Path]:
    """The scratch folders of a store whose runs live, on whatever machine."""
    return [path for path in _folders(root) if _is_held(path)]


def leftovers(root: Path) -> list[Path]:
    """The scratch folders of a store whose runs are gone; of some the lock alone is left.

    Raises:
        OSError: The store cannot be read.
    """
    return [path for path in _folders(root) if _NAME.fullmatch(path.name) and not _is_held(path)]


def remove_leftovers(root: Path, mine: Path) -> None:
    """Remove the leftovers in a store. One that cannot be removed stays, since it costs nothing but room.

    Args:
        root: Of the store.
        mine: Scratch folder of the run that removes them. Each leftover is first moved into it, by which it is
            out of reach at once for a worker that outlives its engine by a moment.
    """
    with suppress(OSError):
        for number, path in enumerate(leftovers(root)):
            with suppress(OSError):
                remove(path, mine / f"swept.{number}")


def remove(path: Path, moved: Path) -> None:
    """Remove a leftover by way of another name, unless somebody else is doing so.

    Raises:
        OSError: It cannot be removed.
    """
    held = claim(path.name, lock_of(path))
    if held is None:
        return
    with held:
        if not os.path.lexists(path):
            return
        try:
            moved.parent.mkdir(parents=True, exist_ok=True)
            path.rename(moved)
        except OSError:  # a full disk may have no room for another folder
            moved = path
        if problem := remove_tree(moved):
            raise problem


def _folders(root: Path) -> list[Path]:
    try:
        names = {entry.name.removesuffix(_LOCK) for entry in os.scandir(root / ".tmp")}
    except FileNotFoundError:
        return []
    return sorted(root / ".tmp" / name for name in names)


def _is_held(path: Path) -> bool:
    try:
        return is_held(lock_of(path))
    except OSError:  # without locks, or of another user: then whether it is held is not known
        return True
