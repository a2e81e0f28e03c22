"""A look at rows of local files before a run starts: what `prepare` would refuse, as far as a few seconds tell."""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from dataclasses import dataclass, field

from pipeline.errors import DataError
from pipeline.learning.datasets.base import SPLITS, Row
from pipeline.learning.datasets.files import HubDataset, Location, format_of
from pipeline.learning.datasets.from_files import FilesDataset
from pipeline.learning.datasets.rows import Check, Form, MadeRow, check_source, deal, identity, made_rows
from pipeline.learning.datasets.sources import open_splits

LOOKED_AT = 20_000
"""Rows of each split that are made at most, which takes less than a second."""
LOOK_S = 5.0
"""Seconds in which that many are made, where code of the user's own makes them slowly."""
_READ_WHOLE = 16 << 20
"""Bytes of a ``.json`` file of which rows are made; it is read whole for the first of them."""


@dataclass
class Look:
    """What a look at the first rows of a source has shown.

    Attributes:
        first: The first of them to train on; None where there was none to look at.
        columns: All that those to train on have besides their texts, each once.
        unanswered: How many of those to train on have no completion, nor are whole conversations.
        number: How many there were to train on, with those that are left out.
        is_all: Whether there are no more rows to train on.
        is_conversation: Whether their prompts are conversations.
        turns: Rows of any split that are conversations, with their places.
        warnings: What dealing all rows into splits has to say.
        rows: Split -> how many rows it has once all are dealt; empty where there are more than were looked at.
    """

    first: Row | None = None
    number: int = 0
    unanswered: int = 0
    columns: dict[str, None] = field(default_factory=dict)
    is_all: bool = False
    is_conversation: bool = False
    turns: list[tuple[str, Row]] = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    rows: dict[str, int] = field(default_factory=dict)

    def take(self, made: MadeRow | None) -> None:
        """Take a row to train on into account, or one that is left out."""
        self.number += 1
        if made is not None:
            self.first = self.first or made.row
            self.columns.update(dict.fromkeys(made.row.columns))
            self.unanswered += made.row.answer is None and not made.row.whole
            self.is_conversation = not isinstance(made.row.prompt, str)


def look_at(dataset: FilesDataset, check: Check | None = None) -> Look:
    """Make the first rows of local files, as `prepare` will; deal them into splits where that is all there are.

    Args:
        dataset: It.
        check: Is asked of each row.

    Raises:
        DataError: One cannot be made or stored, a split is not there, or nothing is left to train on.
    """
    look = Look()
    if not all(_is_soon_read(location) for location in dataset.locations().values()):
        return look
    form, ids, give_up = Form(), itertools.count(), time.monotonic() + LOOK_S
    prompts: dict[str, list[bytes]] = {}
    is_whole, sources = True, open_splits(dataset)
    for split in (name for name in SPLITS if name in sources):  # train comes first
        prompts[split] = []
        records = itertools.islice(sources[split](), dataset.source.limit)
        for made in made_rows(dataset, itertools.islice(records, LOOKED_AT), form, ids):
            if time.monotonic() > give_up:
                return look
            if split == "train":
                look.take(made)
            if made is not None:
                if check is not None and (problem := check(made.row.columns, made.place)):
                    raise DataError(f"{made.place}: {problem}.")
                if not isinstance(made.row.prompt, str):
                    look.turns.append((made.place, made.row))
                prompts[split].append(identity(made.row.prompt))
        is_last = next(records, None) is None
        is_whole = is_whole and is_last
        look.is_all = look.is_all or (split == "train" and is_last)
    if is_whole:
        config = dataset.config
        check_source(dataset, form, len(prompts["train"]))
        sizes = {"test": config.test_size, "validation": config.validation_size}
        dealt = deal(prompts, sizes, config.seed)
        look.warnings = (*form.told, *dealt.warnings)
        look.rows = {split: len(places) for split, places in dealt.splits.items()}
    return look


def rows_of_small(dataset: FilesDataset) -> dict[str, int]:
    """Rows of each split of small files, as `prepare` will deal them; empty of others, and of what it will refuse.

    Rows that code of the user's own makes are not looked at.
    """
    with suppress(Exception):  # told by who looks for faults
        size = 0
        for location in dataset.locations().values():
            if dataset.config.class_path or isinstance(location, HubDataset):
                return {}
            size += sum(file.stat().st_size for split in location.splits.values() for file in split)
        if size <= _READ_WHOLE:
            return look_at(dataset).rows
    return {}


def _is_soon_read(location: Location) -> bool:
    """Whether the first rows are there at once: on this machine, and not at the end of a large file."""
    if isinstance(location, HubDataset):
        return False
    files = [file for split in location.splits.values() for file in split]
    return not any(format_of(file) == ".json" and file.stat().st_size > _READ_WHOLE for file in files)
