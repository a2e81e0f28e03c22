"""Keep what a worker has beyond one job: models in its memory, and a folder for models to read back."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any


class ModelCache:
    """Keeps up to `capacity` loaded objects by key. Jobs share them, so nobody may change them."""

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
        """Start a job: forget which objects earlier jobs used."""
        self._used.clear()

    def drop_unused(self) -> bool:
        """Drop all objects that the current job has not requested.

        Returns:
            Whether there were any.
        """
        unused = self._kept.keys() - self._used
        for key in unused:
            del self._kept[key]
        return bool(unused)

    def get(
        self, key: tuple[str, ...], load: Callable[[], Any], loading: Callable[[], AbstractContextManager[None]]
    ) -> Any:
        """Return the object of a key, loaded if it is not in the cache.

        Args:
            key: Key of the object.
            load: Loads the object.
            loading: Context that measures the loading time.
        """
        self._used.add(key)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        while len(self._kept) >= self.capacity:
            # Before loading, so that both objects are never in memory at once.
            self._kept.popitem(last=False)
        with loading():
            self._kept[key] = load()
        return self._kept[key]


_scratch: list[Path] = []


def scratch_folder() -> Path | None:
    """Return the folder for models that are written only to be read back.

    None outside of jobs, for the default folder.

    In the default folder they would stay when a worker is killed, gigabytes each.
    """
    return _scratch[-1] if _scratch else None


@contextmanager
def scratch_in(folder: Path) -> Iterator[None]:
    """Use a scratch folder while a job runs.

    Args:
        folder: Folder that the run removes however the job ends.
    """
    _scratch.append(folder)
    try:
        yield
    finally:
        _scratch.pop()
