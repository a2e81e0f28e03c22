"""Histograms of rewards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.runs.report.page.run import BINS, rewards_of


def test_few_different_rewards_have_a_bar_each() -> None:
    found = rewards_of({("d · m", "PITA", 1): [0.0, 1.0, 1.0], ("d · m", "reference", 0): [0.5]}, there=4)
    assert (found.edges, found.exact) == ({"d · m": [0.0, 0.5, 1.0]}, ["d · m"])
    assert [(one.algo, one.counts) for one in found.histograms] == [("reference", [0, 1, 0]), ("PITA", [1, 0, 2])]
    assert found.about == "Of all completions that were evaluated."


def test_completions_at_which_a_reward_failed_are_told_and_count_as_read() -> None:
    scores = {("d · m", "PITA", 1): [1.0, None, None], ("d · m", "reference", 0): [None]}
    assert rewards_of(scores, there=4).about == (
        "Of all completions that were evaluated. 3 of them have no reward: it failed, or does not apply."
    )
    assert rewards_of(scores, there=9).about.startswith("Of 4 of the 9 completions")
    (only,) = rewards_of(scores, there=4).histograms
    assert (only.counts, only.mean) == ([1], 1.0)


@pytest.mark.properties
@given(st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=100))
def test_every_reward_is_counted_once(scores: list[float]) -> None:
    found = rewards_of({("d · m", "PITA", 1): scores}, there=1000)
    (one,) = found.histograms
    assert sum(one.counts) == len(scores)
    assert len(one.counts) == (len(set(scores)) if found.exact else BINS)
    assert found.about.startswith(f"Of {len(scores)} of the 1,000 completions")
