"""Searches as a sweep asks them: pure for the trials so far, apart from each other, and to an end."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pipeline.errors import ConfigError
from pipeline.sweeps.reading.parameters import read_parameters
from pipeline.sweeps.searching import optuna_search
from pipeline.sweeps.searching.searches import make_search, most_trials
from pipeline.sweeps.spec import Goal, Hyperband, Method, Metric, Options, Sweep
from pipeline.sweeps.trials import Trial, TrialState
from tests.doubles.sweeps import EVERY


def sweep_of(method: Method, block: Mapping[str, Any], **options: Any) -> Sweep:
    return Sweep(
        name="s",
        method=method,
        metric=Metric(name="loss"),
        parameters={each.name: each for each in read_parameters(block)},
        program="train.py",
        command=(),
        **options,
    )


def asked(sweep: Sweep, count: int, values: Sequence[float | None] = ()) -> list[Trial]:
    """So many trials, each chosen by a search made anew; those with a value have ended, the others run."""
    trials: list[Trial] = []
    for number in range(count):
        parameters = make_search(sweep).ask(trials)
        if parameters is None:
            break
        value = values[number] if number < len(values) else None
        state = TrialState.running if value is None else TrialState.done
        trials.append(Trial(number=number, parameters=parameters, state=state, value=value))
    return trials


@pytest.mark.parametrize("method", [Method.random, Method.bayes])
def test_every_distribution_can_be_searched_and_is_the_same_again(method: Method) -> None:
    sweep = sweep_of(method, EVERY)
    values = [0.1 * number for number in range(11)]
    trials = asked(sweep, 14, values)
    assert [each.parameters for each in trials] == [each.parameters for each in asked(sweep, 14, values)]
    for trial in trials:
        assert list(trial.parameters) == list(sweep.parameters)
        assert 1e-5 <= trial.parameters["lr"] <= 0.1
        assert trial.parameters["n"] in range(1, 10)
        assert trial.parameters["width"] % 8 == 0
        assert trial.parameters["seed"] == 3
        assert any(trial.parameters["kind"] is value for value in EVERY["kind"]["values"])
    assert len({str(trial.parameters) for trial in trials}) == 14
    other = sweep_of(method, EVERY, options=Options(seed=1))
    assert make_search(other).ask([]) != trials[0].parameters


def test_a_bayesian_search_learns_where_the_best_is() -> None:
    sweep = sweep_of(Method.bayes, {"x": {"min": 0.0, "max": 1.0}, "y": {"values": ["a", "b", "c"]}})
    trials: list[Trial] = []
    for number in range(40):
        parameters = make_search(sweep).ask(trials)
        assert parameters is not None
        value = (parameters["x"] - 0.8) ** 2 + (parameters["y"] != "b")
        trials.append(Trial(number=number, parameters=parameters, state=TrialState.done, value=value))
    late = trials[20:]
    assert sum(trial.parameters["y"] == "b" for trial in late) > 10
    assert sum(abs(trial.parameters["x"] - 0.8) < 0.2 for trial in late) > 12


def test_a_bayesian_search_goes_by_the_goal() -> None:
    block = {"x": {"min": 0.0, "max": 1.0}}
    up = sweep_of(Method.bayes, block)
    trials = [Trial(number=n, parameters={"x": n / 20}, state=TrialState.done, value=n / 20) for n in range(20)]
    down = make_search(up).ask(trials)
    object.__setattr__(up, "metric", Metric(name="loss", goal=Goal.maximize))
    top = make_search(up).ask(trials)
    assert down is not None
    assert top is not None
    assert down["x"] < 0.5 < top["x"]


def test_trials_that_run_at_once_are_chosen_apart() -> None:
    """Those that run count as known to be bad, so that no other is put beside them."""
    sweep = sweep_of(Method.bayes, {"x": {"min": 0.0, "max": 1.0}})
    known = [Trial(number=n, parameters={"x": n / 12}, state=TrialState.done, value=abs(n - 6)) for n in range(12)]
    running = [*known]
    for number in range(12, 18):
        chosen = make_search(sweep).ask(running)
        assert chosen is not None
        running.append(Trial(number=number, parameters=chosen, state=TrialState.running))
    assert len({trial.parameters["x"] for trial in running}) == 18


def test_trials_of_a_file_that_was_changed_are_passed_over() -> None:
    sweep = sweep_of(Method.bayes, {"x": {"min": 0.0, "max": 1.0}, "y": {"values": ["a", "b"]}})
    strange: list[dict[str, Any]] = [
        {},
        {"x": 0.5},
        {"x": 3.0, "y": "a"},
        {"x": 0.5, "y": "c"},
        {"x": "low", "y": "a"},
    ]
    trials = [Trial(number=n, parameters=each, state=TrialState.done, value=1.0) for n, each in enumerate(strange)]
    assert make_search(sweep).ask(trials) is not None


def test_a_grid_is_gone_through_once_and_ends() -> None:
    sweep = sweep_of(Method.grid, {"a": {"values": [1, 2]}, "b": {"min": 1, "max": 3}})
    trials = asked(sweep, 99)
    assert [tuple(each.parameters.values()) for each in trials] == [(a, b) for a in (1, 2) for b in (1, 2, 3)]
    assert make_search(sweep).ask([*trials[:2], *trials[3:]]) == trials[2].parameters


@pytest.mark.parametrize(
    ("method", "cap", "most"),
    [
        (Method.grid, None, 6),
        (Method.grid, 4, 4),
        (Method.grid, 9, 6),
        (Method.random, None, None),
        (Method.random, 5, 5),
    ],
)
def test_how_many_trials_there_are_at_most(method: Method, cap: int | None, most: int | None) -> None:
    assert most_trials(sweep_of(method, {"a": {"values": [1, 2]}, "b": {"min": 1, "max": 3}}, run_cap=cap)) == most


@pytest.mark.parametrize("method", Method)
def test_the_rule_of_early_stopping_goes_with_every_search(method: Method) -> None:
    sweep = sweep_of(method, {"a": {"values": [1, 2]}}, early_terminate=Hyperband(bands=(1,)))
    trials = asked(sweep, 2)
    values = {0: [1.0], 1: [2.0]}
    assert [make_search(sweep).stops(trial, values) is None for trial in trials] == [True, False]
    never = sweep_of(method, {"a": {"values": [1, 2]}})
    assert make_search(never).stops(trials[1], values) is None


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"is not installed: pip install .*sweeps.*, or say `method: random`"):
        optuna_search.check_installed()
