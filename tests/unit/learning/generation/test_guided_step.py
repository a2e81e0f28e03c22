"""What the value model is asked for at one step of guided decoding."""

import math

import pytest
import torch
from torch import Tensor

from pipeline.learning.choices import Others
from pipeline.learning.generation.steps import guided_step
from pipeline.learning.generation.tilt import Tilt, preference_offset

SURE, SPLIT = [0.9, 0.04, 0.03, 0.03], [0.45, 0.35, 0.11, 0.09]
INSIDE, OUTSIDE = 0.999, 1e-3


class Asked:
    """A guide that notes what it is asked for."""

    looks_up = False

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.taken: list[int] = []

    def values(self, candidates: Tensor, valid: Tensor, _count: int | None = None) -> Tensor:
        rows = zip(candidates, valid, strict=True)
        self.asked = [sorted(ids[places].tolist()) for ids, places in rows]
        self.candidates = candidates
        return torch.linspace(-1, 1, candidates.numel()).view(candidates.shape)

    def advance(self, tokens: Tensor, columns: Tensor) -> None:
        assert torch.equal(self.candidates.gather(1, columns[:, None])[:, 0], tokens)
        self.taken = tokens.tolist()

    def defer(self, tokens: Tensor) -> None:
        self.asked, self.taken = [[]] * len(tokens), tokens.tolist()


def step(rows: list[list[float]], draws: list[float] | None, others: Others = Others.kept) -> tuple[Asked, Tensor]:
    reader = Asked()
    tilt = Tilt(preference_offset(1.0), top_k=3, min_p=0.2, others=others)
    drawn = None if draws is None else torch.tensor([draws, draws], dtype=torch.float64)
    tokens, kl = guided_step(reader, tilt, torch.tensor(rows).log(), drawn)  # type: ignore[arg-type]
    assert tokens.tolist() == reader.taken
    return reader, kl


def test_the_only_candidate_is_asked_for_where_it_is_taken_alone() -> None:
    inside, kl = step([SURE, SPLIT], [INSIDE, INSIDE])
    assert inside.asked == [[0], [0, 1]]
    outside, kl_outside = step([SURE, SPLIT], [OUTSIDE, OUTSIDE])
    assert outside.taken == [1, 2]
    assert outside.asked == [[1], [0, 1, 2]]
    assert kl[0] == kl_outside[0] == 0
    assert kl[1] > 0


def test_a_token_from_outside_needs_no_column_of_its_own_where_its_row_has_room() -> None:
    three = [0.3, 0.3, 0.3, 0.1]
    assert step([three, SPLIT], [INSIDE, OUTSIDE])[0].candidates.shape == (2, 3)
    assert step([three, SPLIT], [OUTSIDE, INSIDE])[0].candidates.shape == (2, 4)


@pytest.mark.parametrize("others", Others)
@pytest.mark.parametrize("draws", [None, [INSIDE, OUTSIDE]])
def test_no_value_is_asked_for_where_no_row_has_a_choice(others: Others, draws: list[float] | None) -> None:
    reader, kl = step([SURE, SURE], draws, others)
    if others is Others.offset_zero:  # their level counts
        assert [len(asked) for asked in reader.asked] == [2, 2]
        return
    assert reader.asked == [[], []]
    assert reader.taken == [0, 1 if draws and others is Others.kept else 0]
    assert kl.tolist() == pytest.approx([0 if others is Others.kept else -math.log(0.9)] * 2)
