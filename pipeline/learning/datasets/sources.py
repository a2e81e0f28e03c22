"""Rows of a whole source by split, whether local files or the hub. Only an id of the hub may use the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import DataError, unknown_name
from pipeline.learning.datasets.files import HubDataset, Location
from pipeline.learning.datasets.from_files import FilesConfig, FilesDataset
from pipeline.learning.datasets.hub import reaching, why_not
from pipeline.learning.datasets.readers import Record, read_records

Rows = Callable[[], Iterator[Record]]


@dataclass(frozen=True)
class Source:
    """An opened source.

    Attributes:
        name: As the configuration calls it, for messages.
        splits: Split -> a function that reads its rows.
    """

    name: str
    splits: Mapping[str, Rows]


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
