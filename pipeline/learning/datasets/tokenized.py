"""Prompts as token ids: made once per dataset and tokenizer, so that no chain tokenizes them again.

prompts.parquet     id, input_ids
prompts.json        rows, length of the longest prompt in tokens; a note where not all is known to it
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.errors import DataError
from pipeline.files import write_whole
from pipeline.learning.datasets.answers import template_ends
from pipeline.learning.datasets.base import SPLITS, Dataset, Text, plain_text
from pipeline.learning.datasets.chat import CLOCK, DATE, asks_clock, prompt_text, template_arguments
from pipeline.learning.datasets.prepared import write_parquet
from pipeline.outputs.formats import TOKENIZED

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROWS = "prompts.parquet"
SCHEMA = pa.schema([("id", pa.int64()), ("input_ids", pa.large_list(pa.int32()))])
_BATCH = 1000
_BATCH_SIZE = 1 << 20
"""Characters at once: a tokenizer takes up to 400 bytes of memory for each."""
_MOST_LISTED = 60
"""Tokens of a vocabulary that a sentence names."""


def encode_prompts(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Text],
    arguments: Sequence[Mapping[str, Any]] | None = None,
) -> list[list[int]]:
    """Token ids of prompts.

    Text gets whatever the tokenizer puts before a text, unless it begins with that already, and nothing that it
    puts behind one: a prompt ends in no end. A conversation goes through the model's chat template up to where the
    assistant begins, or on from what the assistant has begun.

    Args:
        tokenizer: Of the model.
        prompts: Texts, or conversations.
        arguments: Of each one's chat template (`chat.template_arguments`).

    Raises:
        DataError: A prompt is a conversation and the tokenizer has no chat template, or that refuses it.
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
    """Tokens that a tokenizer puts before a text, and behind it."""
    given = tokenizer("a", return_special_tokens_mask=True)
    ids, mask = list(given["input_ids"]), list(given["special_tokens_mask"])
    if 0 not in mask:
        return [], []
    return ids[: mask.index(0)], ids[len(mask) - mask[::-1].index(0) :]


def _once(
    tokenizer: PreTrainedTokenizerBase, prompt: str, ids: list[int], before: list[int], behind: list[int]
) -> list[int]:
    """A prompt without what is put behind it, nor an end that its text has there, nor a second begin."""
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


def written_already(tokenizer: PreTrainedTokenizerBase, prompts: Iterable[Text]) -> str:
    """What to say of prompts whose text has the tokenizer's begin or end itself; "" where none has."""
    begin, end = tokenizer.bos_token, tokenizer.eos_token
    begun = ended = 0
    for prompt in prompts:
        if isinstance(prompt, str):
            begun += bool(begin) and prompt.startswith(str(begin)) and bool(_added(tokenizer)[0])
            ended += bool(end) and prompt.endswith(str(end))
        else:
            begun += bool(begin) and any(str(turn["content"]).startswith(str(begin)) for turn in prompt)
    said = []
    if begun:
        said.append(f"{begun:,} prompts begin with {begin} themselves, which is read once where they are text")
    if ended:
        said.append(f"{ended:,} prompts end with {end}, which is left out as an answer is to follow")
    return "; ".join(said)


def unknown_pieces(tokenizer: PreTrainedTokenizerBase, encoded: Iterable[Sequence[int]]) -> str:
    """What to say of prompts of which the tokenizer does not know all pieces; "" where it does.

    Args:
        tokenizer: Of the model.
        encoded: What `encode_prompts` has made of prompts.
    """
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    if not (token := getattr(model, "unk_token", None)):
        return ""
    unknown = tokenizer.convert_tokens_to_ids(token)
    # The same token may begin every text, as in the tiny model, where it says nothing.
    number = sum(ids[1:].count(unknown) for ids in encoded)
    if not number:
        return ""
    return (
        f"what the tokenizer of the model does not know in the prompts, and the model reads as {token}: "
        f"{number:,} of their tokens. Use a model that knows it (models.hf.path), or prompts of "
        f"{_known_to(tokenizer)}"
    )


def _known_to(tokenizer: PreTrainedTokenizerBase) -> str:
    known = sorted(tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens))
    return " ".join(known) if len(known) <= _MOST_LISTED else "what it knows"


def tokenized(
    dataset: Dataset, tokenizer: PreTrainedTokenizerBase, out: Path, splits: Sequence[str] = SPLITS
) -> dict[str, Any]:
    """Write the token ids of every prompt of some splits.

    Args:
        dataset: With rows; a `PreparedDataset` where rows are read.
        tokenizer: Of the model.
        out: Folder to write to.
        splits: Whose prompts.

    Returns:
        What ``prompts.json`` holds.
    """
    out.mkdir(parents=True, exist_ok=True)
    ids = np.concatenate([dataset.ids(split) for split in splits]).astype(np.int64)
    batches = list(_batches(dataset, tokenizer, ids))
    already = written_already(tokenizer, (dataset.row(row_id).prompt for row_id in ids[:_BATCH].tolist()))
    write_parquet(out / ROWS, pa.Table.from_batches(batches, SCHEMA))
    lengths = [len(prompt) for batch in batches for prompt in batch.column(1)]
    unknown = unknown_pieces(tokenizer, (prompt.as_py() for batch in batches for prompt in batch.column(1)))
    dated = _told_of_clock(tokenizer, dataset, ids)
    ended = _told_of_end(tokenizer, dataset, ids)
    told = (unknown, already and f"of the first prompts {already}", dated, ended)
    note = "; ".join(said for said in told if said)
    about: dict[str, Any] = {"rows": len(ids), "longest": max(lengths, default=0), "tokens": sum(lengths)}
    about |= {"note": note} if note else {}
    write_whole(out / TOKENIZED, json.dumps(about, indent=1) + "\n")
    return about


def _told_of_clock(tokenizer: PreTrainedTokenizerBase, dataset: Dataset, ids: NDArray[np.int64]) -> str:
    """What to say where a template asks the clock and no date was set for it; "" elsewhere."""
    row = dataset.row(int(ids[0])) if len(ids) and asks_clock(tokenizer) else None
    if row is None or isinstance(row.prompt, str) or CLOCK in template_arguments(row.columns):
        return ""
    return (
        f"the chat template asks for today's date, and is told {DATE} on any day; set another by "
        "datasets.NAME.date=YYYY-MM-DD"
    )


def _told_of_end(tokenizer: PreTrainedTokenizerBase, dataset: Dataset, ids: NDArray[np.int64]) -> str:
    """What to say where a template ends answers otherwise than the tokenizer ends texts; "" elsewhere."""
    if not len(ids) or isinstance(dataset.row(int(ids[0])).prompt, str):
        return ""
    other = [token for token in template_ends(tokenizer) if token != tokenizer.eos_token_id]
    if not other:
        return ""
    end = tokenizer.eos_token
    return (
        f"the chat template ends an answer with {tokenizer.decode(other)}, and the tokenizer "
        f"{f'ends a text with {end}: either' if end else 'names no end: that'} ends a completion"
    )


class TokenizedPrompts(Mapping[int, list[int]]):
    """Row id -> token ids of its prompt, as `tokenized` wrote them; memory-mapped."""

    def __init__(self, folder: Path) -> None:
        """Open a folder.

        Raises:
            DataError: There are no tokenized prompts in it.
        """
        try:
            self.about: Mapping[str, Any] = json.loads((folder / TOKENIZED).read_bytes())
            table = pq.read_table(folder / ROWS, memory_map=True).combine_chunks()
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


def _batches(
    dataset: Dataset, tokenizer: PreTrainedTokenizerBase, ids: NDArray[np.int64]
) -> Iterator[pa.RecordBatch]:
    places: list[int] = []
    prompts: list[Text] = []
    arguments: list[dict[str, Any]] = []
    size = 0
    for row_id in ids.tolist():
        row = dataset.row(row_id)
        prompt = row.prompt
        arguments.append({} if isinstance(prompt, str) else template_arguments(row.columns))
        places.append(row_id)
        prompts.append(prompt)
        size += len(plain_text(prompt))
        if len(places) == _BATCH or size > _BATCH_SIZE:
            yield _encoded(tokenizer, places, prompts, arguments)
            places, prompts, arguments, size = [], [], [], 0
    yield _encoded(tokenizer, places, prompts, arguments)


def _encoded(
    tokenizer: PreTrainedTokenizerBase, ids: list[int], prompts: list[Text], arguments: list[dict[str, Any]]
) -> pa.RecordBatch:
    encoded = encode_prompts(tokenizer, prompts, arguments)
    arrays = [pa.array(ids, pa.int64()), pa.array(encoded, SCHEMA.field(1).type)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
