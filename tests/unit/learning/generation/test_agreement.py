"""Ranks that share a model look whether all have taken the same tokens, from the same logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from pipeline.errors import RanksDisagree
from pipeline.learning.generation.decode import Agreement
from pipeline.learning.models.batch_size import note_split, split_over
from pipeline.learning.models.load import bits_of
from pipeline.learning.training.distributed import Ranks, Spread

TOKENS = np.array([[3, 4], [5, 6]])
LOGITS = torch.tensor([[0.5, -1.0], [2.0, 3.0]])


class Others(Ranks):
    """Ranks of which this process is one; `differ` says how far the numbers of each are from ours."""

    def __init__(self, rank: int, differ: Sequence[tuple[int, int]]) -> None:
        super().__init__(rank, len(differ), spread=Spread(by_tensors=True))
        self._differ = differ

    def all_numbers(self, values: Sequence[int]) -> list[list[int]]:
        return [[value + far for value, far in zip(values, each, strict=True)] for each in self._differ]


def agreement(rank: int, *differ: tuple[int, int]) -> Agreement:
    model = torch.nn.Linear(1, 1)
    note_split(model, Others(rank, differ))
    return Agreement(model)


def test_a_model_that_is_whole_has_nobody_to_agree_with() -> None:
    model = torch.nn.Linear(1, 1)
    note_split(model, Ranks(0, 2))  # which train, and have a copy each
    assert split_over(model) is None
    Agreement(model).check(TOKENS, LOGITS)


def test_ranks_that_have_the_same_go_on() -> None:
    agreement(1, (0, 0), (0, 0)).check(TOKENS, LOGITS)


@pytest.mark.parametrize(("differ", "what"), [((1, 0), "tokens"), ((0, 1), "logits"), ((2, 7), "tokens")])
def test_of_two_none_can_be_told_to_be_wrong(differ: tuple[int, int], what: str) -> None:
    with pytest.raises(
        RanksDisagree, match=f"2 ranks share a model, and have different {what} after 2 steps. A dev"
    ):
        agreement(0, (0, 0), differ).check(TOKENS, LOGITS)


def test_the_one_that_differs_from_most_is_named_and_tells() -> None:
    ranks = [(0, 0), (0, 0), (5, 0)]
    with pytest.raises(RanksDisagree, match="after 2 steps: rank 2 has others than most"):
        agreement(2, *ranks).check(TOKENS, LOGITS)
    # What others say is taken for a consequence.
    with pytest.raises(ConnectionError, match="rank 2 has others than most"):
        agreement(0, *ranks).check(TOKENS, LOGITS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_any_bit_of_a_logit_counts(dtype: torch.dtype) -> None:
    logits = LOGITS.to(dtype)
    other = logits.clone()
    other[1, 0] = torch.nextafter(other[1, 0], torch.tensor(9.0, dtype=dtype))
    assert bits_of(logits) != bits_of(other)
    assert bits_of(logits.T) == bits_of(logits)  # however they lie in memory
