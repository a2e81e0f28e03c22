"""Read a source once: `prepare` writes its rows by split, `PreparedDataset` serves them to every chain.

    train.parquet, validation.parquet, test.parquet     id, prompt, completion, chosen, rejected, columns
    dataset.json                                        rows of each split, columns, fingerprint, warnings

Conversations and further columns are JSON inside Parquet: their structure may differ between rows, and reading
restores the values.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.config.schema import DatasetConfig
from pipeline.errors import ConfigError, DataError
from pipeline.files import replacing, write_whole
from pipeline.learning.datasets.base import SPLITS, Dataset, Row, Text, plain_text
from pipeline.learning.datasets.chat import CLOCK, DATE, asks_clock, prompt_text, template_arguments
from pipeline.learning.datasets.from_files import ANSWERS, FilesDataset, source_fingerprint
from pipeline.learning.datasets.rows import TEXTS, Check, Form, MadeRow, SplitRows, deal, identity
from pipeline.outputs.formats import DATASET, TOKENIZED

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

Item = TypeVar("Item")
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

    The same source, configuration and seed give the same bytes. A split with fewer rows than requested has all
    rows there are, and a warning says so.

    Args:
        dataset: Dataset that is read rather than generated.
        out: Folder to write to.

    Returns:
        The content of ``dataset.json``.

    Raises:
        ConfigError: The dataset needs no preparation.
        DataError: The source does not exist or is damaged, or one of its rows cannot be used.
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
    """Read the source of a dataset once more, and run a check on each row as it is stored.

    Raises:
        DataError: The check rejects a row; the message names the row.
    """
    assert isinstance(dataset, FilesDataset)
    _read(dataset, check)


def add_warnings(prepared: Path, out: Path, warnings: Sequence[str]) -> None:
    """Write ``dataset.json`` of a prepared dataset with further warnings, which every start repeats."""
    about = json.loads((prepared / FILE).read_bytes())
    about["warnings"] += warnings
    write_whole(out / FILE, json.dumps(about, indent=1, ensure_ascii=False) + "\n")


class PreparedDataset(Dataset):
    """Rows that `prepare` wrote. A split is memory-mapped when one of its rows is first requested."""

    prepared = True

    def __init__(self, folder: Path) -> None:
        """Open a folder.

        Args:
            folder: Folder with the output of `prepare`.

        Raises:
            DataError: The folder holds no prepared dataset.
        """
        try:
            self.about: Mapping[str, Any] = json.loads((folder / FILE).read_bytes())
        except (OSError, ValueError) as error:
            raise DataError(f"{folder}: no prepared dataset ({FILE} cannot be read: {error})") from error
        super().__init__(DatasetConfig(kind=str(self.about["kind"])))
        self._folder = folder
        self._tables: dict[str, pa.Table] = {}
        self._splits = {split: self._column(split, "id") for split in SPLITS}
        ids = np.concatenate([self._splits[split] for split in SPLITS])
        self._sorted = np.argsort(ids)
        self._ids = ids[self._sorted]
        self._starts = np.cumsum([0, *(len(self._splits[split]) for split in SPLITS)])

    def row(self, row_id: int) -> Row:
        """Return the row with this id.

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
    """Read all rows of a source into one table per split; ids count on from split to split."""
    form = Form(dataset)
    sources = dataset.rows_of()
    tables: dict[str, pa.Table] = {}
    for split in SPLITS:
        if split in sources:
            records = itertools.islice(sources[split](), dataset.source.limit)
            stored = _parts(_stored(form.made(records), check), _characters, _BATCH_SIZE)
            batches = [pa.RecordBatch.from_pylist(part, SCHEMA) for part in stored]
            tables[split] = pa.Table.from_batches(batches, SCHEMA)
    form.check(tables["train" if "train" in tables else "test"].num_rows)
    return tables, form


def _stored(rows: Iterable[MadeRow | None], check: Check | None) -> Iterator[dict[str, Any]]:
    for made in rows:
        if made is None:
            continue
        # As stored, since rewards get the stored values.
        if check is not None and (problem := check(json.loads(made.stored["columns"]), made.place)):
            raise DataError(f"{made.place}: {problem}.")
        yield made.stored


def _characters(stored: Mapping[str, Any]) -> int:
    return sum(len(text) for text in stored.values() if isinstance(text, str))


def _parts(items: Iterable[Item], length: Callable[[Item], int], most: int) -> Iterator[list[Item]]:
    """Group items into lists of `_BATCH` items, or fewer once they exceed `most` characters.

    The last may be empty.
    """
    part: list[Item] = []
    size = 0
    for item in items:
        part.append(item)
        size += length(item)
        if len(part) == _BATCH or size > most:
            yield part
            part, size = [], 0
    yield part


def _identities(table: pa.Table, conversational: bool) -> list[bytes]:
    texts = (text for batch in table.select(["prompt"]).to_batches() for text in batch.column(0).to_pylist())
    return [identity(json.loads(text) if conversational else text) for text in texts]


def _taken(tables: Mapping[str, pa.Table], dealt: SplitRows, split: str) -> pa.Table:
    if split not in dealt.splits:
        return SCHEMA.empty_table()
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
    """Write a table so that a reader sees the whole file or none."""
    with replacing(path, durable=False) as temporary:
        pq.write_table(table, temporary, compression="zstd", row_group_size=10_000)


# -- tokenized ---------------------------------------------------------------------------------------------------
# Prompts as token ids: tokenized once per dataset and tokenizer, so that chains do not tokenize them again.
#
#     prompts.parquet    id, input_ids
#     prompts.json       rows, length of the longest prompt in tokens; a note where not all is known


PROMPTS = "prompts.parquet"
TOKENS = pa.schema([("id", pa.int64()), ("input_ids", pa.large_list(pa.int32()))])

_TOKENIZED_BATCH_SIZE = 1 << 20
"""Characters per batch: a tokenizer takes up to 400 bytes of memory for each."""
_MOST_LISTED = 60
"""Largest number of vocabulary tokens that a message lists."""


def encode_prompts(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Text],
    arguments: Sequence[Mapping[str, Any]] | None = None,
) -> list[list[int]]:
    """Encode prompts as token ids.

    Text gets the tokens that the tokenizer puts before a text, unless it begins with them already, but not the
    tokens that the tokenizer appends: a prompt has no end token. A conversation goes through the model's chat
    template up to the start of the assistant's answer, or continues the assistant's last turn.

    Args:
        tokenizer: Tokenizer of the model.
        prompts: Texts, or conversations.
        arguments: Arguments of the chat template for each prompt (`chat.template_arguments`).

    Raises:
        DataError: A prompt is a conversation and the tokenizer has no chat template, or the template rejects it.
    """
    if not prompts:
        return []
    if all(isinstance(prompt, str) for prompt in prompts):
        before, behind = _added(tokenizer)
        encoded = tokenizer(list(prompts))["input_ids"]
        return [
            _once(tokenizer, str(prompt), list(ids), before, behind)
            for prompt, ids in zip(prompts, encoded, strict=True)
        ]
    if tokenizer.chat_template is None:
        raise DataError(
            f"the prompts are conversations, but the tokenizer of {tokenizer.name_or_path or 'the model'} has no "
            "chat template. Use an instruct model, or prompts of text (chat=false)."
        )
    # A template writes special tokens itself.
    given = arguments if arguments is not None else [{}] * len(prompts)
    texts = [
        prompt_text(tokenizer, [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt, each)
        for prompt, each in zip(prompts, given, strict=True)
    ]
    return [list(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


def _added(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer puts before a text, and those that it appends."""
    given = tokenizer("a", return_special_tokens_mask=True)
    ids, mask = list(given["input_ids"]), list(given["special_tokens_mask"])
    if 0 not in mask:
        return [], []
    return ids[: mask.index(0)], ids[len(mask) - mask[::-1].index(0) :]


def _once(
    tokenizer: PreTrainedTokenizerBase, prompt: str, ids: list[int], before: list[int], behind: list[int]
) -> list[int]:
    """Remove appended tokens, an end token that the text itself ends with, and a repeated begin token."""
    if behind and ids[-len(behind) :] == behind:
        ids = ids[: -len(behind)]
    begin, end = tokenizer.bos_token, tokenizer.eos_token
    if end and prompt.rstrip().endswith(end):
        while len(ids) > len(before) + 1 and ids[-1] == tokenizer.eos_token_id:
            ids = ids[:-1]
    if begin and prompt.lstrip().startswith(begin):
        while before and ids[len(before) : 2 * len(before)] == before:
            ids = ids[len(before) :]
    return ids


def unknown_pieces(tokenizer: PreTrainedTokenizerBase, encoded: Iterable[Sequence[int]]) -> str:
    """Describe pieces of prompts that the tokenizer does not know; "" if it knows all.

    Args:
        tokenizer: Tokenizer of the model.
        encoded: Prompts from `encode_prompts`.
    """
    token, unknown = unknown_token(tokenizer)
    if unknown is None:
        return ""
    # The unknown token may also begin every text, as in the tiny model, where it has no meaning.
    number = sum(ids[1:].count(unknown) for ids in encoded)
    if not number:
        return ""
    return (
        f"what the tokenizer of the model does not know in the prompts, and the model reads as {token}: "
        f"{number:,} of their tokens. Use a model that knows it (models.hf.path), or prompts of "
        f"{_known_to(tokenizer)}"
    )


def unknown_token(tokenizer: PreTrainedTokenizerBase) -> tuple[str, int | None]:
    """Return the token in the place of what a tokenizer does not know, and its id; "" and None if it has none."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    if not (token := getattr(model, "unk_token", None)):
        return "", None
    unknown: Any = tokenizer.convert_tokens_to_ids(token)
    return token, unknown


def _known_to(tokenizer: PreTrainedTokenizerBase) -> str:
    known = sorted(tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens))
    return " ".join(known) if len(known) <= _MOST_LISTED else "what it knows"


def tokenized(
    dataset: Dataset, tokenizer: PreTrainedTokenizerBase, out: Path, splits: Sequence[str] = SPLITS
) -> dict[str, Any]:
    """Write the token ids of all prompts in some splits.

    Args:
        dataset: Dataset with rows; a `PreparedDataset` if rows are read.
        tokenizer: Tokenizer of the model.
        out: Folder to write to.
        splits: Splits with the prompts.

    Returns:
        The content of ``prompts.json``.
    """
    out.mkdir(parents=True, exist_ok=True)
    ids = np.concatenate([dataset.ids(split) for split in splits]).astype(np.int64)
    rows = ((row_id, dataset.row(row_id)) for row_id in ids.tolist())
    parts = _parts(rows, lambda row: len(plain_text(row[1].prompt)), _TOKENIZED_BATCH_SIZE)
    batches = [_encoded(tokenizer, part) for part in parts]
    write_parquet(out / PROMPTS, pa.Table.from_batches(batches, TOKENS))
    lengths = [len(prompt) for batch in batches for prompt in batch.column(1)]
    unknown = unknown_pieces(tokenizer, (prompt.as_py() for batch in batches for prompt in batch.column(1)))
    note = "; ".join(said for said in (unknown, _told_of_clock(tokenizer, dataset, ids)) if said)
    about: dict[str, Any] = {"rows": len(ids), "longest": max(lengths, default=0), "tokens": sum(lengths)}
    about |= {"note": note} if note else {}
    write_whole(out / TOKENIZED, json.dumps(about, indent=1) + "\n")
    return about


def _told_of_clock(tokenizer: PreTrainedTokenizerBase, dataset: Dataset, ids: NDArray[np.int64]) -> str:
    """Describe the date that a chat template gets if it asks for today's date and none is set; "" otherwise."""
    row = dataset.row(int(ids[0])) if len(ids) and asks_clock(tokenizer) else None
    if row is None or isinstance(row.prompt, str) or CLOCK in template_arguments(row.columns):
        return ""
    return (
        f"the chat template asks for today's date, and is told {DATE} on any day; set another by "
        "datasets.NAME.date=YYYY-MM-DD"
    )


class TokenizedPrompts(Mapping[int, list[int]]):
    """Row id -> token ids of its prompt, as written by `tokenized`; memory-mapped."""

    def __init__(self, folder: Path) -> None:
        """Open a folder.

        Raises:
            DataError: The folder holds no tokenized prompts.
        """
        try:
            self.about: Mapping[str, Any] = json.loads((folder / TOKENIZED).read_bytes())
            table = pq.read_table(folder / PROMPTS, memory_map=True).combine_chunks()
        except (OSError, ValueError) as error:
            raise DataError(f"{folder}: no tokenized prompts ({error})") from error
        self._folder = folder
        column = table["input_ids"].combine_chunks()
        self._offsets: NDArray[np.int64] = column.offsets.to_numpy()
        self._values: NDArray[np.int32] = column.values.to_numpy()
        self._ids: NDArray[np.int64] = table["id"].to_numpy()
        self._order = np.argsort(self._ids)

    def __getitem__(self, row_id: int) -> list[int]:
        at = int(np.searchsorted(self._ids, row_id, sorter=self._order))
        if at == len(self._ids) or self._ids[self._order[at]] != row_id:
            raise KeyError(f"{self._folder}: no prompt of row {row_id}")
        place = int(self._order[at])
        found: list[int] = self._values[self._offsets[place] : self._offsets[place + 1]].tolist()
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids.tolist())

    def __len__(self) -> int:
        return len(self._ids)


def _encoded(tokenizer: PreTrainedTokenizerBase, part: Sequence[tuple[int, Row]]) -> pa.RecordBatch:
    rows = [row for _, row in part]
    arguments = [{} if isinstance(row.prompt, str) else template_arguments(row.columns) for row in rows]
    encoded = encode_prompts(tokenizer, [row.prompt for row in rows], arguments)
    arrays = [pa.array([row_id for row_id, _ in part], pa.int64()), pa.array(encoded, TOKENS.field(1).type)]
    return pa.RecordBatch.from_arrays(arrays, schema=TOKENS)
