"""Which weights the runs that live are still going to read, so that none of them loses what another removes.

    a run begins:   tell all that its plan could read -> look at what is stored -> tell less, as jobs are done
    weights may go: hold the lock -> does nobody who lives tell of them? -> tombstone -> free the lock -> remove

So either the one that removes sees what the other tells, or the other finds the tombstone when it looks.

    <root>/.tmp/<run>/needs     keys, one a line; of no meaning once the run's lock is free (`scratch.py`)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.engine.store.os_errors import explained
from pipeline.engine.store.scratch import living
from pipeline.engine.store.store import DECIDING, KEY, Store
from pipeline.errors import StoreError
from pipeline.files import write_whole
from pipeline.foreign import ForeignDataError, read_plain
from pipeline.locks import lock

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
