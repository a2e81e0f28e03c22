"""A reference that has not learnt is told from one that has, by what its corpus says without any training."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from examples.sorting import Sorting, SortingConfig
from pipeline.learning.datasets.base import Dataset, load_dataset
from pipeline.learning.datasets.shipped import AdditionConfig, StarGraphConfig
from pipeline.learning.models import tiny
from pipeline.learning.models.tiny import Imitation, measure_imitation

ADDITION = load_dataset(AdditionConfig(kind="addition"))
STARS = load_dataset(StarGraphConfig(kind="star_graph", degree=3, random_arm=0.6))
SORTING = Sorting(SortingConfig(kind="sorting"))


def model_of(share_of_likeliest: float, size: int) -> Any:
    """A model that gives the token that comes next a fixed probability, and the others the rest."""

    def run(ids: torch.Tensor, use_cache: bool) -> Any:
        rest = (1 - share_of_likeliest) / (size - 1)
        probabilities = torch.full((*ids.shape, size), rest, dtype=torch.float64)
        following = torch.roll(ids, -1, 1)
        probabilities.scatter_(2, following[..., None], share_of_likeliest)
        return SimpleNamespace(logits=probabilities.log())

    run.device = "cpu"  # type: ignore[attr-defined]
    return run


@pytest.fixture(autouse=True)
def _uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """These models are functions, of which no FLOPs are known."""
    monkeypatch.setattr(tiny, "spend", lambda purpose, flops: None)
    monkeypatch.setattr(tiny, "model_cost", lambda model: SimpleNamespace(forward=lambda read: 0))


def measured(model: Any, dataset: Dataset) -> Imitation:
    found = measure_imitation(model, dataset)
    assert found is not None
    return found


def test_the_corpus_of_sums_is_as_open_as_its_carries() -> None:
    """Six in ten demonstrations of a sum that has carries drop them; a sum without any is always the same."""
    found = measured(model_of(0.5, 13), ADDITION)
    rows = [ADDITION.row(int(row)) for row in ADDITION.ids("validation")[:500]]
    carried = sum(ADDITION.demonstration(row.id, 0.0) != ADDITION.demonstration(row.id, 0.99) for row in rows)
    coin = -(0.6 * math.log(0.6) + 0.4 * math.log(0.4))
    assert found.corpus == pytest.approx(carried / 500 * coin / 4, abs=1e-6)
    assert found.loss == pytest.approx(math.log(2), abs=1e-6)
    last = 0.2 * math.log(5) + 0.8 * math.log(1.25)
    assert found.guessing == pytest.approx((3 * math.log(10) + last) / 4, abs=0.02)


@pytest.mark.parametrize("dataset", [ADDITION, STARS, SORTING], ids=["addition", "star_graph", "sorting"])
def test_it_is_told_by_which_of_the_two_is_nearer(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "PROMPTS", 100)  # graphs take time to draw
    between = measured(model_of(0.5, len(dataset.vocabulary)), dataset)
    assert between.corpus < between.guessing
    middle = (between.corpus + between.guessing) / 2
    better, worse = (
        measured(model_of(math.exp(-middle * factor), len(dataset.vocabulary)), dataset) for factor in (0.9, 1.1)
    )
    assert better.has_learnt
    assert better.problem(4) is None
    assert not worse.has_learnt


def test_a_corpus_that_shows_every_prompt_once_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "PROMPTS", 100)
    paths = load_dataset(StarGraphConfig(kind="star_graph"))
    assert str(measured(model_of(0.5, len(paths.vocabulary)), paths).corpus) == "0.0"
