"""Batches of prompts of different lengths, padded to a rectangle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class PromptBatch:
    """Prompts as a rectangle. P prompts, L positions.

    Attributes:
        ids: Token ids, shape [P, L].
        mask: 1 for tokens and 0 for padding, shape [P, L]; None where nothing is padded.
        positions: Position of each token in its own prompt, shape [P, L].
        lengths: Tokens of each prompt, shape [P].
    """

    ids: Tensor
    mask: Tensor | None
    positions: Tensor
    lengths: Tensor


def pad_left(prompts: Sequence[Sequence[int]], pad_id: int, device: str) -> PromptBatch:
    """Make a rectangle of prompts."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    width = int(lengths.max())
    ids = torch.full((len(prompts), width), pad_id)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.as_tensor(prompt)
    positions = (torch.arange(width)[None] - (width - lengths)[:, None]).clamp_min(0)
    padded = bool((lengths != width).any())
    mask = (torch.arange(width)[None] >= (width - lengths)[:, None]).long() if padded else None
    return PromptBatch(
        ids=ids.to(device),
        mask=None if mask is None else mask.to(device),
        positions=positions.to(device),
        lengths=lengths.to(device),
    )


def pad_right(prompts: Sequence[Sequence[int]], pad_id: int, device: str) -> PromptBatch:
    """Make a rectangle of prompts that begin at the same position.

    Causal attention hides what comes after a prompt by itself, so there is no mask.
    """
    lengths = [len(prompt) for prompt in prompts]
    width = max(lengths)
    if min(lengths) == width:
        ids = np.array(prompts, np.int64)
    else:
        ids = np.full((len(prompts), width), pad_id)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = prompt
    positions = torch.arange(width)[None].expand(len(prompts), -1)
    return PromptBatch(
        torch.from_numpy(ids).to(device), None, positions.to(device), torch.tensor(lengths).to(device)
    )


def batches_by_length(
    lengths: NDArray[np.int64], size: int, *, equal: bool = False
) -> Iterator[NDArray[np.int64]]:
    """Indices of prompts in batches, shortest first, so that little is padded; ties in the order given.

    Args:
        lengths: Tokens of each prompt.
        size: Prompts of a batch at most.
        equal: Never put prompts of different lengths together.
    """
    order = np.argsort(lengths, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1) if equal else [order]
    for group in groups:
        for start in range(0, len(group), size):
            yield group[start : start + size]
