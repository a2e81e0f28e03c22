"""What a tracker was told of a chain: a small file of ours, written before anything is sent and when it is safe.

The order in which batches were first sent is kept for good, as trackers count what they are told: a row that is
told once more has the same number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from pipeline.files import json_text, write_whole
from pipeline.foreign import ForeignDataError, read_json_file
from pipeline.outputs.formats import Count
from pipeline.runs.tracking.batches import Batch

_Key = Annotated[str, Meta(max_length=100)]


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a tracker was told of a chain.

    Attributes:
        name: What its run is called there.
        batches: Id and number of rows of every batch that was sent, in that order; some may not have arrived.
        kept: How many of these the tracker has for good.
    """

    name: str
    batches: Sequence[tuple[_Key, Count]] = field(default=())
    kept: Count = 0

    def lacks(self, ids: Iterable[str]) -> bool:
        """Whether the tracker may lack one of some batches."""
        return not set(ids) <= {known for known, _ in self.batches[: self.kept]}

    def extended(self, new: Iterable[Batch]) -> Told:
        """With batches that are about to be sent."""
        known = {name for name, _ in self.batches}
        added = [(batch.id, len(batch.rows)) for batch in new if batch.id not in known]
        return Told(name=self.name, batches=[*self.batches, *added], kept=self.kept)

    def all_kept(self) -> Told:
        """When everything that was sent is safe."""
        return Told(name=self.name, batches=self.batches, kept=len(self.batches))

    def first_row(self, batch_id: str) -> int:
        """How many rows were sent before a batch."""
        ids = [known for known, _ in self.batches]
        return sum(rows for _, rows in self.batches[: ids.index(batch_id)])


class ToldFiles:
    """What one tracker was told of all chains of an experiment: a file for each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, str] = {}
        """Names that are taken, as far as one was asked for: id of a chain -> its name."""

    def read(self, chain_id: str) -> Told | None:
        """What it was told of a chain; None where that is nothing, or not known any more."""
        try:
            return read_json_file(self._path(chain_id), Told)
        except (ForeignDataError, OSError):
            return None

    def write(self, chain_id: str, told: Told) -> None:
        """Note it, so that it outlives this process and the machine."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._names[chain_id] = told.name
        write_whole(self._path(chain_id), json_text(asdict(told)) + "\n")

    def free_name(self, chain_id: str, name: str) -> str:
        """The name of a chain, or with its id if that of other settings has it already."""
        for path in self._folder.glob("*.json"):
            if path.stem not in self._names and (told := self.read(path.stem)) is not None:
                self._names[path.stem] = told.name
        taken = {known for other, known in self._names.items() if other != chain_id}
        return f"{name}@{chain_id[:6]}" if name in taken else name

    def _path(self, chain_id: str) -> Path:
        return self._folder / f"{chain_id}.json"
