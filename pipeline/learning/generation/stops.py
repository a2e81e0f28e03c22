"""Stop strings: a completion ends when its text contains one, however it is tokenized.

`StopStringCriteria` of transformers decides which token completes one, from tokens of the completion only.

Shapes: n rows, k steps, W tokens that a stop string may be spread over at most.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase, StopStringCriteria

from pipeline.errors import JobError

NOTHING = 2**31 - 1
"""Placeholder for a missing token: beyond every vocabulary, so that it is part of no string."""


class _Criteria(StopStringCriteria):
    """Criteria of transformers that decode tokens after ``abcdef``, if the vocabulary has these letters."""

    @staticmethod
    def clean_tokenizer_vocab(tokenizer: PreTrainedTokenizerBase, *_: Any, **how: Any) -> Any:
        """Return the text of each token, decoded after a token that the tokenizer can write."""
        for text in ("abcdef", *map(tokenizer.decode, range(len(tokenizer)))):
            ids: Any = tokenizer(str(text), add_special_tokens=False)["input_ids"]
            pieces: Any = tokenizer.convert_ids_to_tokens(ids)
            if text and str(text) in tokenizer.convert_tokens_to_string(pieces):
                return StopStringCriteria.clean_tokenizer_vocab(tokenizer, str(text), **how)
        raise ValueError("its tokens have no texts")


class StopStrings:
    """Strings that end a completion.

    Attributes:
        reach: Most tokens of a stop string, W.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> None:
        """Look up which tokens may be part of them.

        Raises:
            JobError: No token of the vocabulary can complete any of them.
        """
        self._tokenizer, self._texts = tokenizer, list(texts)
        try:
            self._criteria = _Criteria(tokenizer, self._texts)
        except ValueError as error:
            raise JobError(f"generation.stop={self._texts}: the tokenizer can write none of them") from error
        self.reach = int(self._criteria.maximum_token_len)

    def last_tokens(self, ids: Sequence[int]) -> NDArray[np.int64]:
        """Return the last tokens of a completion, `NOTHING` before its first; shape [W]."""
        tokens = np.full(self.reach, NOTHING, np.int64)
        if last := list(ids[-self.reach :]):
            tokens[-len(last) :] = last
        return tokens

    def complete(self, windows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the last token of each window completes a stop string, shape [...].

        Args:
            windows: Tokens up to and including it, of completions only; shape [..., W].
        """
        if not windows.size:
            return np.zeros(windows.shape[:-1], np.bool_)
        rows = torch.from_numpy(windows.reshape(-1, self.reach))
        is_complete: NDArray[np.bool_] = self._criteria(rows, None).numpy().reshape(windows.shape[:-1])
        return is_complete

    def end(self, completions: Sequence[Sequence[int]]) -> NDArray[np.bool_]:
        """Return which completions end in a stop string, shape [n]."""
        return self.complete(np.array([self.last_tokens(ids) for ids in completions]).reshape(-1, self.reach))

    def until(self, begun: Sequence[int], written: list[int]) -> list[int]:
        """Return the rest of a completion up to the first complete stop string, or all of it.

        Args:
            begun: First tokens of the completion.
            written: Its rest.
        """
        ids = np.concatenate([self.last_tokens(begun), np.array(written, np.int64)])
        at = np.flatnonzero(self.complete(sliding_window_view(ids, self.reach)[1:].copy()))
        return written[: int(at[0]) + 1] if len(at) else written

    def text_before(self, ids: Sequence[int], text: Callable[[Sequence[int]], str]) -> str:
        """Return the text of a completion before its stop string.

        Args:
            ids: Token ids of the completion.
            text: Decodes token ids to text.
        """
        whole = self._written(ids)
        at = min((index for stop in self._texts if (index := whole.find(stop)) >= 0), default=len(whole))
        kept = len(ids)
        while kept and len(self._written(ids[:kept])) > at:
            kept -= 1
        return text(ids[:kept]) + whole[len(self._written(ids[:kept])) : at]

    def _written(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids)))


def as_tokens(tokenizer: PreTrainedTokenizerBase, texts: Collection[str]) -> dict[str, int]:
    """Return the stop strings that are one special token each, which ends a completion by itself."""
    special = {str(token): number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return {text: special[text] for text in texts if text in special}


# -- spellings ---------------------------------------------------------------------------------------------------
# All tokenizations of a text: the sequences of tokens by which a policy may write it.


def spellings(text: str, pieces: Mapping[int, str], ends: Collection[int], limit: int) -> Iterator[list[int]]:
    """Yield all completions that decode to a text, up to white space around them, each once.

    A completion ends with an end token, or at the limit of tokens.

    Args:
        text: The text.
        pieces: Token id -> its text, for all tokens that may be drawn; "" for one that is not shown.
        ends: Tokens that end a completion.
        limit: Most tokens of a completion.

    Yields:
        Token ids.
    """
    text = text.strip()
    inner = {token: piece for token, piece in pieces.items() if token not in ends}
    least = _least(text, inner.values())
    begun: list[tuple[list[int], str]] = [([], "")]
    while begun:
        ids, written = begun.pop()
        shown = written.strip()
        if shown == text:
            yield from ([*ids, end] for end in ends if len(ids) < limit)
        if len(ids) == limit:
            if shown == text:
                yield ids
            continue
        for token, piece in inner.items():
            more = (written + piece).lstrip()
            rest = least[len(more)] if text.startswith(more) else 0 if more.rstrip() == text else math.inf
            if len(ids) + 1 + rest <= limit:
                begun.append(([*ids, token], more))


def _least(text: str, pieces: Collection[str]) -> list[float]:
    """Return the fewest tokens for the rest of a text, from each of its positions on."""
    forms = ((piece, piece.lstrip(), piece.rstrip(), piece.strip()) for piece in pieces)
    every = {form for of_piece in forms for form in of_piece} - {""}
    least = [*([math.inf] * len(text)), 0.0]
    for at in range(len(text) - 1, -1, -1):
        ends = (at + len(piece) for piece in every if text.startswith(piece, at))
        least[at] = 1 + min((least[end] for end in ends), default=math.inf)
    return least
