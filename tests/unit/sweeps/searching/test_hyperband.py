"""Early stopping by W&B's rule; the cases were run through its own package, see docs/notes."""

import math

import pytest

from pipeline.sweeps.searching.hyperband import bands_of, why_stop
from pipeline.sweeps.spec import Goal, Hyperband


@pytest.mark.parametrize(
    ("block", "bands"),
    [
        ({"max_iter": 27, "s": 2, "eta": 3}, (3, 9)),
        ({"max_iter": 27, "s": 9}, (1, 3, 9)),
        ({"max_iter": 20, "s": 2, "eta": 2.5}, (3, 8)),
        ({"max_iter": 2, "s": 1, "eta": 3}, ()),
        ({"max_iter": 27, "s": 1, "min_iter": 5}, (9,)),
    ],
)
def test_trials_are_compared_at_bands(block: dict[str, float], bands: tuple[int, ...]) -> None:
    assert bands_of(block) == bands


def test_bands_above_the_first_go_on_and_end() -> None:
    assert bands_of({"min_iter": 3})[:4] == (3, 9, 27, 81)
    assert bands_of({"min_iter": 1, "eta": 1.5})[:5] == (1, 2, 3, 5, 7)
    assert len(bands_of({"min_iter": 10**30, "eta": 1e300})) == 1


RUNS = {0: [10, 9], 1: [10, 10], 2: [10, 8, 8], 3: [10, 7, 7], 4: [10, 6, 6]}
RULE = Hyperband(bands=(1, 2), eta=2.0)


@pytest.mark.parametrize(("number", "stopped"), [(0, True), (1, True), (2, False), (3, False), (4, False)])
def test_the_best_share_goes_on(number: int, stopped: bool) -> None:
    assert (why_stop(RULE, Goal.minimize, number, RUNS) is not None) == stopped
    mirrored = {each: [-value for value in values] for each, values in RUNS.items()}
    assert (why_stop(RULE, Goal.maximize, number, mirrored) is not None) == stopped


def test_why_a_trial_is_stopped_is_told_in_numbers() -> None:
    assert why_stop(RULE, Goal.minimize, 1, RUNS) == (
        "hyperband: its value 2 of the metric, 10, is worse than 8, where the best 1/2 of 5 trials are at 2"
    )


def test_without_strict_the_best_so_far_counts() -> None:
    values = {0: [1.0, 9.0], 1: [5.0, 5.0], 2: [6.0, 6.0]}
    lenient = Hyperband(bands=(2,), eta=3.0, strict=False)
    assert why_stop(lenient, Goal.minimize, 0, values) is None
    assert why_stop(Hyperband(bands=(2,), eta=3.0), Goal.minimize, 0, values) is not None


@pytest.mark.parametrize(
    "values",
    [{}, {0: []}, {0: [5.0]}, {0: [math.nan, 5.0]}, {0: [math.inf, 5.0], 1: [1.0, 1.0]}],
    ids=["unknown", "nothing", "too few", "one is none", "one is infinite"],
)
def test_a_trial_that_has_come_to_no_band_goes_on(values: dict[int, list[float]]) -> None:
    assert why_stop(Hyperband(bands=(2,)), Goal.minimize, 0, values) is None
