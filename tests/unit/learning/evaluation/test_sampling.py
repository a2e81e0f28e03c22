"""pass@k and maj@k against what they mean: the mean over all subsets of k samples."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np
import pytest

from pipeline.learning.evaluation.metrics import majority_at_k, pass_at_k, winning_shares


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_mean_over_all_subsets(n: int) -> None:
    for c in range(n + 1):
        outcomes = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            expected = np.mean([any(subset) for subset in combinations(outcomes, k)])
            (found,) = pass_at_k(np.array([n]), np.array([c]), k)
            assert found == pytest.approx(expected, abs=1e-12)


def vote(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """One ballot: winners share; an answer is right to the share of its samples that are."""
    counts = Counter(answer for answer in answers if answer is not None)
    if not counts:
        return 0.0
    winners = [answer for answer, count in counts.items() if count == max(counts.values())]
    return sum(credit_of(winner, answers, correct) for winner in winners) / len(winners)


def credit_of(answer: str, answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    return float(np.mean([right for given, right in zip(answers, correct, strict=True) if given == answer]))


@pytest.mark.parametrize(
    "answers",
    [
        ["a"],
        [None],
        ["a", "b"],
        ["a", "a", "b", None],
        ["a", "a", "b", "b", "c", None],
        [None, None, None, "a", "b"],
        ["a", "a", "a", "b", "b", "b", "c", "d"],
        ["a", "b", "c", "d", "e", "f", "g"],
        ["a", "a", "a", "a", "b", "b", "c", None, None],
    ],
    ids=str,
)
def test_maj_at_k_is_the_mean_over_all_subsets(answers: list[str | None]) -> None:
    correct = [answer in ("a", "d") for answer in answers]
    ks = range(1, len(answers) + 1)
    found = majority_at_k([answers], [correct], list(ks))[0]
    expected = [
        np.mean(
            [
                vote([answers[i] for i in subset], [correct[i] for i in subset])
                for subset in combinations(range(len(answers)), k)
            ]
        )
        for k in ks
    ]
    assert found == pytest.approx(expected, abs=1e-12)


def test_shares_of_all_answers_sum_to_one_where_somebody_votes() -> None:
    sizes = (20, 11, 11, 7, 3, 1, 1)
    shares = winning_shares(sizes, silent=10)
    total = np.sum([shares[size] for size in sizes], axis=0)
    n = sum(sizes) + 10
    silent = np.array([comb(10, k) / comb(n, k) for k in range(n + 1)])
    assert total == pytest.approx(1 - silent, abs=1e-9)
