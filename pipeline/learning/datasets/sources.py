"""Rows of a whole source by split, whether local files or the hub. Only an id of the hub may use the network."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import DataError, unknown_name
from pipeline.learning.datasets.base import Row
from pipeline.learning.datasets.files import HubDataset, Location, format_of
from pipeline.learning.datasets.from_files import FilesConfig, FilesDataset
from pipeline.learning.datasets.hub import reaching, why_not
from pipeline.learning.datasets.readers import Record, read_records

Rows = Callable[[], Iterator[Record]]
LOOKED_AT = 20_000
"""Rows to train on that are made before a run starts at most, which takes less than a second."""
LOOK_S = 5.0
"""Seconds in which that many are made, where code of the user's own makes them slowly."""
_READ_WHOLE = 16 << 20
"""Bytes of a ``.json`` file of which rows are made then; it is read whole for the first of them."""


@dataclass(frozen=True)
class Source:
    """An opened source.

    Attributes:
        name: As the configuration calls it, for messages.
        splits: Split -> a function that reads its rows.
    """

    name: str
    splits: Mapping[str, Rows]


@dataclass
class Look:
    """What a look at the first rows of a source has shown.

    Attributes:
        first: The first of them; None where there was none to look at.
        columns: All that they have besides their texts, each once.
        number: How many there were.
        is_all: Whether there are no more rows to train on.
    """

    first: Row | None = None
    number: int = 0
    columns: dict[str, None] = field(default_factory=dict)
    is_all: bool = False


def look_at(dataset: FilesDataset) -> Look:
    """Make the first rows to train on of local files, as `prepare` will.

    Raises:
        DataError: One cannot be made, or a split is not there.
    """
    look = Look()
    if not all(_is_soon_read(location) for location in dataset.locations().values()):
        return look
    records = itertools.islice(open_splits(dataset)["train"](), dataset.source.limit)
    give_up = time.monotonic() + LOOK_S
    for number, record in enumerate(itertools.islice(records, LOOKED_AT)):
        if time.monotonic() > give_up:
            return look
        row = dataset.make_row(number, record)
        if row is not None:
            look.first = look.first or row
            look.columns.update(dict.fromkeys(row.columns))
        look.number = number + 1
    look.is_all = next(records, None) is None
    return look


def _is_soon_read(location: Location) -> bool:
    """Whether the first rows are there at once: on this machine, and not at the end of a large file."""
    if isinstance(location, HubDataset):
        return False
    files = [file for split in location.splits.values() for file in split]
    return not any(format_of(file) == ".json" and file.stat().st_size > _READ_WHOLE for file in files)


def open_splits(dataset: FilesDataset) -> dict[str, Rows]:
    """The rows of ``train``, and of ``validation`` and ``test`` where the source has such splits.

    Raises:
        DataError: A source is not there, cannot be reached, or lacks a split that was asked for.
    """
    config = dataset.source
    sources = {name: open_source(location) for name, location in dataset.locations().items()}
    main = sources["path"]
    found = {
        "train": _only_or_named(main, config.train_split, "train"),
        "validation": _held_out(sources, "validation", config.validation_split, config),
        "test": _held_out(sources, "test", config.test_split, config),
    }
    return {name: rows for name, rows in found.items() if rows is not None}


def open_source(location: Location) -> Source:
    """Open a source; local files are read when their rows are asked for.

    Raises:
        DataError: The hub has no such dataset, or cannot be reached and the local cache has none.
    """
    if isinstance(location, HubDataset):
        return _from_hub(location)
    return Source(str(location.root), {name: _reader(files) for name, files in location.splits.items()})


def _reader(files: Sequence[Path]) -> Rows:
    return lambda: (record for path in files for record in read_records(path))


def _from_hub(location: HubDataset) -> Source:
    import datasets

    repo = location.repo
    with reaching("datasets", repo) as trouble:
        try:
            loaded = datasets.load_dataset(repo, name=location.subset, revision=location.revision)
        except Exception as error:
            # Errors of `datasets`, `huggingface_hub` and the HTTP client have no common base but this.
            reason, cause = why_not(error, trouble)
            raise DataError(
                f"{repo}: no file or folder of this name here (looked for {Path(repo).absolute()}), and the "
                f"Hugging Face hub does not give it: {reason}. On a machine with network run `hf download "
                f"--repo-type dataset {repo} --local-dir FOLDER`, copy FOLDER here and set the dataset's path to "
                "it; a local path needs no network."
            ) from cause
    splits = {str(name): _hub_reader(repo, str(name), rows) for name, rows in loaded.items()}
    return Source(repo, splits)


def _hub_reader(repo: str, split: str, rows: object) -> Rows:
    def read() -> Iterator[Record]:
        assert isinstance(rows, Sequence) or hasattr(rows, "__iter__")
        for number, row in enumerate(rows, 1):
            yield Record(f"{repo} [{split}] row {number}", row)

    return read


def _only_or_named(source: Source, asked: str | None, usual: str) -> Rows:
    name = asked or (usual if usual in source.splits or len(source.splits) != 1 else next(iter(source.splits)))
    if name not in source.splits:
        raise DataError(
            f"{source.name}: {unknown_name('split', name, source.splits)} Set {usual}_split to choose."
        )
    return source.splits[name]


def _held_out(sources: Mapping[str, Source], split: str, asked: str | None, config: FilesConfig) -> Rows | None:
    own = sources.get(f"{split}_path")
    if own is not None:
        return _only_or_named(own, asked, split)
    main = sources["path"]
    if asked is None and (split not in main.splits or config.train_split == split):
        return None
    return _only_or_named(main, asked, split)
