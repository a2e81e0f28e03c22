"""What a worker has besides a job: models that stay in its memory, and a folder for those that it reads back."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any


class ModelCache:
    """Keeps up to `capacity` loaded objects by key. They are shared between jobs, so nobody may change them."""

    def __init__(self, capacity: int) -> None:
        """Make an empty cache for `capacity` objects, at least 1."""
        self.capacity = capacity
        self._kept: OrderedDict[tuple[str, ...], Any] = OrderedDict()
        self._used: set[tuple[str, ...]] = set()

    @property
    def holds_any(self) -> bool:
        """Whether anything is loaded."""
        return bool(self._kept)

    def begin_job(self) -> None:
        """Count from here which objects a job works with."""
        self._used.clear()

    def drop_unused(self) -> bool:
        """Let go of all that the present job has not asked for.

        Returns:
            Whether there was anything.
        """
        unused = self._kept.keys() - self._used
        for key in unused:
            del self._kept[key]
        return bool(unused)

    def get(
        self, key: tuple[str, ...], load: Callable[[], Any], loading: Callable[[], AbstractContextManager[None]]
    ) -> Any:
        """The object of a key, loaded if it is not kept.

        Args:
            key: Names it.
            load: Loads it.
            loading: Context in which that is timed.
        """
        self._used.add(key)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        while len(self._kept) >= self.capacity:
            # Before loading, so that the memory of both is never needed at once.
            self._kept.popitem(last=False)
        with loading():
            self._kept[key] = load()
        return self._kept[key]


_scratch: list[Path] = []


def scratch_folder() -> Path | None:
    """Where whole models are written that are only read back; None outside of jobs, which is the usual place.

    Elsewhere they would stay when a worker is killed, gigabytes of each.
    """
    return _scratch[-1] if _scratch else None


@contextmanager
def scratch_in(place: Path) -> Iterator[None]:
    """Write there for as long as a job runs.

    Args:
        place: A folder that its run removes whatever becomes of the job.
    """
    _scratch.append(place)
    try:
        yield
    finally:
        _scratch.pop()
