"""Reward models: fitted to preferences, standardised, read at the last token."""

import numpy as np
import pytest
import torch

from pipeline.learning.choices import HeadType
from pipeline.learning.models.value import ValueModel, value_model_from
from pipeline.learning.training.sequences import Sequences, batch_of, prompt_folds
from pipeline.learning.training.value import (
    fit_reward_model,
    sequence_scores,
)
from tests.doubles.fitting import fitting
from tests.doubles.models import tiny_policy


def pairs(count: int = 40) -> Sequences:
    """What is preferred ends with an even token; completions have several lengths."""
    generator = np.random.default_rng(0)
    ids = []
    for _ in range(count):
        for side in (0, 1):
            middle = generator.integers(0, 10, generator.integers(1, 4)).tolist()
            ids.append([1, 2, *middle, int(generator.integers(0, 5)) * 2 + side])
    return Sequences.of(ids, [2] * len(ids), [1.0, 0.0] * count)


def fitted(micro_batch_size: int = 16, epochs: int = 30) -> tuple[ValueModel, list[float]]:
    model = value_model_from(tiny_policy(), HeadType.v)
    return model, fit_reward_model(model, pairs(), fitting(micro_batch_size, batch_size=16, epochs=epochs))


def test_micro_batches_add_up_to_the_batch() -> None:
    assert fitted(micro_batch_size=6, epochs=2)[1] == pytest.approx(fitted(epochs=2)[1], abs=1e-4)


def test_the_score_is_the_value_at_the_last_token() -> None:
    model, _ = fitted(epochs=1)
    data = pairs(3)
    batch = batch_of(data, np.arange(6), "cpu")
    with torch.no_grad():
        found = sequence_scores(model, batch)
        for row in range(6):
            ids = torch.from_numpy(data.ids[row, : data.lengths[row]].astype(np.int64))[None]
            assert float(found[row]) == pytest.approx(float(model(ids)[0, -1]), abs=1e-5)


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_prompts_are_dealt_whole_and_evenly(count: int) -> None:
    rows = [7, 3, 3, 90, 11, 11, 4, 7]
    completions = [*rows, 5, 5, 8]
    of_pairs, of_completions = prompt_folds(np.array(rows), np.array(completions), count)
    folds: dict[int, set[int]] = {}
    for row, fold in [*zip(rows, of_pairs, strict=True), *zip(completions, of_completions, strict=True)]:
        folds.setdefault(int(row), set()).add(int(fold))
    assert all(len(found) == 1 for found in folds.values())
    sizes = [sum(found == {fold} for row, found in folds.items() if row in rows) for fold in range(count)]
    assert max(sizes) - min(sizes) <= 1, "of what is fitted to"
