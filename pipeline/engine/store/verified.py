"""Which stored outputs were read and found good in this run, so that each is read once, whoever uses it.

    problem(key) --> note of the run? --> every entry as it was then --> good, after one `lstat` an entry
                          | none, or something differs
                          v
                     read everything --> good: leave a note

The notes lie in the run's scratch folder, one small file a key, and are shared by the engine and its workers. A
note that is lost or garbled costs reading the output again and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pipeline.engine.store.store import NOT_STORED, Store
from pipeline.errors import DamagedOutput
from pipeline.files import replacing, walk
from pipeline.foreign import ForeignDataError, read_json, read_plain
from pipeline.locks import one_at_a_time

Fingerprints = Mapping[str, list[int]]
"""Name of a file or folder -> size, inode, time of change, time of change of status (both in ns).

Not its device: to each machine that mounts a disk of the network it has another number, in the order of mounts, so
that machines would not take each other's notes and read everything again.
"""

_TICK_NS = 20_000_000
"""More than the step of the clock that stamps files: within one step a change leaves no new time."""
_SECOND_NS = 1_000_000_000
_LIMIT = 1 << 30


class Verified:
    """Checks stored outputs, and remembers for the length of one run which were good.

    Safe for any number of processes: one of them reads an output while the others wait for its note.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        """Use the notes in a folder.

        Args:
            store: The store.
            folder: The run's own, for example ``store.scratch(run) / "verified"``; made when needed.
        """
        self.store = store
        self.folder = folder

    def problem(self, key: str) -> str | None:
        """Say what is wrong with the output of `key`, as `Store.problem` does, or None if it can be used."""
        if not os.path.lexists(f"{self.store.root}/{key[:2]}/{key}"):  # asked of every job
            return NOT_STORED
        if self._unchanged(key):
            return None
        with suppress(OSError), one_at_a_time(self.store.path(key)):
            return None if self._unchanged(key) else self._read(key)
        return self._read(key)  # not stored, or not ours to open: it says which

    def require(self, key: str) -> None:
        """Check that the output of `key` can be used.

        Raises:
            DamagedOutput: It cannot.
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
            digest, _, noted = read_plain(self._path(key), _LIMIT).partition(b"\n")
            if digest != _digest(key, noted):
                return False
            folder, entries = self.store.path(key), read_json(noted, dict[str, list[int]])
            return all(_fingerprint((folder / name).lstat()) == seen for name, seen in entries.items())
        except (OSError, ForeignDataError):
            return False

    def _fingerprints(self, key: str) -> Fingerprints | None:
        try:
            return {name: _fingerprint(status) for name, status in walk(self.store.path(key))}
        except OSError:
            return None

    def _note(self, key: str, entries: Fingerprints) -> None:
        path = self._path(key)
        noted = json.dumps(entries).encode()
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with replacing(path, durable=False) as temporary:  # a note has no use after the run
                temporary.write_bytes(_digest(key, noted) + b"\n" + noted)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.note"


def _digest(key: str, noted: bytes) -> bytes:
    return hashlib.sha256(key.encode() + noted).hexdigest().encode()


def _fingerprint(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]


def _wait_until_settled(entries: Fingerprints) -> bool:
    """Wait until a change from now on is sure to leave a new time; False if that would take too long."""
    newest = max(entry[-1] for entry in entries.values())
    step = _TICK_NS if newest % _SECOND_NS else 2 * _SECOND_NS  # a file system that counts whole seconds
    missing = newest + step - time.time_ns()
    if 0 < missing <= _TICK_NS:
        time.sleep(missing / _SECOND_NS)
        return True
    return missing <= 0
