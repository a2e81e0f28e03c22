"""Finished outputs by key: a folder that is committed by one rename, with a manifest of checksums.

    <root>/ab/abcdef.../manifest.json, files      committed
    <root>/.tmp/<run>/<key>.<attempt>/            being written
    <root>/.tmp/<run>.lock                        locked by the run while it lives (`scratch.py`)
    <root>/.tmp/<run>/verified/<key>.note         read and found good in this run (`Verified`)
    <root>/.aside/<key>.<n>/                      found damaged; kept for a look, never read
    <root>/.checkpoints/<key>/                    what lets an interrupted job go on; removed by its commit
    <root>/.hints/                                what makes later jobs faster, and changes no result
    <root>/.costs/ab.jsonl                        tokens and device time that outputs took (`costs.py`)
    <root>/.claims/<key>                          locked by the run that computes the key: its own lock, linked
    <root>/.lock                                  held shared by runs, alone by what removes outputs
    <root>/.weights.lock                          held while it is decided that weights go (`removal.py`)
    <root>/.users/                                output folders whose runs use this store

A folder counts only with its manifest, which is written last, and with files of the recorded sizes and
checksums. A name under <root> therefore never shows half a result, however the writer ended. Its weights may have
been removed since, which a tombstone in it says (`outputs.manifest`).
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from pipeline import locks
from pipeline.engine.store import store_lock
from pipeline.engine.store.costs import COSTS, Costs
from pipeline.engine.store.os_errors import explained
from pipeline.errors import StoreError
from pipeline.files import fsync, in_folder, remove_tree, walk, write
from pipeline.locks import Claim, one_at_a_time
from pipeline.outputs.manifest import (
    MANIFEST,
    REMOVED,
    TOMBSTONE,
    NotAnOutputError,
    StillChangingError,
    describe,
    find_problem,
    read_manifest,
)

__all__ = ["MANIFEST", "NOT_STORED", "REMOVED", "Claim", "Store"]

NOT_STORED = "not stored"
"""What `Store.problem` says where there is nothing at all, so nothing to set aside."""
KEY = re.compile(r"[0-9a-f]{40,64}")
WORTH_FORCING_S = 1.0
"""Seconds of work from which on an output is forced to disk at its commit.

That takes four or more waits for the disk, tens of milliseconds each where others use it too. What took less work
than this is sooner made again after a loss of power, which is rare, than waited for in every run.
"""
_TRIES = 10
_OCCUPIED = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
DECIDING = ".weights.lock"
OWN = {".tmp", ".aside", ".checkpoints", ".hints", ".claims", ".lock", ".users", DECIDING, COSTS, "durations.json"}
"""Names in the root of a store, apart from the folders of keys."""


class Store:
    """The content-addressed store under one root. Safe for several processes and several runs at once.

    Attributes:
        root: Its folder.
        costs: What outputs took to make.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.costs = Costs(root)
        self._checkpoints, self._hints, self._claims = (
            root / name for name in (".checkpoints", ".hints", ".claims")
        )

    def path(self, key: str) -> Path:
        """Where the output of `key` is once it is committed."""
        return self.root.joinpath(key[:2], key)

    def scratch(self, run: str) -> Path:
        """The folder for unfinished outputs of one run; on the same file system as the store."""
        return self.root / ".tmp" / run

    def checkpoints(self, key: str) -> Path:
        """Where an unfinished job of that key keeps what lets it go on; on the store's file system."""
        return self._checkpoints / key

    @property
    def hints(self) -> Path:
        """What makes later jobs faster but changes no result, such as batch sizes that fitted."""
        return self._hints

    # -- reading -----------------------------------------------------------------------------------------------

    def problem(self, key: str, *, checksums: bool = True) -> str | None:
        """Say what is wrong with the output of `key`, or None if it can be used. Nothing is raised.

        `NOT_STORED` and `REMOVED` are no damage: nothing is there, or all but weights, which can be made again.

        Args:
            key: The key.
            checksums: Read every file; otherwise the manifest, presence and sizes only.
        """
        try:
            status = os.lstat(f"{self.root}/{key[:2]}/{key}")  # asked of every job of a plan
            if foreign := self._foreign_place(key):
                return foreign
            if not stat.S_ISDIR(status.st_mode):
                return "it is no folder"
        except (FileNotFoundError, NotADirectoryError):
            return self.nothing_there(key)
        except OSError as error:
            return f"it cannot be read ({error.strerror or error})"
        return find_problem(key, self.path(key), checksums=checksums)

    def nothing_there(self, key: str) -> str:
        """What `problem` says of a key under which there is no name."""
        try:
            return self._foreign_place(key) or NOT_STORED
        except FileNotFoundError:
            return NOT_STORED
        except OSError as error:
            return f"it cannot be read ({error.strerror or error})"

    def has(self, key: str, *, checksums: bool = True) -> bool:
        """Whether the output of `key` is stored whole."""
        return self.problem(key, checksums=checksums) is None

    def is_committed(self, key: str) -> bool:
        """Whether an output of `key` was committed, whole or not: as cheap as it can be told."""
        try:
            return stat.S_ISREG(os.lstat(f"{self.root}/{key[:2]}/{key}/{MANIFEST}").st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # what is wrong with the store shows where it is read

    def is_removed(self, key: str) -> bool:
        """Whether the weights of an output were removed, or are just being: as cheap as it can be told."""
        return os.path.lexists(f"{self.root}/{key[:2]}/{key}/{TOMBSTONE}") and self.is_committed(key)

    def manifest(self, key: str) -> dict[str, Any]:
        """The manifest of a stored output.

        Raises:
            StoreError: It cannot be read, or was altered.
        """
        try:
            return read_manifest(key, self.path(key))
        except NotAnOutputError as error:
            raise StoreError(f"stored output {key[:12]}: {error}") from error

    def stored_keys(self) -> list[str]:
        """The keys under which something is stored, sorted; whether it is whole is another question.

        Raises:
            StoreError: The store cannot be read.
        """
        try:
            return sorted(
                path.name for folder in self._key_folders() for path in folder.iterdir() if self._is_key(path)
            )
        except OSError as error:
            raise explained(f"could not read {self.root}", error) from error

    def strangers(self) -> list[Path]:
        """What lies in the store and is none of its own, sorted. It is never touched.

        Raises:
            StoreError: The store cannot be read.
        """
        try:
            folders = set(self._key_folders())
            odd = [path for folder in folders for path in folder.iterdir() if not self._is_key(path)]
            odd += [path for path in self.root.iterdir() if path not in folders and path.name not in OWN]
        except OSError as error:
            raise explained(f"could not read {self.root}", error) from error
        return sorted(path for path in odd if not path.name.startswith(".durations.json."))

    def _key_folders(self) -> Iterator[Path]:
        for path in self.root.iterdir():
            if re.fullmatch("[0-9a-f]{2}", path.name) and stat.S_ISDIR(path.lstat().st_mode):
                yield path

    @staticmethod
    def _is_key(path: Path) -> bool:
        return bool(KEY.fullmatch(path.name)) and path.name[:2] == path.parent.name

    def _foreign_place(self, key: str) -> str | None:
        parent = f"{self.root}/{key[:2]}"
        mode = os.lstat(parent).st_mode
        if stat.S_ISDIR(mode):
            return None
        return f"{parent} is {'a link that leads out of the store' if stat.S_ISLNK(mode) else 'no folder'}"

    # -- writing -----------------------------------------------------------------------------------------------

    def begin(self, scratch: Path, key: str, attempt: int) -> Path:
        """Make an empty folder to write the output of `key` to.

        Raises:
            StoreError: It cannot be made.
        """
        folder = scratch / f"{key}.{attempt}"
        try:
            try:
                in_folder(scratch, folder.mkdir)
            except FileExistsError:
                if problem := remove_tree(folder):
                    raise problem from None
                folder.mkdir()
        except OSError as error:
            raise explained(f"could not make {folder}", error) from error
        return folder

    def commit(
        self,
        key: str,
        folder: Path,
        about: Mapping[str, Any],
        took_s: float = math.inf,
        entries: Mapping[str, os.stat_result] | None = None,
    ) -> Path:
        """Turn a finished folder into the output of `key`.

        The first commit of a key wins: a later one of the same key has the same content and is dropped. Where the
        weights of the first were removed, the later one takes its place.

        Args:
            key: The key.
            folder: What `begin` gave, now filled.
            about: Recorded in the manifest (job, versions); no part of the result.
            took_s: Seconds of work that making it again would take. Below `WORTH_FORCING_S` it is not forced to
                disk: should the machine lose power soon after, it may be absent, or torn and so damaged.
            entries: What `walk` has just told of the folder; looked up if None.

        Raises:
            StoreError: It could not be written, or holds what no output may. What is stored is whole or absent.
        """
        target, forced = self.path(key), took_s >= WORTH_FORCING_S
        try:
            entries = dict(walk(folder)) if entries is None else entries
            if own := [name for name in (MANIFEST, TOMBSTONE) if name in entries]:
                raise StoreError(f"could not commit {key[:12]}: its job wrote a {own[0]}, which is the store's")
            write(f"{folder}/{MANIFEST}", describe(key, folder, about, entries), os.O_EXCL)
            if forced:
                for name, status in walk(folder):
                    fsync(folder / name, folder=stat.S_ISDIR(status.st_mode))
            if foreign := in_folder(f"{self.root}/{key[:2]}", lambda: self._foreign_place(key)):
                target.parent.mkdir(exist_ok=True)  # of a file in its place the system tells
                raise StoreError(f"could not commit {key[:12]}: {foreign}. Move it away")
            self._publish(key, folder, target)
            if forced:
                fsync(target.parent, folder=True)
                fsync(self.root, folder=True)
        except NotAnOutputError as error:
            raise StoreError(
                f"could not commit {key[:12]}: {error}, and an output holds only plain files and folders"
            ) from error
        except StillChangingError as error:
            raise StoreError(f"could not commit {key[:12]}: {error}") from error
        except OSError as error:
            raise explained(f"could not commit {key[:12]} to {self.root}", error) from error
        return target

    def _publish(self, key: str, folder: Path, target: Path) -> None:
        # Another run may commit the same key, or set aside the same damaged output, between any two steps.
        for tries_left in reversed(range(_TRIES)):
            try:
                os.rename(folder, target)  # noqa: PTH104 - that of a path makes another one
                return
            except OSError as error:
                if not tries_left or error.errno not in _OCCUPIED:
                    raise
            problem = self.problem(key)
            if problem is None:
                remove_tree(folder)
                return
            if problem == REMOVED:
                self._make_way(key, folder.with_name(f"{folder.name}.before"))
            else:
                self.set_aside(key)

    def _make_way(self, key: str, moved: Path) -> None:
        """Take away what is left of an output, to be replaced by all of it."""
        with one_at_a_time(self.path(key).parent):
            if self.problem(key) == REMOVED:
                self.path(key).rename(moved)
        remove_tree(moved)

    def set_aside(self, key: str) -> Path | None:
        """Move a damaged output out of the way, so that it is made anew but can still be looked at.

        It is checked again first. Of several processes that found the same damage one moves it, and the others
        cannot move what was made anew in between.

        Returns:
            Where it is now, or None if it was gone already or is not damaged.

        Raises:
            StoreError: It cannot be moved.
        """
        aside = self.root / ".aside"
        try:
            aside.mkdir(parents=True, exist_ok=True)
            with one_at_a_time(aside):
                problem = self.problem(key)
                if problem in (None, NOT_STORED, REMOVED):
                    return None
                if foreign := self._foreign_place(key):
                    raise StoreError(f"could not set {key[:12]} aside: {foreign}. Move it away")
                names = (aside / f"{key}.{number}" for number in count())
                return self.path(key).rename(next(name for name in names if not os.path.lexists(name)))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explained(f"could not set {self.path(key)} aside", error) from error

    def last_set_aside(self, key: str) -> Path | None:
        """Where the last output of a key is kept that was found damaged; None where none was."""
        found = [path for path in (self.root / ".aside").glob(f"{key}.*") if path.suffix[1:].isdigit()]
        return max(found, key=lambda path: int(path.suffix[1:]), default=None)

    # -- sharing with other runs -------------------------------------------------------------------------------

    @contextmanager
    def in_use(self, output_dir: Path | None = None) -> Iterator[None]:
        """Keep what is stored from being removed (by `store gc`) while a run rests on it.

        To be entered before the run looks at what is stored. Makes the store's folder. Waits, and says so, while
        something is just being removed.

        Args:
            output_dir: Where the run leaves its folder; remembered, so that its outputs count as needed later.

        Raises:
            StoreError: The folder cannot be used.
        """
        with store_lock.in_use(self.root):
            if output_dir is not None:
                store_lock.remember_user(self.root, output_dir)
            yield

    def alone(self) -> AbstractContextManager[None]:
        """Be the only one who uses the store, whose folder exists; runs that start meanwhile wait.

        Raises:
            StoreError: A run uses it, or it cannot be locked.
        """
        return store_lock.alone(self.root)

    def claim(self, key: str, run: Claim | None = None) -> Claim | None:
        """Claim the computing of a key, so that no other run does the same work; None if another has it now.

        It does not say whether the output is stored: look after claiming, since the last holder may just have
        committed it. The claim ends with `release` or with this process.

        Args:
            key: The key.
            run: The lock of the run that claims many, which is on the store's file system; see `Claim.also`.

        Raises:
            StoreError: The store cannot be written to.
        """
        try:
            return (run.also if run else locks.claim)(key, f"{self._claims}/{key}")
        except OSError as error:
            raise explained(f"could not claim {key[:12]} in {self.root}", error) from error
