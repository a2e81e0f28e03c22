"""Algorithms by name, and which of two completions is preferred."""

from typing import ClassVar

import numpy as np
import pytest

from pipeline.algos.base import Algorithm, JobContext, Read, Stage
from pipeline.algos.preference import prefer
from pipeline.algos.registry import known_algorithms, load_algorithm
from pipeline.config.schema import Preference
from pipeline.errors import ConfigError


class Mine(Algorithm):
    """An algorithm of a user's own."""

    name: ClassVar[str] = "Mine"
    stages: ClassVar[tuple[Stage, ...]] = (Stage("think"),)

    def think(self, ctx: JobContext) -> None:
        """Do nothing."""


class Unfinished(Mine):
    """Lists a stage for which it has no method."""

    stages: ClassVar[tuple[Stage, ...]] = (Stage("think"), Stage("act"))


def test_every_algorithm_that_ships_can_be_found() -> None:
    assert known_algorithms() == ["PITA", "QSharp"]
    for name in [*known_algorithms(), "reference"]:
        kind = load_algorithm(name)
        assert kind.name == name
        assert all(callable(getattr(kind, stage.name)) for stage in kind.stages)


def test_an_algorithm_of_ones_own() -> None:
    assert load_algorithm("Mine", f"{__name__}.Mine").name == "Mine"


@pytest.mark.parametrize(
    ("name", "path", "said"),
    [
        ("Qsharp", None, "unknown algorithm 'Qsharp'. Did you mean 'QSharp'"),
        ("X", "pathlib.Path", "is no algorithm"),
        ("X", "no_such_module.X", "cannot import 'no_such_module.X'"),
        ("X", f"{__name__}.Unfinished", "lists the stages act but has no method"),
    ],
    ids=["name", "class", "module", "method"],
)
def test_what_cannot_be_used_is_refused(name: str, path: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_algorithm(name, path)


def test_names_of_inputs() -> None:
    names = [Read("train"), Read("train", "previous"), Read("generate", "so_far"), Read("train", algo="reference")]
    assert [read.name for read in names] == ["train", "train@previous", "generate@so_far", "reference.train"]


def decide(
    first: list[float], second: list[float], how: Preference, draws: float = 0.5, beta: float = 1.0
) -> list[int]:
    count = len(first)
    decided = prefer(np.array(first), np.array(second), np.full(count, draws), how, beta)
    return [int(value) for value in decided]


@pytest.mark.parametrize("how", list(Preference))
def test_the_one_correct_completion_is_preferred_whatever_the_draw(how: Preference) -> None:
    for draws in (0.001, 0.999):
        assert decide([1.0, 0.0], [0.0, 1.0], how, draws) == [1, 0]


def test_otherwise_the_higher_score_wins_or_nothing_can_be_said() -> None:
    assert decide([0.7, 0.1, 0.4, np.nan], [0.2, 0.3, 0.4, 0.1], Preference.hard) == [1, 0, -1, -1]


def test_or_a_bradley_terry_draw_decides() -> None:
    draws = (np.arange(10_000) + 0.5) / 10_000
    first, second = np.full(10_000, 0.8), np.full(10_000, 0.3)
    decided = prefer(first, second, draws, Preference.bradley_terry, 3.0)
    assert decided.mean() == pytest.approx(1 / (1 + np.exp(-3 * 0.5)), abs=1e-3)
