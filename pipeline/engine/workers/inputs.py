"""Whether the inputs of a job are what was committed: small ones are read before it, large ones while it loads.

    read before in this run, or small    checked, then the job begins
    large                                names and sizes are compared, then the job begins, and a thread reads
                                         them beside it; so the disk is read once for both

Nothing comes of a job before all of them were found good: its first progress waits for that, and its first
question whether the run is about to end, before which it has done no more than a step and saved nothing; and so do
its end and its failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Thread
from types import TracebackType
from typing import ParamSpec, TypeVar

from pipeline.engine.store.verified import Verified
from pipeline.errors import DamagedOutput, StoreError

LARGE_BYTES = 64 << 20
"""From which size on an output is read beside the job: what is smaller is hashed in a tenth of a second."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class InputChecks:
    """The checks of the inputs of one attempt, for as long as its code runs."""

    def __init__(self, verified: Verified, keys: Iterable[str], *, beside: bool) -> None:
        """Prepare.

        Args:
            verified: Notes on what was found good in this run.
            keys: Of the inputs.
            beside: Whether large ones may be read while the job runs; else all are read before.
        """
        self._verified = verified
        self._keys = list(dict.fromkeys(keys))
        self._beside = beside
        self._later: list[str] = []
        self._thread: Thread | None = None
        self._found: BaseException | None = None

    def __enter__(self) -> InputChecks:
        """Check what is small, and begin with the rest.

        Raises:
            DamagedOutput: One is not what was committed, as far as was looked.
        """
        for key in self._keys:
            if self._beside and self._is_large(key):
                if problem := self._verified.store.problem(key, checksums=False):
                    raise DamagedOutput(key, problem)
                self._later.append(key)
            else:
                self._verified.require(key)
        if self._later:
            thread = Thread(target=self._read, name="inputs", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads for this process
                for key in self._later:
                    self._verified.require(key)
            else:
                self._thread = thread
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the rest; what a job says of damaged inputs is a consequence of these.

        Raises:
            DamagedOutput: One is not what was committed.
        """
        if isinstance(error, KeyboardInterrupt):
            return  # the job is cut off, and nothing of it is kept
        try:
            self.wait()
        except DamagedOutput as damage:
            raise damage from (None if error is damage else error)

    def wait(self) -> None:
        """Wait until all inputs were read.

        Raises:
            DamagedOutput: One is not what was committed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._found is not None:
            raise self._found

    @property
    def are_good(self) -> bool:
        """Whether all inputs were read by now, and found good."""
        return self._thread is None and self._found is None

    @property
    def found_damaged(self) -> bool:
        """Whether one was found damaged that the job may have read."""
        return isinstance(self._found, DamagedOutput)

    def before(self, call: Callable[_P, _T]) -> Callable[_P, _T]:
        """The same, once all inputs were found good."""

        def held(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            self.wait()
            return call(*args, **kwargs)

        return held

    def _is_large(self, key: str) -> bool:
        if self._verified.is_noted(key):
            return False
        try:
            files = self._verified.store.manifest(key)["files"]
        except StoreError:
            return False
        size: int = sum(entry["size"] for entry in files.values())
        return size >= LARGE_BYTES

    def _read(self) -> None:
        try:
            for key in self._later:
                self._verified.require(key)
        except BaseException as error:  # raised where the job waits: what was not read to its end is not good
            self._found = error
