"""Removes the weights of an output, and keeps all else of it: an output like that is told from a damaged one.

    claim the key -> decide, with the lock of `deciding` -> tombstone, forced to disk -> remove the files

Killed before the tombstone has its name, nothing has happened. Killed after, the output counts as removed although
some files are still there; whoever removes it next, or `store gc`, finishes that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from pipeline.engine.store.store import DECIDING, KEY, Store, explained, living
from pipeline.errors import StoreError
from pipeline.files import fsync, write_whole
from pipeline.foreign import ForeignDataError, read_plain
from pipeline.locks import lock
from pipeline.outputs.manifest import REMOVED, TOMBSTONE, NotAnOutputError, entomb, read_manifest, read_tombstone

# -- needs -------------------------------------------------------------------------------------------------------
# Which weights the runs that live are still going to read, so that none of them loses what another removes.
#
#     a run begins:    tell all that its plan could read -> look at what is stored -> tell less, as jobs are done
#     weights may go:  hold the lock -> does nobody who lives tell of them? -> tombstone -> free the lock -> remove
#
# So either the one that removes sees what the other tells, or the other finds the tombstone when it looks.
# `<root>/.tmp/<run>/needs` has keys, one a line; of no meaning once the run's lock is free (`Scratch`).


NEEDS = "needs"
_LIMIT = 1 << 28


def tell_needs(store: Store, scratch: Path, keys: Iterable[str]) -> None:
    """Tell other runs which weights are not to be removed while this one lives; replaces what was told before.

    Args:
        store: The store.
        scratch: The run's folder there, which is open (`Scratch`).
        keys: Of outputs, stored or still to be made.

    Raises:
        StoreError: It could not be written.
    """
    try:
        with deciding(store):
            write_whole(scratch / NEEDS, "".join(f"{key}\n" for key in sorted(keys)), durable=False)
    except OSError as error:
        raise explained(f"could not write {scratch / NEEDS}", error) from error


def needed_by_others(store: Store, scratch: Path) -> set[str]:
    """What all other runs tell that live. To be asked with the lock held.

    Args:
        store: The store.
        scratch: The folder of the run that asks.

    Raises:
        StoreError: What one of them tells cannot be read, so that nothing may be removed.
    """
    found: set[str] = set()
    for folder in living(store.root):
        if folder.name != scratch.name:
            found |= _told(folder / NEEDS)
    return found


@contextmanager
def deciding(store: Store) -> Iterator[None]:
    """Hold the lock under which needs are told, and under which it is decided what nobody needs.

    Raises:
        LocksUnsupportedError: The file system has no locks.
        OSError: The lock cannot be opened.
    """
    descriptor = os.open(store.root / DECIDING, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def _told(path: Path) -> set[str]:
    try:
        keys = read_plain(path, _LIMIT).decode("ascii").splitlines()
    except FileNotFoundError:  # a folder of another use, or a run that has not looked at what is stored
        return set()
    except (OSError, ForeignDataError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read {path} ({error}), so what its run needs is unknown") from error
    if not all(map(KEY.fullmatch, keys)):
        raise StoreError(f"cannot read {path}: it holds what is no key, so what its run needs is unknown")
    return set(keys)


def remove_weights(
    store: Store,
    key: str,
    patterns: Collection[str],
    why: str,
    scratch: Path,
    is_free: Callable[[], bool] = lambda: True,
) -> int:
    """Remove the weights of an output, unless a run that lives needs them, or makes or reads them now.

    Args:
        store: The store.
        key: The output.
        patterns: Names of files of weights, in whatever folder of the output.
        why: What asked for it, for people.
        scratch: The run's folder in the store.
        is_free: Asked last, with the lock held: whether nobody else needs them.

    Returns:
        Bytes that were freed; 0 where there is nothing to remove, or not now.

    Raises:
        StoreError: It could not be decided, or not be done.
    """
    claim = store.claim(key)
    if claim is None:
        return 0
    with claim:
        try:
            folder = os.open(store.path(key), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise explained(f"could not open {store.path(key)}", error) from error
        try:
            with deciding(store):
                if key in needed_by_others(store, scratch) or not is_free():
                    return 0
                files = _entombed(store, key, patterns, why, scratch)
            return _unlink(files, folder)
        except NotAnOutputError:  # damaged: whoever needs it sets it aside
            return 0
        except OSError as error:
            raise explained(f"could not remove the weights of {store.path(key)}", error) from error
        finally:
            os.close(folder)


def leftover_weights(store: Store, key: str) -> list[Path]:
    """Files of an output that its tombstone says are removed, and that are there: somebody was interrupted."""
    if not store.is_removed(key) or store.problem(key, checksums=False) != REMOVED:
        return []  # in a damaged one a name may lead out of the store by a link
    with suppress(NotAnOutputError, OSError):
        names = read_tombstone(key, store.path(key), read_manifest(key, store.path(key)))
        return [path for name in sorted(names) if os.path.lexists(path := store.path(key) / name)]
    return []


def weights_size(store: Store, key: str, patterns: Collection[str]) -> int:
    """Bytes of the weights of an output that are there, also of those whose removal was cut short."""
    size = 0
    with suppress(NotAnOutputError):
        for name in read_manifest(key, store.path(key))["files"]:
            if _is_weights(name, patterns):
                with suppress(OSError):
                    size += (store.path(key) / name).lstat().st_size
    return size


def _entombed(store: Store, key: str, patterns: Collection[str], why: str, scratch: Path) -> Sequence[str]:
    """The files to remove, once that is on disk."""
    problem, folder = store.problem(key, checksums=False), store.path(key)
    manifest = read_manifest(key, folder)
    if problem == REMOVED:
        return sorted(read_tombstone(key, folder, manifest))
    names = sorted(name for name in manifest["files"] if _is_weights(name, patterns))
    if problem is not None or not names:
        return []
    written = scratch / f"{key}.{TOMBSTONE}"  # not in the output, where what a killed run left would be damage
    written.write_bytes(entomb(key, folder, names, why))
    fsync(written)
    written.rename(folder / TOMBSTONE)
    fsync(folder, folder=True)
    return names


def _unlink(names: Sequence[str], folder: int) -> int:
    """Remove files of an open folder, wherever that has been moved to meanwhile."""
    freed = 0
    for name in names:
        with suppress(FileNotFoundError):
            size = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
            os.unlink(name, dir_fd=folder)
            freed += size
    return freed


def _is_weights(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(PurePosixPath(name).name, pattern) for pattern in patterns)
