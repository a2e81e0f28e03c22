"""Store finished outputs by key: each is a folder, committed by one rename, with a manifest of checksums.

    <root>/ab/abcdef.../manifest.json, files      committed
    <root>/.tmp/<run>/<key>.<attempt>/            being written
    <root>/.tmp/<run>.lock                        locked by the run while it lives (`Scratch`)
    <root>/.tmp/<run>/verified/<key>.note         read and found good in this run (`Verified`)
    <root>/.aside/<key>.<n>/                      found damaged; kept for a look, never read
    <root>/.checkpoints/<key>/                    what lets an interrupted job go on; removed by its commit
    <root>/.hints/                                what makes later jobs faster, and changes no result
    <root>/.costs/ab.jsonl                        tokens and device time that outputs took (`Costs`)
    <root>/.claims/<key>                          locked by the run that computes the key
    <root>/.lock                                  held shared by runs, alone by what removes outputs
    <root>/.weights.lock                          held while it is decided that weights go (`engine.keeper`)
    <root>/.users/                                output folders whose runs use this store

A folder is valid only with its manifest, which is written last, and with files of the recorded sizes and
checksums. So no name under <root> ever shows a partial result, however the writer ended. If weights of an output
were removed later, a tombstone in it says so (`outputs.manifest`).
"""

import errno
import hashlib
import json
import logging
import math
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from pipeline import files
from pipeline.errors import DamagedOutput, StoreError, explaining
from pipeline.foreign import ForeignDataError, read_json, read_json_file, read_plain
from pipeline.outputs import manifest
from pipeline.outputs.manifest import MANIFEST, REMOVED, TOMBSTONE, NotAnOutputError

AGAIN = "run the same command again."
"""Last sentence of every error message about a disk."""
REMEDY = f"Free space there (python -m pipeline store gc) or see that you may write there, then {AGAIN}"
"""Advice when outputs cannot be written."""


# -- costs -------------------------------------------------------------------------------------------------------
# Costs of outputs, one line each:
#
#     <root>/.costs/ab.jsonl          {"key": "abcdef...", "cost": {"run_s": 1.2, "tokens": 340, ...}}
#
# They are beside the outputs rather than in manifests, which must have the same bytes whenever they are made. They
# are for people only: an error leaves a blank in a table. Lines are used because creating files takes most of the
# time of a short job's commit. Each line begins with the line break, so that a truncated line spoils no other.


COSTS = ".costs"
ANSWERS = "answers"
"""Number of completions of an evaluation."""
FLOPS = "flops"
"""Prefix; each purpose has an entry of its own, as in ``flops/training``."""
_HOW = os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
_Amount = Annotated[float, Meta(ge=0, le=1e30)]


class _Line(Struct):
    key: str
    cost: dict[str, _Amount]


class Costs:
    """Costs of the outputs of one store."""

    def __init__(self, root: Path) -> None:
        self._folder = f"{root}/{COSTS}"

    def note(self, key: str, cost: Mapping[str, float]) -> None:
        """Record what an output cost."""
        with suppress(OSError):
            line = b"\n" + files.json_text({"key": key, "cost": dict(cost)}).encode()
            files.in_folder(self._folder, lambda: files.write(f"{self._folder}/{key[:2]}.jsonl", line, _HOW))

    def of(self, key: str) -> dict[str, float]:
        """Return the costs recorded last; empty if none are known."""
        try:
            noted = read_plain(Path(f"{self._folder}/{key[:2]}.jsonl"))
        except (ForeignDataError, OSError):
            return {}
        sought, begin = key.encode(), len(noted)
        while key and (at := noted.rfind(sought, 0, begin)) >= 0:
            begin, end = noted.rfind(b"\n", 0, at) + 1, noted.find(b"\n", at)
            with suppress(ForeignDataError):
                line = read_json(noted[begin : None if end < 0 else end], _Line)
                if line.key == key:
                    return line.cost
        return {}


# -- store lock --------------------------------------------------------------------------------------------------
# Users of a store: who uses it now, and which output folders ever did; a clean-up must know both. Runs hold a
# shared lock on ``<root>/.lock`` as long as they last; a clean-up holds it exclusively.


log = logging.getLogger("pipeline")

_PATH_BYTES = 1 << 16


def _remember_user(root: Path, output_dir: Path) -> None:
    """Record that runs of an output folder use a store that lies elsewhere."""
    folder = output_dir.absolute()
    if around(root) == folder:
        return
    path = root / ".users" / hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    with suppress(OSError, ValueError):  # losing the note costs at worst a recomputation
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            files.write_whole(path, f"{folder}\n")


def around(root: Path) -> Path | None:
    """Return the output folder if the store is in its default place, ``<output_dir>/.store``; else None."""
    return root.absolute().parent if root.name == ".store" else None


def is_store(folder: Path) -> bool:
    """Return whether a folder is a store, by its name or by its contents."""
    paths = (folder / ".claims", folder / ".lock")
    return folder.name == ".store" or all(os.path.exists(path) for path in paths)  # noqa: PTH110 - Path.exists may raise


def users(root: Path) -> list[Path]:
    """Return the output folders whose runs use a store, as far as it knows."""
    folders = [folder for folder in [around(root)] if folder]
    for path in sorted((root / ".users").glob("[!.]*")):
        with suppress(OSError, ValueError):
            text = read_plain(path, _PATH_BYTES).decode().rstrip("\n")
            if text.startswith("/") and "\0" not in text:
                folders.append(Path(text))
    return folders


def _open_lock(root: Path) -> int | None:
    """Open the lock file; return None if the store is read-only and never had one."""
    path = root / ".lock"
    with explaining(StoreError, f"could not use {root}", REMEDY):
        root.mkdir(parents=True, exist_ok=True)
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
    with suppress(OSError):
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    return None


NOT_STORED = "not stored"
"""Result of `Store.problem` where nothing is stored, so nothing has to be set aside."""
KEY = re.compile(r"[0-9a-f]{40,64}")
WORTH_FORCING_S = 1.0
"""Seconds of work from which on an output is forced to disk at its commit.

Forcing waits for the disk at least four times, tens of milliseconds each on a busy disk. Recomputing shorter work
after a loss of power, which is rare, is cheaper than waiting in every run."""
_TRIES = 10
_OCCUPIED = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
DECIDING = ".weights.lock"


class Store:
    """The content-addressed store under one root. Safe for concurrent processes and runs.

    Attributes:
        root: Folder of the store.
        costs: Costs of the outputs.
        hints: Folder of data that make later jobs faster but change no result, such as batch sizes that fit.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.costs = Costs(root)
        self.hints = root / ".hints"

    def path(self, key: str) -> Path:
        """Return the path of the output of `key` once it is committed."""
        return self.root.joinpath(key[:2], key)

    def scratch(self, run: str) -> Path:
        """Return the folder for unfinished outputs of one run, on the same file system as the store."""
        return self.root / ".tmp" / run

    def checkpoints(self, key: str) -> Path:
        """Return the folder for checkpoints of an unfinished job of that key, on the store's file system."""
        return self.root / ".checkpoints" / key

    # -- reading -----------------------------------------------------------------------------------------------

    def problem(self, key: str, *, checksums: bool = True) -> str | None:
        """Say what is wrong with the output of `key`, or None if it can be used. Nothing is raised.

        `NOT_STORED` and `REMOVED` are not damage: the output is missing, or only its weights are, and they can be
        made again.

        Args:
            key: Key of the output.
            checksums: Whether to read every file; otherwise only the manifest, presence and sizes are checked.
        """
        try:
            status = os.lstat(f"{self.root}/{key[:2]}/{key}")  # called for every job of a plan
        except (FileNotFoundError, NotADirectoryError):
            return NOT_STORED
        except OSError as error:
            return f"it cannot be read ({error.strerror or error})"
        if not stat.S_ISDIR(status.st_mode):
            return "it is no folder"
        return manifest.find_problem(key, self.path(key), checksums=checksums)

    def has(self, key: str, *, checksums: bool = True) -> bool:
        """Return whether the output of `key` is stored whole."""
        return self.problem(key, checksums=checksums) is None

    def is_committed(self, key: str) -> bool:
        """Return whether an output of `key` was committed, whole or not: the cheapest check."""
        try:
            return stat.S_ISREG(os.lstat(f"{self.root}/{key[:2]}/{key}/{MANIFEST}").st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # an error of the store shows where it is read

    def is_removed(self, key: str) -> bool:
        """Return whether the weights of an output were removed, or are being removed: the cheapest check."""
        return os.path.lexists(f"{self.root}/{key[:2]}/{key}/{TOMBSTONE}") and self.is_committed(key)

    def leftover_weights(self, key: str) -> list[Path]:
        """Return the files of an output that its tombstone lists as removed but that are still there."""
        if not self.is_removed(key) or self.problem(key, checksums=False) != REMOVED:
            return []  # in a damaged one a name may lead out of the store by a link
        folder = self.path(key)
        with suppress(NotAnOutputError, OSError):
            names = manifest.read_tombstone(key, folder, manifest.read_manifest(key, folder))
            return [path for name in sorted(names) if os.path.lexists(path := folder / name)]
        return []

    def manifest(self, key: str) -> dict[str, Any]:
        """Return the manifest of a stored output.

        Raises:
            StoreError: It cannot be read, or was altered.
        """
        try:
            return manifest.read_manifest(key, self.path(key))
        except NotAnOutputError as error:
            raise StoreError(f"stored output {key[:12]}: {error}") from error

    def stored_keys(self) -> list[str]:
        """Return the keys under which something is stored, sorted; the outputs may be damaged.

        Raises:
            StoreError: The store cannot be read.
        """
        with explaining(StoreError, f"could not read {self.root}", REMEDY):
            return sorted(
                path.name for folder in self._key_folders() for path in folder.iterdir() if self._is_key(path)
            )

    def _key_folders(self) -> Iterator[Path]:
        for path in self.root.iterdir():
            if re.fullmatch("[0-9a-f]{2}", path.name) and stat.S_ISDIR(path.lstat().st_mode):
                yield path

    @staticmethod
    def _is_key(path: Path) -> bool:
        return bool(KEY.fullmatch(path.name)) and path.name[:2] == path.parent.name

    # -- writing -----------------------------------------------------------------------------------------------

    def begin(self, scratch: Path, key: str, attempt: int) -> Path:
        """Create an empty folder in which to write the output of `key`.

        Raises:
            StoreError: It cannot be made.
        """
        folder = scratch / f"{key}.{attempt}"
        with explaining(StoreError, f"could not make {folder}", REMEDY):
            try:
                files.in_folder(scratch, folder.mkdir)
            except FileExistsError:
                if problem := files.remove_tree(folder):
                    raise problem from None
                folder.mkdir()
        return folder

    def commit(
        self,
        key: str,
        folder: Path,
        about: Mapping[str, Any],
        took_s: float = math.inf,
        entries: Mapping[str, os.stat_result] | None = None,
    ) -> Path:
        """Commit a finished folder as the output of `key`.

        The first commit of a key wins: a later one has the same content and is dropped. If the weights of the
        first were removed, the later one replaces it.

        Args:
            key: The key.
            folder: The folder from `begin`, now filled.
            about: Recorded in the manifest (job, versions); not part of the result.
            took_s: Seconds of work to make the output again. Below `WORTH_FORCING_S` the output is not forced to
                disk; if the machine loses power soon after, it may be missing or damaged.
            entries: Result of `walk` for the folder; walked here if None.

        Raises:
            StoreError: The output could not be written, or has an entry that no output may have. The store then
                has the whole output or none.
        """
        target, forced = self.path(key), took_s >= WORTH_FORCING_S
        try:
            entries = dict(files.walk(folder)) if entries is None else entries
            if own := [name for name in (MANIFEST, TOMBSTONE) if name in entries]:
                raise StoreError(f"could not commit {key[:12]}: its job wrote a {own[0]}, which is the store's")
            files.write(f"{folder}/{MANIFEST}", manifest.describe(key, folder, about, entries), os.O_EXCL)
            if forced:
                for name, status in files.walk(folder):
                    files.fsync(folder / name, folder=stat.S_ISDIR(status.st_mode))
            files.in_folder(target.parent, lambda: self._publish(key, folder, target))
            if forced:
                files.fsync(target.parent, folder=True)
                files.fsync(self.root, folder=True)
        except NotAnOutputError as error:
            raise StoreError(
                f"could not commit {key[:12]}: {error}, and an output holds only plain files and folders"
            ) from error
        except manifest.StillChangingError as error:
            raise StoreError(f"could not commit {key[:12]}: {error}") from error
        except OSError as error:
            why = error.strerror or error
            raise StoreError(f"could not commit {key[:12]} to {self.root}: {why}. {REMEDY}") from error
        return target

    def _publish(self, key: str, folder: Path, target: Path) -> None:
        # Between any two steps another run may commit the same key, or set aside the same damaged output.
        for tries_left in reversed(range(_TRIES)):
            try:
                os.rename(folder, target)  # noqa: PTH104 - that of a path makes another one
                return
            except OSError as error:
                if not tries_left or error.errno not in _OCCUPIED:
                    raise
            problem = self.problem(key)
            if problem is None:
                files.remove_tree(folder)
                return
            if problem == REMOVED:
                self._make_way(key, folder.with_name(f"{folder.name}.before"))
            else:
                self.set_aside(key)

    def _make_way(self, key: str, moved: Path) -> None:
        """Remove an output whose weights are gone, so that the whole output can replace it."""
        with files.one_at_a_time(self.path(key).parent):
            if self.problem(key) == REMOVED:
                self.path(key).rename(moved)
        files.remove_tree(moved)

    def set_aside(self, key: str) -> Path | None:
        """Move a damaged output out of the way, so that it is made again but can still be inspected.

        The output is checked again first. If several processes found the same damage, one moves it, and the others
        cannot move the new output made in between.

        Returns:
            Its new path, or None if it was already gone or is not damaged.

        Raises:
            StoreError: The output cannot be moved.
        """
        aside = self.root / ".aside"
        with explaining(StoreError, f"could not set {self.path(key)} aside", REMEDY), suppress(FileNotFoundError):
            aside.mkdir(parents=True, exist_ok=True)
            with files.one_at_a_time(aside):
                problem = self.problem(key)
                if problem not in (None, NOT_STORED, REMOVED):
                    names = (aside / f"{key}.{number}" for number in count())
                    return self.path(key).rename(next(name for name in names if not os.path.lexists(name)))
        return None

    def last_set_aside(self, key: str) -> Path | None:
        """Return the path of the last damaged output of a key that was set aside; None if there is none."""
        paths = [path for path in (self.root / ".aside").glob(f"{key}.*") if path.suffix[1:].isdigit()]
        return max(paths, key=lambda path: int(path.suffix[1:]), default=None)

    # -- sharing with other runs -------------------------------------------------------------------------------

    @contextmanager
    def in_use(self, output_dir: Path | None = None) -> Iterator[None]:
        """Keep stored outputs from being removed (by `store gc`) while a run uses them.

        Enter it before the run reads the store. It creates the store's folder. It waits, and says so, while a
        clean-up is removing outputs.

        Args:
            output_dir: Output folder of the run; recorded, so that its outputs count as needed later.

        Raises:
            StoreError: The folder cannot be used.
        """
        descriptor = _open_lock(self.root)
        try:
            with suppress(files.LocksUnsupportedError):
                if descriptor is not None and not files.lock(descriptor, shared=True, wait=False):
                    log.warning("waiting for the clean-up of %s to end", self.root)
                    files.lock(descriptor, shared=True)
            if output_dir is not None:
                _remember_user(self.root, output_dir)
            yield
        finally:
            if descriptor is not None:
                os.close(descriptor)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the store exclusively; its folder must exist. Runs that start meanwhile wait.

        Raises:
            StoreError: A run uses it, or it cannot be locked.
        """
        descriptor = _open_lock(self.root)
        if descriptor is None:
            raise StoreError(f"{self.root} cannot be written to, so nothing in it can be removed")
        try:
            if not files.lock(descriptor, wait=False):
                raise StoreError(f"a run is using {self.root}: nothing was removed. Try again when it has ended.")
            yield
        except files.LocksUnsupportedError as error:
            raise StoreError(f"{self.root}: without locks whether a run uses it is unknown") from error
        finally:
            os.close(descriptor)

    def claim(self, key: str) -> files.Claim | None:
        """Lock a key so that no other run computes it; return None if another run holds it.

        Check whether the output is stored after claiming it, since the last holder may just have committed it. The
        claim ends with `release` or with this process.

        Raises:
            StoreError: The store cannot be written to.
        """
        with explaining(StoreError, f"could not claim {key[:12]} in {self.root}", REMEDY):
            return files.claim(f"{self.root}/.claims/{key}")


# -- scratch -----------------------------------------------------------------------------------------------------
# Scratch folders for unfinished outputs of runs, and the rule that tells which of them are leftovers.
#
#     <root>/.tmp/<run>-<pid>/        the folder
#     <root>/.tmp/<run>-<pid>.lock    locked by the run while it lives; created before the folder, removed after it
#
# A folder whose lock is free belongs to a run that has ended: the kernel frees the locks of a process that dies,
# and the server of a shared file system those of a machine that dies. Process ids are not used, since they mean
# nothing on another machine. Where locks are not supported, no folder counts as a leftover.


_NAME = re.compile(r".+-\d+")
"""Pattern of the folder names of runs. Files that people have put beside them are left alone."""
_LOCK = ".lock"


class Scratch:
    """Scratch folder of one run, from `open` to `close`."""

    def __init__(self, path: Path) -> None:
        """Describe the folder; nothing is created yet.

        Args:
            path: Path from `Store.scratch` for a name that no other run has, and that ends with the process id.
        """
        self.path = path
        self._claim: files.Claim | None = None

    def open(self) -> None:
        """Create the lock, then the folder.

        Raises:
            OSError: They cannot be made.
        """
        self._claim = files.claim(lock_of(self.path), wait=True)
        self.path.mkdir(exist_ok=True)

    def close(self) -> None:
        """Remove the folder, then the lock; calling it again does nothing."""
        files.remove_tree(self.path)
        if self._claim is not None:
            self._claim.release()


def lock_of(path: Path) -> Path:
    """Return the lock file of a scratch folder, beside it."""
    return path.with_name(path.name + _LOCK)


def is_lock(path: Path) -> bool:
    """Return whether a path beside scratch folders is the lock of one."""
    return path.name.endswith(_LOCK)


def living(root: Path) -> list[Path]:
    """Return the scratch folders of a store's live runs, on all machines."""
    return [path for path in _folders(root) if _is_held(path)]


def leftovers(root: Path) -> list[Path]:
    """Return the scratch folders of a store's ended runs; some have only the lock left.

    Raises:
        OSError: The store cannot be read.
    """
    return [path for path in _folders(root) if _NAME.fullmatch(path.name) and not _is_held(path)]


def remove_leftovers(root: Path, mine: Path) -> None:
    """Remove the leftovers in a store. One that cannot be removed stays: it costs only disk space.

    Args:
        root: Folder of the store.
        mine: Scratch folder of the calling run. Each leftover is first moved into it, so that a worker that
            outlives its engine by a moment cannot write to it any more.
    """
    with suppress(OSError):
        for number, path in enumerate(leftovers(root)):
            with suppress(OSError):
                remove(path, mine / f"swept.{number}")


def remove(path: Path, moved: Path) -> None:
    """Rename a leftover and remove it, unless another process is doing so.

    Raises:
        OSError: It cannot be removed.
    """
    lock = files.claim(lock_of(path))
    if lock is None:
        return
    with lock:
        if problem := clear(path, moved):
            raise problem


def clear(path: Path, moved: Path) -> OSError | None:
    """Rename something and then remove it, so that its name never shows a part; return an error of removing."""
    try:
        moved.parent.mkdir(parents=True, exist_ok=True)
        path.rename(moved)
    except FileNotFoundError:
        return None
    except OSError:  # a full disk may have no room for another folder
        moved = path
    return files.remove_tree(moved)


def _folders(root: Path) -> list[Path]:
    try:
        names = {entry.name.removesuffix(_LOCK) for entry in os.scandir(root / ".tmp")}
    except FileNotFoundError:
        return []
    return sorted(root / ".tmp" / name for name in names)


def _is_held(path: Path) -> bool:
    try:
        return files.is_held(lock_of(path))
    except OSError:  # without lock support, or owned by another user: whether it is held is unknown
        return True


# -- verified ----------------------------------------------------------------------------------------------------
# Verification: which stored outputs this run has read and found intact, so that each is read once for all jobs.
#
#     problem(key) --> note of this run? --> every entry unchanged --> intact, after one `lstat` an entry
#                           | none, or something differs
#                           v
#                      read everything --> good: leave a note
#
# The notes are in the run's scratch folder, one small file per key, shared by the engine and its workers. If a
# note is lost or garbled, the output is read again.


Fingerprints = Mapping[str, list[int]]
"""Name of a file or folder -> size, inode, modification time, status change time (both in ns). The device number
is left out: it differs between machines that mount a network disk, which would make them distrust each other's
notes and read everything again."""

_TICK_NS = 20_000_000
"""Longer than the resolution of file timestamps: a change within one step leaves no new time."""
_SECOND_NS = 1_000_000_000
_LIMIT = 1 << 30


class Verified:
    """Checks stored outputs, and remembers the intact ones for the length of one run.

    Safe for concurrent processes: one of them reads an output while the others wait for its note.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        """Use the notes in a folder.

        Args:
            store: The store.
            folder: Folder of the run's notes, for example ``store.scratch(run) / "verified"``; created when
                needed.
        """
        self.store = store
        self.folder = folder

    def problem(self, key: str) -> str | None:
        """Say what is wrong with the output of `key`, as `Store.problem` does, or None if it can be used."""
        if not os.path.lexists(f"{self.store.root}/{key[:2]}/{key}"):  # called for every job
            return NOT_STORED
        if self._unchanged(key):
            return None
        with suppress(OSError), files.one_at_a_time(self.store.path(key)):
            return None if self._unchanged(key) else self._read(key)
        return self._read(key)  # not stored, or no permission to open it: it says which

    def require(self, key: str) -> None:
        """Check that the output of `key` can be used.

        Raises:
            DamagedOutput: The output cannot be used.
        """
        problem = self.problem(key)
        if problem is not None:
            raise DamagedOutput(key, problem)

    def _read(self, key: str) -> str | None:
        before = self._fingerprints(key)
        settled = before is not None and _wait_until_settled(before)
        problem = self.store.problem(key)
        if problem is None and settled and before is not None and before == self._fingerprints(key):
            self._note(key, before)
        return problem

    def _unchanged(self, key: str) -> bool:
        try:
            folder, entries = self.store.path(key), read_json_file(self._path(key), dict[str, list[int]], _LIMIT)
            return "." in entries and all(
                _fingerprint((folder / name).lstat()) == seen for name, seen in entries.items()
            )
        except (OSError, ForeignDataError):
            return False

    def _fingerprints(self, key: str) -> Fingerprints | None:
        try:
            return {name: _fingerprint(status) for name, status in files.walk(self.store.path(key))}
        except OSError:
            return None

    def _note(self, key: str, entries: Fingerprints) -> None:
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            files.write_whole(self._path(key), json.dumps(entries), durable=False)  # useless after the run

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.note"


def _fingerprint(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]


def _wait_until_settled(entries: Fingerprints) -> bool:
    """Wait until any later change is sure to leave a new timestamp; return False if that would take too long."""
    newest = max(entry[-1] for entry in entries.values())
    step = _TICK_NS if newest % _SECOND_NS else 2 * _SECOND_NS  # a file system with timestamps in whole seconds
    missing = newest + step - time.time_ns()
    if 0 < missing <= _TICK_NS:
        time.sleep(missing / _SECOND_NS)
        return True
    return missing <= 0
