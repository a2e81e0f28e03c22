"""Finds and removes what a store no longer needs: outputs that no run refers to, and what was left lying around.

`find_garbage` only looks. `remove` first moves a thing out of the way by one rename, so that an interruption
leaves no half output under a key.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pipeline.engine.store.removal import leftover_weights
from pipeline.engine.store.run_refs import RunReference
from pipeline.engine.store.scratch import Scratch, leftovers, living
from pipeline.engine.store.scratch import remove as remove_leftover
from pipeline.engine.store.store import Store
from pipeline.engine.store.usage import job_of, kind_of, size_of
from pipeline.errors import StoreError
from pipeline.files import remove_tree


class GarbageKind(Enum):
    """Why something may go."""

    output = "output that no run refers to"
    aside = "damaged output, set aside"
    checkpoint = "checkpoint of no use"
    weights = "weights whose removal was cut short"
    leftover = "leftover of a run that is gone"


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """Something that may be removed.

    Attributes:
        kind: Why.
        path: The folder.
        what: What it was, for people: ``addition/tiny PITA generate``, or "".
        size: Bytes of its files.
    """

    kind: GarbageKind
    path: Path
    what: str
    size: int


@dataclass(frozen=True)
class NotRemoved:
    """Something that could not be removed.

    Attributes:
        path: What.
        reason: Why not.
    """

    path: Path
    reason: str


def find_garbage(store: Store, runs: Iterable[RunReference]) -> list[Garbage]:
    """List what may be removed, in the order of `GarbageKind`; removes nothing.

    Args:
        store: The store.
        runs: The runs whose outputs are kept.

    Raises:
        StoreError: The store cannot be read.
    """
    needed = {key for run in runs for key in run.keys}
    return [
        *_outputs(store, needed),
        *(_garbage(GarbageKind.aside, path) for path in _entries(store.root / ".aside")),
        *_checkpoints(store, needed),
        *_weights(store, needed),
        *(_garbage(GarbageKind.leftover, path) for path in _leftovers(store)),
    ]


def remove(store: Store, garbage: Iterable[Garbage]) -> Iterator[tuple[Garbage, NotRemoved | None]]:
    """Remove things one by one, and tell of each how it went. The store must be held alone."""
    bin_ = Scratch(store.scratch(f"gc-{os.getpid()}"))
    try:
        with suppress(OSError):  # a full disk: then things are removed where they are
            bin_.open()
        for number, thing in enumerate(garbage):
            yield thing, _remove(thing, bin_.path / str(number))
    finally:
        bin_.close()
    remove_dead_claims(store)


def remove_dead_claims(store: Store) -> None:
    """Remove the names that killed engines have left of their claims; others may be at work meanwhile."""
    for path in _entries(store.root / ".claims"):
        # Claiming and releasing removes one without a race.
        with suppress(StoreError):
            claim = store.claim(path.name)
            if claim is not None:
                claim.release()


def active_run(store: Store) -> str | None:
    """Name of a scratch folder whose run lives."""
    return next((path.name for path in living(store.root)), None)


def _leftovers(store: Store) -> Sequence[Path]:
    try:
        return leftovers(store.root)
    except OSError as error:
        raise StoreError(f"cannot read {error.filename}: {error.strerror}") from error


def _outputs(store: Store, needed: set[str]) -> Iterator[Garbage]:
    for key in store.stored_keys():
        if key not in needed:
            yield _garbage(GarbageKind.output, store.path(key), _what(store, key))


def _checkpoints(store: Store, needed: set[str]) -> Iterator[Garbage]:
    for path in _entries(store.root / ".checkpoints"):
        if path.name not in needed or store.has(path.name, checksums=False):
            yield _garbage(GarbageKind.checkpoint, path)


def _weights(store: Store, needed: set[str]) -> Iterator[Garbage]:
    """What `execution.keep` was removing of outputs that stay, when its run was killed."""
    for key in store.stored_keys():
        for path in leftover_weights(store, key) if key in needed else ():
            yield _garbage(GarbageKind.weights, path, _what(store, key))


def _what(store: Store, key: str) -> str:
    kind = kind_of(job_of(store, key), ())
    return f"{kind.chain} {kind.algo} {kind.stage}".strip()


def _garbage(kind: GarbageKind, path: Path, what: str = "") -> Garbage:
    return Garbage(kind=kind, path=path, what=what, size=size_of(path))


def _remove(thing: Garbage, moved: Path) -> NotRemoved | None:
    try:
        if thing.kind is GarbageKind.leftover:
            remove_leftover(thing.path, moved)
            return None
        try:
            moved.parent.mkdir(parents=True, exist_ok=True)
            thing.path.rename(moved)
        except FileNotFoundError:
            return None
        except OSError:  # a full disk may have no room for another folder
            moved = thing.path
        if problem := remove_tree(moved):
            raise problem
    except OSError as error:
        return NotRemoved(Path(str(error.filename or thing.path)), error.strerror or str(error))
    if thing.kind is GarbageKind.output:
        with suppress(OSError):  # others are still in it
            thing.path.parent.rmdir()
    return None


def _entries(folder: Path) -> Sequence[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"cannot read {folder}: {error.strerror}") from error
