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


def test_pass_at_k_is_the_quotient_of_binomials_where_those_are_huge() -> None:
    n, c, k = 1000, 13, 100
    expected = 1 - comb(n - c, k) / comb(n, k)
    assert pass_at_k(np.array([n]), np.array([c]), k)[0] == pytest.approx(expected, rel=1e-12)


def test_pass_at_k_of_many_prompts() -> None:
    found = pass_at_k(np.array([4, 2, 4, 0]), np.array([0, 1, 4, 0]), 3)
    assert found.tolist()[0::2] == [0.0, 1.0]
    assert np.isnan(found).tolist() == [False, True, False, True]


def test_pass_at_k_is_unbiased() -> None:
    """The mean over draws of n samples is the chance of success of k fresh ones."""
    correct = np.random.default_rng(0).binomial(6, 0.2, 200_000)
    found = pass_at_k(np.full(200_000, 6), correct, 4).mean()
    assert found == pytest.approx(1 - 0.8**4, abs=0.003)


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


def test_maj_at_k_of_random_votes() -> None:
    generator = np.random.default_rng(3)
    for _ in range(30):
        answers = [None if a == 5 else str(a) for a in generator.integers(0, 6, 7)]
        correct = [answer in ("0", "1") for answer in answers]
        found = majority_at_k([answers], [correct], [2, 5])[0]
        for k, value in zip((2, 5), found, strict=True):
            subsets = [vote([answers[i] for i in s], [correct[i] for i in s]) for s in combinations(range(7), k)]
            assert value == pytest.approx(np.mean(subsets), abs=1e-12)


def test_maj_at_1_is_pass_at_1_where_all_have_answers() -> None:
    answers, correct = [["a", "b", "b", "c"]], [[True, False, False, False]]
    assert majority_at_k(answers, correct, [1])[0, 0] == pytest.approx(0.25)


def test_two_answers_that_tie_share_the_vote() -> None:
    assert majority_at_k([["a", "b"]], [[True, False]], [2])[0, 0] == pytest.approx(0.5)


def test_an_answer_that_is_not_always_right_counts_to_its_share() -> None:
    assert majority_at_k([["a", "a", "a", "b"]], [[True, False, True, False]], [4])[0, 0] == pytest.approx(2 / 3)


def test_prompts_with_too_few_samples_have_no_value() -> None:
    found = majority_at_k([["a"], ["a", "a"]], [[True], [True, True]], [1, 2])
    assert np.isnan(found).tolist() == [[False, True], [False, False]]


def test_shares_of_all_answers_sum_to_one_where_somebody_votes() -> None:
    sizes = (20, 11, 11, 7, 3, 1, 1)
    shares = winning_shares(sizes, silent=10)
    total = np.sum([shares[size] for size in sizes], axis=0)
    n = sum(sizes) + 10
    silent = np.array([comb(10, k) / comb(n, k) for k in range(n + 1)])
    assert total == pytest.approx(1 - silent, abs=1e-9)
