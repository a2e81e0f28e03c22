"""Reading a source once: `prepare` writes its rows by split, `PreparedDataset` serves them to every chain.

    train.parquet, validation.parquet, test.parquet     id, prompt, completion, chosen, rejected, columns
    dataset.json                                        rows of each split, columns, fingerprint, warnings

Conversations and further columns are JSON inside Parquet: rows may differ in them, and come back as they were.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.config.bases import DatasetConfig
from pipeline.errors import ConfigError, DataError, unknown_name
from pipeline.files import replacing, write_whole
from pipeline.learning.datasets.base import SPLITS, Dataset, Row, Text
from pipeline.learning.datasets.columns import ANSWERS
from pipeline.learning.datasets.fingerprint import source_fingerprint
from pipeline.learning.datasets.from_files import FilesDataset
from pipeline.learning.datasets.readers import Record
from pipeline.learning.datasets.sources import open_splits
from pipeline.learning.datasets.splits import Dealt, deal
from pipeline.outputs.formats import DATASET

log = logging.getLogger(__name__)

FILE = DATASET
FORMAT = 1
TEXTS = ("prompt", *ANSWERS)
SCHEMA = pa.schema(
    [("id", pa.int64()), *((name, pa.large_string()) for name in TEXTS), ("columns", pa.large_string())]
)
_BATCH = 1000
_BATCH_SIZE = 16 << 20
"""Characters of rows that are held as objects at once."""


Refusal = Callable[[Mapping[str, Any]], str]
"""Takes the further columns of a row and says why it cannot be used; "" where it can."""


def prepare(dataset: Dataset, out: Path, refusal: Refusal | None = None) -> dict[str, Any]:
    """Read the source of a dataset once and write its rows by split.

    The same source, configuration and seed give the same bytes. A split with fewer rows than were asked for has
    what there is, and a warning says so.

    Args:
        dataset: One that is read rather than made.
        out: Folder to write to.
        refusal: Of rows that cannot be used, though they can be read.

    Returns:
        What ``dataset.json`` holds.

    Raises:
        ConfigError: The dataset needs no preparation.
        DataError: The source is not there, damaged, or a row of it cannot be used.
    """
    config = dataset.config
    if not isinstance(dataset, FilesDataset):
        raise ConfigError(f"dataset '{config.kind}' makes its rows; there is nothing to prepare")
    tables, form = _read(dataset, refusal)
    prompts = {split: _identities(table) for split, table in tables.items()}
    dealt = deal(prompts, {"test": config.test_size, "validation": config.validation_size}, config.seed)
    for warning in dealt.warnings:
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
        "warnings": list(dealt.warnings),
    }
    write_whole(out / FILE, json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    return about


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
        return Row(int(row_id), prompt, {name: kept.get(name) for name in self.about["columns"]}, **texts)

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


class _Form:
    """What the rows of a source have in common."""

    def __init__(self) -> None:
        self.columns: dict[str, None] = {}
        self.answers: dict[str, None] = {}
        self.read: dict[str, None] = {}
        """Columns of the source."""
        self._conversational: bool | None = None
        self._first = ""

    def add(self, row: Row, place: str) -> None:
        """Take a row into account.

        Raises:
            DataError: It is a conversation and earlier ones are text, or the other way round.
        """
        conversational = not isinstance(row.prompt, str)
        if self._conversational is None:
            self._conversational, self._first = conversational, place
        elif self._conversational != conversational:
            kinds = ("a conversation", "text") if conversational else ("text", "a conversation")
            raise DataError(
                f"{place}: the prompt is {kinds[0]}, but that of {self._first} is {kinds[1]}; a dataset is all "
                "the one or all the other. chat=true makes text a conversation."
            )
        self.columns.update(dict.fromkeys(row.columns))
        self.answers.update((name, None) for name in ANSWERS if getattr(row, name) is not None)

    def described(self) -> dict[str, Any]:
        """For ``dataset.json``."""
        return {
            "columns": sorted(self.columns),
            "answers": [name for name in ANSWERS if name in self.answers],
            "conversational": bool(self._conversational),
        }


def _read(dataset: FilesDataset, refusal: Refusal | None) -> tuple[dict[str, pa.Table], _Form]:
    """All rows of a source as one table per split that it has; ids count on from split to split."""
    form = _Form()
    ids = itertools.count()
    sources = open_splits(dataset)
    tables: dict[str, pa.Table] = {}
    for split in SPLITS:
        if split in sources:
            records = itertools.islice(sources[split](), dataset.source.limit)
            batches = list(_batches(dataset, records, form, ids, refusal))
            tables[split] = pa.Table.from_batches(batches, SCHEMA)
    if not tables["train"].num_rows:
        raise DataError(f"dataset '{dataset.config.kind}' ({dataset.source.path}): no row to train on")
    _check_kept(dataset, form)
    return tables, form


def _check_kept(dataset: FilesDataset, form: _Form) -> None:
    odd = [name for name in dataset.source.further_columns or () if name not in form.columns]
    if odd:
        known = dict.fromkeys([*dataset.source.columns, *form.columns, *form.read])
        raise DataError(
            f"dataset '{dataset.config.kind}' ({dataset.source.path}): further_columns: "
            + unknown_name("column", odd[0], known)
        )


def _batches(
    dataset: FilesDataset, records: Iterator[Record], form: _Form, ids: Iterator[int], refusal: Refusal | None
) -> Iterator[pa.RecordBatch]:
    stored: list[dict[str, Any]] = []
    size = 0
    for record in records:
        form.read.update(dict.fromkeys(record.data))
        row = dataset.make_row(next(ids), record)
        if row is None:
            continue
        form.add(row, record.place)
        stored.append(_stored(row, record.place))
        # As they are stored, since that is what rewards are given.
        if refusal is not None and (problem := refusal(json.loads(stored[-1]["columns"]))):
            raise DataError(f"{record.place}: {problem}.")
        size += sum(len(text) for text in stored[-1].values() if isinstance(text, str))
        if len(stored) == _BATCH or size > _BATCH_SIZE:
            yield pa.RecordBatch.from_pylist(stored, SCHEMA)
            stored, size = [], 0
    yield pa.RecordBatch.from_pylist(stored, SCHEMA)


def _stored(row: Row, place: str) -> dict[str, Any]:
    try:
        columns = json.dumps(dict(row.columns), ensure_ascii=False, default=_plain)
        texts = {name: _as_stored(getattr(row, name)) for name in TEXTS}
    except (TypeError, ValueError, RecursionError) as error:
        said = f"{place}: column '{_odd_column(row)}' {error}. List in further_columns those that rewards need."
        raise DataError(said) from error
    return {"id": row.id, **texts, "columns": columns}


def _odd_column(row: Row) -> str:
    """The column that cannot be stored."""
    texts = {name: getattr(row, name) for name in TEXTS}
    for name, value in {**texts, **row.columns}.items():
        try:
            json.dumps(value, default=_plain)
        except (TypeError, ValueError, RecursionError):
            return name
    return ""


def _as_stored(text: Text | None) -> str | None:
    if text is None or isinstance(text, str):
        return text
    return json.dumps(list(text), ensure_ascii=False, default=_plain)


def _plain(value: object) -> Any:
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise TypeError(f"holds {type(value).__name__}, which is no text, number, list or object")


def _identities(table: pa.Table) -> list[bytes]:
    """What says that two prompts are the same: their text, apart from white space."""
    return [hashlib.blake2b(" ".join(text.split()).encode(), digest_size=16).digest() for text in _prompts(table)]


def _prompts(table: pa.Table) -> Iterator[str]:
    for batch in table.select(["prompt"]).to_batches():
        yield from batch.column(0).to_pylist()


def _taken(tables: Mapping[str, pa.Table], dealt: Dealt, split: str) -> pa.Table:
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
