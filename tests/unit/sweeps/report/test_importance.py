import random

import pytest

from pipeline.sweeps.report.page import best_of, compared, importance
from pipeline.sweeps.spec import Goal
from pipeline.sweeps.trials import Trial, TrialState


def done(number: int, parameters: dict[str, object], value: float | None) -> Trial:
    return Trial(number=number, parameters=parameters, value=value, state=TrialState.done)


def test_what_decides_over_the_metric_matters_most() -> None:
    chosen = random.Random(0)
    trials = []
    for number in range(60):
        lr, flag = 10 ** chosen.uniform(-5, -2), chosen.choice([True, False])
        parameters = {"lr": lr, "flag": flag, "list": chosen.choice([[1], [2], None]), "same": 3}
        trials.append(done(number, parameters, abs(lr - 1e-3) + 1e-4 * flag))
    trials += [done(60, {"lr": 1.0}, None), Trial(number=61, parameters={"lr": 1e9}, state=TrialState.failed)]
    for goal, sign in ((Goal.minimize, 1.0), (Goal.maximize, -1.0)):
        found = importance(
            [done(one.number, dict(one.parameters), one.value and sign * one.value) for one in trials], goal
        )
        assert list(found) == ["lr", *sorted(found, key=lambda name: -found[name])[1:]]
        assert set(found) == {"lr", "flag", "list"}
        assert abs(sum(found.values()) - 1) < 1e-9


def test_trials_that_tell_nothing_have_no_shares() -> None:
    assert importance([done(at, {"lr": at}, float(at)) for at in range(9)], Goal.minimize) == {}
    assert importance([done(at, {"lr": at}, 1.0) for at in range(20)], Goal.minimize) == {}
    assert importance([done(at, {"lr": 1}, float(at)) for at in range(20)], Goal.minimize) == {}


def test_the_best_are_a_tenth_but_enough_to_tell_and_half_at_most() -> None:
    assert [best_of(number) for number in (10, 20, 50, 100, 500)] == [5, 10, 10, 10, 50]


def test_the_best_are_as_many_as_is_said() -> None:
    """Those that are not among them may change places: 15 / 157 * 157 is more than 15 in floating point."""
    chosen = random.Random(0)
    places = [chosen.random() for _ in range(157)]
    other = [*places[:15], places[16], places[15], *places[17:]]
    one, two = (
        importance([done(at, {"a": x, "b": at % 3}, float(at)) for at, x in enumerate(of)], Goal.minimize)
        for of in (places, other)
    )
    assert one == pytest.approx(two, rel=1e-9)
    assert compared([done(at, {}, float(at)) for at in range(157)], Goal.minimize) == (15, 157)


def test_equals_of_the_last_of_the_best_are_among_them() -> None:
    trials = [done(at, {}, value) for at, value in enumerate([3.0, 1.0, 2.0, 2.0, 2.0, None, 5.0])]
    assert compared(trials, Goal.minimize) == (4, 6)
    assert compared(trials, Goal.maximize) == (5, 6)
    assert [compared(trials[:number], Goal.minimize) for number in (0, 1)] == [(0, 0), (0, 1)]
