"""Reading a source once: `prepare` writes its rows by split, `PreparedDataset` serves them to every chain.

    train.parquet, validation.parquet, test.parquet     id, prompt, completion, chosen, rejected, columns
    dataset.json                                        rows of each split, columns, fingerprint, warnings

Conversations and further columns are JSON inside Parquet: rows may differ in them, and come back as they were.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.config.bases import DatasetConfig
from pipeline.errors import ConfigError, DataError
from pipeline.files import replacing, write_whole
from pipeline.learning.datasets.base import SPLITS, Dataset, Row, Text
from pipeline.learning.datasets.columns import ANSWERS
from pipeline.learning.datasets.fingerprint import source_fingerprint
from pipeline.learning.datasets.from_files import FilesDataset
from pipeline.learning.datasets.readers import Record
from pipeline.learning.datasets.rows import TEXTS, Check, Form, SplitRows, check_source, deal, identity, made_rows
from pipeline.learning.datasets.sources import open_splits
from pipeline.outputs.formats import DATASET

log = logging.getLogger(__name__)

FILE = DATASET
FORMAT = 1
SCHEMA = pa.schema(
    [("id", pa.int64()), *((name, pa.large_string()) for name in TEXTS), ("columns", pa.large_string())]
)
_BATCH = 1000
_BATCH_SIZE = 16 << 20
"""Characters of rows that are held as objects at once."""


def prepare(dataset: Dataset, out: Path) -> dict[str, Any]:
    """Read the source of a dataset once and write its rows by split.

    The same source, configuration and seed give the same bytes. A split with fewer rows than were asked for has
    what there is, and a warning says so.

    Args:
        dataset: One that is read rather than made.
        out: Folder to write to.

    Returns:
        What ``dataset.json`` holds.

    Raises:
        ConfigError: The dataset needs no preparation.
        DataError: The source is not there, damaged, or a row of it cannot be used.
    """
    config = dataset.config
    if not isinstance(dataset, FilesDataset):
        raise ConfigError(f"dataset '{config.kind}' makes its rows; there is nothing to prepare")
    tables, form = _read(dataset)
    prompts = {split: _identities(table, form.conversational) for split, table in tables.items()}
    dealt = deal(prompts, {"test": config.test_size, "validation": config.validation_size}, config.seed)
    warnings = [*form.told, *dealt.warnings]
    for warning in warnings:
        log.warning("dataset '%s': %s", config.kind, warning)
    out.mkdir(parents=True, exist_ok=True)
    written = {split: _taken(tables, dealt, split) for split in SPLITS}
    for split, table in written.items():
        write_parquet(out / f"{split}.parquet", table)
    about = {
        "format": FORMAT,
        "kind": config.kind,
        "rows": {split: table.num_rows for split, table in written.items()},
        **form.described(),
        "source": source_fingerprint(dataset),
        "sha256": _digest(written.values()),
        "warnings": warnings,
    }
    write_whole(out / FILE, json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    return about


def check_rows(dataset: Dataset, check: Check) -> None:
    """Read the source of a dataset once more, and ask of each row as it is stored what is wrong with it.

    Raises:
        DataError: Something is; says of which row.
    """
    assert isinstance(dataset, FilesDataset)
    _read(dataset, check)


def add_warnings(prepared: Path, out: Path, warnings: Sequence[str]) -> None:
    """Write what is said of a prepared dataset with further warnings, which every start repeats."""
    about = json.loads((prepared / FILE).read_bytes())
    about["warnings"] += warnings
    write_whole(out / FILE, json.dumps(about, indent=1, ensure_ascii=False) + "\n")


def places_of(dataset: Dataset, ids: Collection[int]) -> dict[int, str]:
    """Where rows are in their files, for messages: the source is read again as far as the last of them."""
    assert isinstance(dataset, FilesDataset)
    sources, numbers, found = open_splits(dataset), itertools.count(), dict[int, str]()
    for split in (name for name in SPLITS if name in sources):
        for record in itertools.islice(sources[split](), dataset.source.limit):
            if len(found) == len(ids):
                return found
            if (number := next(numbers)) in ids:
                found[number] = record.place.rpartition("/")[2]
    return found


class PreparedDataset(Dataset):
    """The rows that `prepare` wrote. A split is memory-mapped when a row of it is first asked for."""

    prepared = True

    def __init__(self, folder: Path) -> None:
        """Open a folder.

        Args:
            folder: Where `prepare` wrote.

        Raises:
            DataError: It did not write there, or in another format.
        """
        try:
            self.about: Mapping[str, Any] = json.loads((folder / FILE).read_bytes())
        except (OSError, ValueError) as error:
            raise DataError(f"{folder}: no prepared dataset ({FILE} cannot be read: {error})") from error
        if self.about.get("format") != FORMAT:
            raise DataError(
                f"{folder}: prepared in format {self.about.get('format')}, this version reads {FORMAT}"
            )
        super().__init__(DatasetConfig(kind=str(self.about["kind"])))
        self._folder = folder
        self._tables: dict[str, pa.Table] = {}
        self._splits = {split: self._column(split, "id") for split in SPLITS}
        ids = np.concatenate([self._splits[split] for split in SPLITS])
        self._sorted = np.argsort(ids)
        self._ids = ids[self._sorted]
        self._starts = np.cumsum([0, *(len(self._splits[split]) for split in SPLITS)])

    def row(self, row_id: int) -> Row:
        """The row of an id.

        Raises:
            DataError: There is no such row.
        """
        at = int(np.searchsorted(self._ids, row_id))
        if at == len(self._ids) or self._ids[at] != row_id:
            raise DataError(f"{self._folder}: no row {row_id}; it was left out, or the id is from another dataset")
        position = int(self._sorted[at])
        split = int(np.searchsorted(self._starts, position, "right")) - 1
        found = self._table(SPLITS[split]).slice(position - int(self._starts[split]), 1).to_pylist()[0]
        kept = json.loads(found["columns"])
        texts = {name: self._text(found[name]) for name in ANSWERS}
        prompt = self._text(found["prompt"])
        assert prompt is not None
        columns = {name: kept.get(name) for name in self.about["columns"]}
        return Row(int(row_id), prompt, columns, **texts, whole=bool(self.about.get("whole")))

    def _text(self, stored: str | None) -> Text | None:
        if stored is None or not self.about["conversational"]:
            return stored
        turns: list[dict[str, Any]] = json.loads(stored)
        return turns

    def _table(self, split: str) -> pa.Table:
        if split not in self._tables:
            self._tables[split] = pq.read_table(self._folder / f"{split}.parquet", memory_map=True)
        return self._tables[split]

    def _column(self, split: str, name: str) -> NDArray[np.int64]:
        path = self._folder / f"{split}.parquet"
        column: NDArray[np.int64] = pq.read_table(path, columns=[name], memory_map=True)[name].to_numpy()
        return column


def _read(dataset: FilesDataset, check: Check | None = None) -> tuple[dict[str, pa.Table], Form]:
    """All rows of a source as one table per split that it has; ids count on from split to split."""
    form = Form()
    ids = itertools.count()
    sources = open_splits(dataset)
    tables: dict[str, pa.Table] = {}
    for split in SPLITS:
        if split in sources:
            records = itertools.islice(sources[split](), dataset.source.limit)
            batches = list(_batches(dataset, records, form, ids, check))
            tables[split] = pa.Table.from_batches(batches, SCHEMA)
    check_source(dataset, form, tables["train"].num_rows)
    return tables, form


def _batches(
    dataset: FilesDataset, records: Iterator[Record], form: Form, ids: Iterator[int], check: Check | None
) -> Iterator[pa.RecordBatch]:
    stored: list[dict[str, Any]] = []
    size = 0
    for made in made_rows(dataset, records, form, ids):
        if made is None:
            continue
        stored.append(made.stored)
        # As they are stored, since that is what rewards are given.
        if check is not None and (problem := check(json.loads(made.stored["columns"]), made.place)):
            raise DataError(f"{made.place}: {problem}.")
        size += sum(len(text) for text in made.stored.values() if isinstance(text, str))
        if len(stored) == _BATCH or size > _BATCH_SIZE:
            yield pa.RecordBatch.from_pylist(stored, SCHEMA)
            stored, size = [], 0
    yield pa.RecordBatch.from_pylist(stored, SCHEMA)


def _identities(table: pa.Table, conversational: bool) -> list[bytes]:
    return [identity(json.loads(text) if conversational else text) for text in _prompts(table)]


def _prompts(table: pa.Table) -> Iterator[str]:
    for batch in table.select(["prompt"]).to_batches():
        yield from batch.column(0).to_pylist()


def _taken(tables: Mapping[str, pa.Table], dealt: SplitRows, split: str) -> pa.Table:
    source = tables["train" if split in dealt.cut else split]
    return source.take(pa.array(dealt.splits[split])).combine_chunks()


def _digest(tables: Iterable[pa.Table]) -> str:
    whole = hashlib.sha256()
    for table in tables:
        for batch in table.to_batches(_BATCH):
            for row in batch.to_pylist():
                whole.update(json.dumps(row, sort_keys=True).encode())
    return whole.hexdigest()


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a table so that a reader sees all of it or nothing."""
    with replacing(path, durable=False) as temporary:
        pq.write_table(table, temporary, compression="zstd", row_group_size=10_000)
