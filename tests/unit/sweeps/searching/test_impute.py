"""What a search is told of trials that failed, run, or ended with nothing."""

import math

import pytest

from pipeline.sweeps.searching.optuna_search import ToldValue, told
from pipeline.sweeps.spec import Goal, Impute, Metric
from pipeline.sweeps.trials import Trial, TrialState


def trial(number: int, state: TrialState, value: float | None = None, best: float | None = None) -> Trial:
    return Trial(number=number, parameters={}, state=state, value=value, best=best)


DONE = [
    trial(0, TrialState.done, 0.5),
    trial(1, TrialState.stopped, 0.9),
    trial(2, TrialState.done, math.nan),
    trial(3, TrialState.done, -0.2),
]


@pytest.mark.parametrize(
    ("state", "value", "expected"),
    [
        (TrialState.done, 0.1, 0.1),
        (TrialState.stopped, 0.1, 0.1),
        (TrialState.done, math.inf, 0.9),
        (TrialState.stopped, None, 0.9),
        (TrialState.failed, None, 0.9),
        (TrialState.failed, 0.1, 0.9),
        (TrialState.running, 0.1, None),
        (TrialState.waiting, None, None),
        (TrialState.lost, None, None),
    ],
)
def test_a_trial_without_a_number_counts_as_the_worst(
    state: TrialState, value: float | None, expected: float | None
) -> None:
    asked = trial(9, state, value)
    assert told(asked, [*DONE, asked], Metric(name="loss")) == ToldValue(expected)


def test_one_that_a_user_has_ended_says_nothing() -> None:
    assert told(trial(9, TrialState.cancelled, 0.1), DONE, Metric(name="loss")) is None


@pytest.mark.parametrize(
    ("rule", "goal", "expected"),
    [
        (Impute.worst, Goal.minimize, 0.9),
        (Impute.worst, Goal.maximize, -0.2),
        (Impute.latest, Goal.minimize, 0.4),
        (Impute.best, Goal.minimize, 0.3),
    ],
)
def test_the_rule_says_which_value_stands_for_a_missing_one(rule: Impute, goal: Goal, expected: float) -> None:
    failed = trial(9, TrialState.failed, best=0.3)
    failed.values = {"loss": 0.4, "other": 9.0}
    running = trial(9, TrialState.running, value=0.4, best=0.3)
    metric = Metric(name="loss", goal=goal, impute=rule, impute_while_running=rule)
    assert told(failed, DONE, metric) == told(running, DONE, metric) == ToldValue(expected)


@pytest.mark.parametrize("rule", Impute)
def test_one_that_has_logged_nothing_counts_as_the_worst_by_every_rule(rule: Impute) -> None:
    failed = trial(9, TrialState.failed)
    assert told(failed, DONE, Metric(name="loss", impute=rule)) == ToldValue(0.9)
    assert told(failed, [failed], Metric(name="loss", impute=rule)) == ToldValue(0.0)
