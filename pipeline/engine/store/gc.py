"""Find and remove what a store no longer needs: outputs that no run refers to, and leftovers.

`find_garbage` changes nothing. `remove` first renames each item, so that an interruption leaves no partial output
under a key.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path

from pipeline.engine.run_folder import STAMP_FORMAT, RunFolder
from pipeline.engine.store.store import NOT_STORED, Scratch, Store, clear, is_lock, is_store, leftovers
from pipeline.engine.store.store import remove as remove_leftover
from pipeline.errors import ConfigError, StoreError, explaining
from pipeline.files import walk
from pipeline.foreign import read_json_file
from pipeline.outputs import manifest
from pipeline.outputs.formats import REPLIES
from pipeline.outputs.manifest import REMOVED
from pipeline.plan.recorded import LIMIT

# -- run refs ----------------------------------------------------------------------------------------------------
# References: which stored outputs the runs on disk refer to, by the keys in the ``plan.json`` of each run folder.


_OF_A_RUN = {"jobs", "workers"}


@dataclass(frozen=True, kw_only=True)
class RunReference:
    """A run folder and the outputs it refers to.

    Attributes:
        folder: The folder.
        started: When the run began, by its name, and its number among the runs of that second.
        keys: Keys of all its jobs.
    """

    folder: RunFolder
    started: tuple[str, int]
    keys: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class _Job:
    key: str


@dataclass(frozen=True, kw_only=True)
class _Plan:
    jobs: list[_Job]


def find_runs(output_dirs: Iterable[Path], store: Path) -> list[RunReference]:
    """Read the plan of every run below some folders, at any depth; the oldest first.

    Args:
        output_dirs: The folders; a missing one has no runs.
        store: Folder to leave out of the search.

    Raises:
        StoreError: A plan or a folder cannot be read, so it is unknown what its run needs.
    """
    seen = {os.path.realpath(store)}
    folders = [run for output_dir in output_dirs for run in _run_folders(output_dir, seen)]
    return sorted(map(_read, map(RunFolder, folders)), key=lambda run: (run.started, run.folder.path))


def newest_runs(runs: Iterable[RunReference], number: int) -> list[RunReference]:
    """Return the newest `number` runs of every experiment."""
    by_experiment: dict[Path, list[RunReference]] = {}
    for run in sorted(runs, key=lambda run: (run.started, run.folder.path)):
        by_experiment.setdefault(run.folder.path.parent, []).append(run)
    return [run for group in by_experiment.values() for run in group[max(0, len(group) - number) :]]


def _run_folders(output_dir: Path, seen: set[str]) -> Iterator[Path]:
    # Links are followed, since an experiment may have been moved to another disk; each folder is read once.
    for folder, inside, files in os.walk(os.path.realpath(output_dir), onerror=_refuse, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            inside.clear()
            continue
        seen.add(real)
        if "plan.json" in files or "plan.json" in inside:  # the plan is a folder, so it cannot be read
            yield Path(real)
            inside[:] = [name for name in inside if name not in _OF_A_RUN]


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise StoreError(
            f"cannot read {error.filename} ({error.strerror}), so what its runs need is unknown"
        ) from error


def _read(folder: RunFolder) -> RunReference:
    path = folder.plan
    try:
        keys = frozenset(job.key for job in read_json_file(path, _Plan, LIMIT, follow=True, infinite=True).jobs)
        written = f"{datetime.fromtimestamp(path.stat().st_mtime):{STAMP_FORMAT}}"
    except (OSError, ValueError) as error:
        raise StoreError(
            f"cannot read {path} ({error}), so what its run needs is unknown. Remove the run's folder if it is of "
            "no use"
        ) from error
    return RunReference(folder=folder, started=folder.begun or (written, 1), keys=keys)


# -- usage -------------------------------------------------------------------------------------------------------
# Contents of a store: its outputs checked one by one, and disk usage.


@dataclass(frozen=True)
class Finding:
    """An output that cannot be used.

    Attributes:
        key: Key of the output.
        job: Id of the job that made it, as far as its manifest can be read.
        problem: Description of the damage.
    """

    key: str
    job: str
    problem: str


@dataclass
class Space:
    """Number of items, and the bytes of their files."""

    number: int = 0
    size: int = 0

    def add(self, size: int, number: int = 1) -> None:
        """Add `number` items of `size` bytes."""
        self.number += number
        self.size += size


Usage = dict[tuple[str, str, str, str], Space]
"""Disk usage by (experiments whose runs refer to the outputs, dataset and model, algorithm, stage). For items
other than outputs the first element is a name in parentheses."""
_NAMED = 2


def open_store(root: Path) -> Store:
    """Open the store in a folder.

    Raises:
        ConfigError: There is none; the message says what to try.
    """
    if not os.path.isdir(root) or not is_store(root):  # noqa: PTH112 - Path.is_dir may raise
        raise ConfigError(f"{root} is no store. Give its folder, as outputs/.store, with --store or --output-dir.")
    return Store(root)


def choose_keys(store: Store, prefixes: Sequence[str]) -> list[str]:
    """Return the stored keys that begin with one of the prefixes, or all keys if there are no prefixes.

    Raises:
        ConfigError: No key begins with one of them.
    """
    keys = store.stored_keys()
    for prefix in prefixes:
        if not prefix or not any(key.startswith(prefix) for key in keys):
            example = f"; keys look like {keys[0][:12]}" if keys else "; it holds no outputs"
            raise ConfigError(f"no output in {store.root} has a key that begins with {prefix!r}{example}")
    return [key for key in keys if not prefixes or key.startswith(tuple(prefixes))]


def check_outputs(store: Store, keys: Iterable[str]) -> Iterator[Finding | None]:
    """Read every file of some outputs, and yield for each output in turn what is wrong with it, or None."""
    for key in keys:
        problem = store.problem(key)
        # Missing ones were set aside by a run meanwhile.
        good = problem in (None, NOT_STORED, REMOVED)
        yield None if good else Finding(key, job_of(store, key), str(problem))


def job_of(store: Store, key: str) -> str:
    """Return the id of the job that made an output, even if its manifest is damaged."""
    return manifest.job_of(store.path(key))


def measure(store: Store, runs: Iterable[RunReference]) -> Usage:
    """Add up the disk usage of a store. Outputs that come or go meanwhile may or may not be counted.

    Args:
        store: The store.
        runs: The runs that may refer to its outputs.

    Raises:
        StoreError: The store cannot be read.
    """
    experiments: dict[str, set[str]] = {}
    for run in runs:
        for key in run.keys:
            experiments.setdefault(key, set()).add(run.folder.experiment)
    usage, keys = Usage(), store.stored_keys()
    for key in keys:
        names = sorted(experiments.get(key, ()))
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        who = ", ".join(names[:_NAMED]) + more or "(no run)"
        usage.setdefault((who, *_kind_of(job_of(store, key))), Space()).add(size_of(store.path(key)))
    usage = dict(sorted(usage.items()))
    special = {"damaged": ".aside", "checkpoints": ".checkpoints", "unfinished": ".tmp"}
    others = {name: _entries(store.root / folder) for name, folder in special.items()}
    expected = {*special.values(), *(key[:2] for key in keys)}
    others["other"] = [path for path in _entries(store.root) if path.name not in expected]
    for name, paths in others.items():
        space = usage[f"({name})", "", "", ""] = Space()
        for path in paths:
            if not is_lock(path):
                space.add(size_of(path))
    if removed := sum(map(store.is_removed, keys)):
        usage["(weights removed)", "", "", ""] = Space(removed)
    return usage


def _kind_of(job_id: str) -> tuple[str, str, str]:
    """Split a job's id, ``addition/tiny/ref1/s0/PITA/r1/generate/003``, to dataset and model, algorithm, stage."""
    parts = job_id.split("/")
    if len(parts) > 1 and parts[-1].isdigit():
        parts.pop()
    parts = parts[:2] + [part for part in parts[2:] if not re.fullmatch(r"(s|r|ref)\d+", part)]
    return (f"{parts[0]}/{parts[1]}", parts[2], parts[3]) if len(parts) == 4 else (job_id, "", "")


def size_of(path: Path) -> int:
    """Return the bytes of all files in a folder, or of one file; unreadable ones count as 0."""
    total = 0
    with suppress(OSError):
        for _, status in walk(path):
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


class GarbageKind(Enum):
    """Reason why an item may be removed."""

    output = "output that no run refers to"
    aside = "damaged output, set aside"
    checkpoint = "checkpoint of no use"
    replies = "replies of a judge for an output that no run refers to"
    weights = "weights whose removal was cut short"
    leftover = "leftover of a run that is gone"


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """An item that may be removed.

    Attributes:
        kind: The reason.
        path: The folder.
        what: Description for people: ``addition/tiny PITA generate``, or "".
        size: Bytes of its files.
    """

    kind: GarbageKind
    path: Path
    what: str
    size: int


def find_garbage(store: Store, runs: Iterable[RunReference]) -> list[Garbage]:
    """List the items that may be removed, in the order of `GarbageKind`; removes nothing.

    Args:
        store: The store.
        runs: The runs whose outputs are kept.

    Raises:
        StoreError: The store cannot be read.
    """
    needed, keys = {key for run in runs for key in run.keys}, store.stored_keys()
    # With the key of an output where it is known.
    entries = [(GarbageKind.output, store.path(key), key) for key in keys if key not in needed]
    entries += [(GarbageKind.aside, path, "") for path in _entries(store.root / ".aside")]
    for path in _entries(store.root / ".checkpoints"):
        if path.name not in needed or store.has(path.name, checksums=False):
            entries.append((GarbageKind.checkpoint, path, ""))
    for path in sorted(store.hints.glob(f"{REPLIES}/*/*.jsonl")):
        if path.name.partition(".")[0] not in needed:
            entries.append((GarbageKind.replies, path, ""))
    for key in sorted(needed.intersection(keys)):
        entries += [(GarbageKind.weights, path, key) for path in store.leftover_weights(key)]
    with explaining(StoreError, f"cannot read {store.root}"):
        entries += [(GarbageKind.leftover, path, "") for path in leftovers(store.root)]
    garbage = []
    for why, path, key in entries:
        what = " ".join(_kind_of(job_of(store, key))).strip() if key else ""
        garbage.append(Garbage(kind=why, path=path, what=what, size=size_of(path)))
    return garbage


def remove(store: Store, garbage: Iterable[Garbage]) -> Iterator[tuple[Garbage, OSError | None]]:
    """Remove items one by one, and yield each with its error or None.

    The caller must hold the store exclusively.
    """
    bin_ = Scratch(store.scratch(f"gc-{os.getpid()}"))
    try:
        with suppress(OSError):  # a full disk: then items are removed in place
            bin_.open()
        for number, thing in enumerate(garbage):
            yield thing, _remove(thing, bin_.path / str(number))
    finally:
        bin_.close()
    remove_dead_claims(store)


def remove_dead_claims(store: Store) -> None:
    """Remove the names that killed engines have left of their claims; others may run at the same time."""
    for path in _entries(store.root / ".claims"):
        # Claiming and releasing a key removes its name without a race.
        with suppress(StoreError):
            claim = store.claim(path.name)
            if claim is not None:
                claim.release()


def _remove(thing: Garbage, moved: Path) -> OSError | None:
    try:
        if thing.kind is GarbageKind.leftover:
            remove_leftover(thing.path, moved)
            return None
        if problem := clear(thing.path, moved):
            return problem
        if thing.kind is GarbageKind.output:
            with suppress(OSError):  # others are still in it
                thing.path.parent.rmdir()
    except OSError as error:
        return error
    return None


def _entries(folder: Path) -> Sequence[Path]:
    with explaining(StoreError, f"cannot read {folder}"), suppress(FileNotFoundError):
        return sorted(folder.iterdir())
    return []
