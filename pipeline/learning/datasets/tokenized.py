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
from pipeline.learning.datasets.base import SPLITS, Dataset, Text, plain_text
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


def encode_prompts(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Text]) -> list[list[int]]:
    """Token ids of prompts.

    Text gets whatever the tokenizer puts before a text. A conversation goes through the model's chat template up
    to where the assistant begins, or on from what the assistant has begun.

    Raises:
        DataError: A prompt is a conversation and the tokenizer has no chat template.
    """
    if not prompts:
        return []
    if all(isinstance(prompt, str) for prompt in prompts):
        return [list(ids) for ids in tokenizer(list(prompts))["input_ids"]]
    if tokenizer.chat_template is None:
        raise DataError(
            f"the prompts are conversations, but the tokenizer of {tokenizer.name_or_path or 'the model'} has no "
            "chat template. Use an instruct model, or prompts of text (chat=false)."
        )
    # A template writes special tokens itself.
    texts = [_templated(tokenizer, prompt) for prompt in prompts]
    return [list(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


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
    write_parquet(out / ROWS, pa.Table.from_batches(batches, SCHEMA))
    lengths = [len(prompt) for batch in batches for prompt in batch.column(1)]
    note = unknown_pieces(tokenizer, (prompt.as_py() for batch in batches for prompt in batch.column(1)))
    about: dict[str, Any] = {"rows": len(ids), "longest": max(lengths, default=0), "tokens": sum(lengths)}
    about |= {"note": note} if note else {}
    write_whole(out / TOKENIZED, json.dumps(about, indent=1) + "\n")
    return about


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
    size = 0
    for row_id in ids.tolist():
        prompt = dataset.row(row_id).prompt
        places.append(row_id)
        prompts.append(prompt)
        size += len(plain_text(prompt))
        if len(places) == _BATCH or size > _BATCH_SIZE:
            yield _encoded(tokenizer, places, prompts)
            places, prompts, size = [], [], 0
    yield _encoded(tokenizer, places, prompts)


def _encoded(tokenizer: PreTrainedTokenizerBase, ids: list[int], prompts: list[Text]) -> pa.RecordBatch:
    arrays = [pa.array(ids, pa.int64()), pa.array(encode_prompts(tokenizer, prompts), SCHEMA.field(1).type)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _templated(tokenizer: PreTrainedTokenizerBase, prompt: Text) -> str:
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(turn) for turn in prompt]
    begun = turns[-1]["role"] == "assistant"
    return str(
        tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=not begun, continue_final_message=begun
        )
    )
