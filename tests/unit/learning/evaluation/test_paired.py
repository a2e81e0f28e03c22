"""Differences of two policies as they are: intervals that hold, and that do not contradict the test."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import multinomial, norm

from pipeline.learning.evaluation.paired import (
    paired_by_prompt,
    score_intervals,
    score_limits,
)
from pipeline.learning.evaluation.statistics import Floats, Ratios


def differing(wins: int, losses: int, prompts: int) -> Floats:
    """Differences of two policies that are right or wrong."""
    return np.array([1.0] * wins + [-1.0] * losses + [0.0] * (prompts - wins - losses))


def tango(wins: int, losses: int, prompts: int, confidence: float) -> tuple[float, float]:
    """The interval as Tango (1998) writes it."""
    certain = norm.isf((1 - confidence) / 2)

    def score(gap: float) -> float:
        half = -wins - losses + (2 * prompts - wins + losses) * gap
        rest = (math.sqrt(half**2 + 8 * prompts * losses * gap * (1 - gap)) - half) / (4 * prompts)
        return (wins - losses - prompts * gap) / math.sqrt(prompts * (2 * rest + gap * (1 - gap)))

    seen, edge = (wins - losses) / prompts, 1 - 1e-12
    low = brentq(lambda gap: score(gap) - certain, -edge, seen, xtol=1e-13)
    high = brentq(lambda gap: score(gap) + certain, seen, edge, xtol=1e-13)
    return low, high


@pytest.mark.parametrize(("wins", "losses", "prompts"), [(5, 0, 500), (0, 3, 200), (8, 2, 200), (40, 20, 500)])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_of_right_and_wrong_answers_it_is_the_score_interval_of_tango(
    wins: int, losses: int, prompts: int, confidence: float
) -> None:
    (found,) = score_intervals([differing(wins, losses, prompts)], [1.0], confidence)
    assert found == pytest.approx(tango(wins, losses, prompts, confidence), abs=1e-9)


@pytest.mark.parametrize("favouring", [0.5, 0.75, 1.0])
@pytest.mark.parametrize("expected", [3, 5, 10, 50])
def test_intervals_hold_where_few_prompts_differ(expected: int, favouring: float) -> None:
    """All outcomes of 200 prompts with their chances. Student's interval covers 0.85 to 0.93 of these."""
    prompts, chances = 200, np.array([favouring, 1 - favouring]) * expected / 200
    most = int(expected + 8 * expected**0.5)
    wins, losses = (side.ravel() for side in np.meshgrid(np.arange(most), np.arange(most)))
    weights = multinomial.pmf(
        np.stack([wins, losses, prompts - wins - losses], 1), prompts, [*chances, 1 - chances.sum()]
    )
    wins, losses, weights = (each[weights > 1e-9] for each in (wins, losses, weights))
    times = np.stack([losses, prompts - wins - losses, wins], 1).astype(float)
    values = np.broadcast_to(np.array([-1.0, 0, 1]), times.shape)
    low, high = score_limits(values, times, np.ones(len(times)), 0.95)
    truth = chances[0] - chances[1]
    assert 0.925 <= weights[(low <= truth) & (truth <= high)].sum() <= 0.985


def test_intervals_of_graded_rewards_hold_about_as_often_as_they_say() -> None:
    """Clustered data: prompts differ in difficulty, and the second policy is better by 0.1 on each."""
    draw = np.random.default_rng(5)
    easy = draw.uniform(0.1, 0.8, (2000, 80))
    differences = (draw.binomial(4, easy + 0.1) - draw.binomial(4, easy)) / 4
    ends = np.array(score_intervals(list(differences), [0.0] * 2000, 0.9))
    assert ((ends[:, 0] <= 0.1) & (ends[:, 1] >= 0.1)).mean() == pytest.approx(0.9, abs=0.02)


def test_only_prompts_of_which_both_have_something_to_say_are_compared() -> None:
    first = Ratios(np.array([[1.0, 1.0, 9.0]]), np.ones((1, 3)))
    second = Ratios(np.array([[0.0, 1.0, 0.0]]), np.array([[1.0, 1.0, 0.0]]))
    found = paired_by_prompt(first, second)
    assert (found.differences.tolist(), found.reach) == ([[1.0, 0.0]], 1.0)
    nothing = paired_by_prompt(first, Ratios(second.numerators, np.zeros((1, 3))))
    assert (nothing.differences.shape, nothing.reach) == ((1, 0), 0.0)
