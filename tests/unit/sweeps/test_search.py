"""Searches as a sweep asks them: pure for the trials so far, apart from each other, and to an end."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipeline.sweeps.file import LEAST_SHARE, Goal, Hyperband, Metric, Sweep, fingerprint, made, nested, sweep_of
from pipeline.sweeps.search import ask, most_trials, told_value, why_stop
from pipeline.sweeps.storage import Trial
from tests.doubles.sweeps import EVERY

# -- distributions -----------------------------------------------------------------------------------------------

Rule = Callable[[np.ndarray], np.ndarray]


def _rounded(rule: Rule, q: float) -> Rule:
    return lambda u: np.round(rule(u) / q) * q


def _log(low: float, high: float) -> Rule:
    return lambda u: np.exp(stats.uniform.ppf(u, low, high - low))


# What the file says -> W&B's rule, as `sweeps.params.HyperParameter.ppf` of its package has it.
RULES: dict[str, tuple[dict[str, Any], Rule]] = {
    "uniform": ({"min": -1.5, "max": 4}, lambda u: stats.uniform.ppf(u, -1.5, 5.5)),
    "q_uniform": ({"min": 3, "max": 40, "q": 5}, _rounded(lambda u: stats.uniform.ppf(u, 3, 37), 5)),
    "log_uniform": ({"min": -3, "max": 2}, _log(-3, 2)),
    "log_uniform_values": ({"min": 1e-5, "max": 0.1}, _log(math.log(1e-5), math.log(0.1))),
    "q_log_uniform": ({"min": 0, "max": 6, "q": 0.5}, _rounded(_log(0, 6), 0.5)),
    "q_log_uniform_values": ({"min": 1, "max": 900, "q": 8}, _rounded(_log(0, math.log(900)), 8)),
    "inv_log_uniform": ({"min": 1, "max": 5}, _log(-5, -1)),
    "inv_log_uniform_values": ({"min": 0.5, "max": 60}, _log(math.log(0.5), math.log(60))),
    "normal": ({"mu": 3, "sigma": 0.5}, lambda u: stats.norm.ppf(u, 3, 0.5)),
    "q_normal": ({"sigma": 9, "q": 2}, _rounded(lambda u: stats.norm.ppf(u, 0, 9), 2)),
    "log_normal": ({"mu": -1}, lambda u: stats.lognorm.ppf(u, s=1, scale=np.exp(-1))),
    "q_log_normal": ({"mu": 2, "q": 0.25}, _rounded(lambda u: stats.lognorm.ppf(u, s=1, scale=np.exp(2)), 0.25)),
    "beta": ({"a": 2, "b": 5}, lambda u: stats.beta.ppf(u, 2, 5)),
    "q_beta": ({"a": 0.5, "b": 0.5, "q": 0.1}, _rounded(lambda u: stats.beta.ppf(u, 0.5, 0.5), 0.1)),
    "categorical_w_probabilities": (
        {"values": [1, 2, 3, 4], "probabilities": [0.1, 0.0, 0.6, 0.3]},
        lambda u: 1 + np.argmin(u[:, None] >= np.cumsum([0.1, 0.0, 0.6, 0.3]), axis=1),
    ),
}


@pytest.mark.parametrize("kind", RULES)
def test_values_are_those_that_wandb_would_draw(kind: str) -> None:
    """At the same share of the probability, so moments, bounds and steps are the same too."""
    block, rule = RULES[kind]
    parameter = made(("x",), {"distribution": kind, **block})
    shares = np.random.default_rng(0).uniform(size=500)
    ours = [parameter.at(share) for share in shares]
    np.testing.assert_allclose(ours, rule(shares), rtol=1e-12, atol=1e-15)
    assert isinstance(ours[0], int) == (kind.startswith("cat") or isinstance(block.get("q"), int))


def test_probabilities_that_fall_short_of_one_leave_no_hole() -> None:
    weighted = {"values": list("abc"), "probabilities": [0.3, 0.69999, 0.0]}
    assert made(("x",), weighted).at(1 - LEAST_SHARE) == "b"


def test_values_are_nested_as_in_the_file() -> None:
    block = {"a": {"parameters": {"b": {"value": 1}, "c.d": {"value": 2}}}, "e.f": {"value": 3}}
    sweep = sweep_for("random", block)
    assert nested(sweep.parameters, {"a.b": 4, "a.c.d": 5, "e.f": 6}) == {"a": {"b": 4, "c.d": 5}, "e.f": 6}


# -- searches ----------------------------------------------------------------------------------------------------


def sweep_for(method: str, block: dict[str, Any], *, seed: int = 0, **options: Any) -> Sweep:
    asked = {"method": method, "metric": {"name": "loss"}, "program": "p", "parameters": block, **options}
    return sweep_of({**asked, "pipeline": {"seed": seed}}, Path("s.yaml"))


def tried(sweep: Sweep, count: int, value: Callable[[int, Any], float | None]) -> list[Trial]:
    """So many trials, one after the other; those with a value have ended, the others run."""
    trials: list[Trial] = []
    for number in range(count):
        choice = ask(sweep, trials)
        if choice is None:
            break
        reached = value(number, choice.parameters)
        trials.append(
            Trial(
                number=number,
                parameters=choice.parameters,
                state="running" if reached is None else "done",
                value=reached,
                sampled=choice.sampled,
                distributions=choice.distributions,
            )
        )
    return trials


@pytest.mark.parametrize("method", ["random", "bayes"])
def test_every_distribution_can_be_searched_and_is_the_same_again(method: str) -> None:
    def value(number: int, _: Any) -> float | None:
        return 0.1 * number if number < 11 else None

    sweep = sweep_for(method, EVERY)
    trials = tried(sweep, 14, value)
    assert [each.parameters for each in trials] == [each.parameters for each in tried(sweep, 14, value)]
    for trial in trials:
        assert list(trial.parameters) == list(sweep.parameters)
        assert 1e-5 <= trial.parameters["lr"] <= 0.1
        assert trial.parameters["n"] in range(1, 10)
        assert trial.parameters["width"] % 8 == 0
        assert trial.parameters["seed"] == 3
        assert any(repr(trial.parameters["kind"]) == repr(value) for value in EVERY["kind"]["values"])
    assert len({str(trial.parameters) for trial in trials}) == 14
    other = ask(sweep_for(method, EVERY, seed=1), [])
    assert other is not None
    assert other.parameters != trials[0].parameters


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_a_bayesian_search_learns_where_the_best_is(goal: Goal) -> None:
    sweep = sweep_for("bayes", {"x": {"min": 0.0, "max": 1.0}, "y": {"values": ["a", "b", "c"]}})
    sweep = replace(sweep, metric=Metric(name="loss", goal=goal))
    sign = -1 if goal == "maximize" else 1
    trials = tried(sweep, 40, lambda _, given: sign * ((given["x"] - 0.8) ** 2 + (given["y"] != "b")))
    assert sum(trial.parameters["y"] == "b" for trial in trials[20:]) > 10
    assert sum(abs(trial.parameters["x"] - 0.8) < 0.2 for trial in trials[20:]) > 12


def test_trials_that_run_at_once_are_chosen_apart() -> None:
    sweep = sweep_for("bayes", {"x": {"min": 0.0, "max": 1.0}})
    trials = tried(sweep, 18, lambda number, given: abs(given["x"] - 0.5) if number < 12 else None)
    assert len({trial.parameters["x"] for trial in trials}) == 18


@pytest.mark.parametrize(
    ("method", "cap", "most"),
    [("grid", None, 6), ("grid", 4, 4), ("grid", 9, 6), ("random", None, None), ("random", 5, 5)],
)
def test_how_many_trials_there_are_at_most(method: str, cap: int | None, most: int | None) -> None:
    block = {"a": {"values": [1, 2]}, "b": {"min": 1, "max": 3}}
    assert most_trials(sweep_for(method, block, **({"run_cap": cap} if cap else {}))) == most


# -- grids -------------------------------------------------------------------------------------------------------


def listed(block: dict[str, Any]) -> list[dict[str, Any]]:
    """As `sweeps.grid_search` of W&B's package goes through a grid: sorted names, each combination once."""
    values = {name: _values(given) for name, given in sorted(block.items())}
    last = {name: {fingerprint(value): value for value in of} for name, of in values.items()}
    marks = dict.fromkeys(itertools.product(*([fingerprint(value) for value in of] for of in values.values())))
    return [{name: last[name][mark] for name, mark in zip(values, each, strict=True)} for each in marks]


def _values(given: dict[str, Any]) -> list[Any]:
    if "value" in given:
        return [given["value"]]
    if "values" in given:
        return list(given["values"])
    if given.get("distribution") == "q_uniform":
        return list(np.arange(given["min"], given["max"], given.get("q", 1.0)).tolist())
    return list(range(given["min"], given["max"] + 1))


_scalars = st.one_of(st.integers(-3, 3), st.booleans(), st.none(), st.sampled_from("ab"), st.floats(-2, 2))
_parameters = st.one_of(
    st.builds(lambda values: {"values": values}, st.lists(_scalars, min_size=1, max_size=4)),
    st.builds(lambda value: {"value": value}, _scalars),
    st.builds(lambda low, size: {"min": low, "max": low + size}, st.integers(-3, 3), st.integers(1, 4)),
    st.builds(
        lambda low, steps, q: {"distribution": "q_uniform", "min": low, "max": low + steps * q, "q": q},
        st.one_of(st.integers(-3, 3), st.floats(-2, 2)),
        st.integers(1, 4),
        st.sampled_from([1, 2, 0.1, 0.3, 1.0]),
    ),
)


@pytest.mark.properties
@given(st.dictionaries(st.sampled_from(["b", "a", "lr", "B", "a.x"]), _parameters, min_size=1, max_size=4))
def test_points_are_wandbs_in_its_order(block: dict[str, Any]) -> None:
    points = [trial.parameters for trial in tried(sweep_for("grid", block), 999, lambda *_: 0.0)]
    expected = listed(block)
    assert repr([sorted(point.items()) for point in points]) == repr([sorted(point.items()) for point in expected])
    assert all(list(point) == list(block) for point in points)


def test_names_are_sorted_table_by_table() -> None:
    """So a dotted name comes after a table of which it has the name before its dot, as W&B has it."""
    two = {"values": [1, 2]}
    sweep = sweep_for("grid", {"b": two, "a.d": two, "a": {"parameters": {"z": two, "c": two}}})
    points = [trial.parameters for trial in tried(sweep, 99, lambda *_: 0.0)]
    changed = [next(name for name, value in points[2**place].items() if value == 2) for place in range(4)]
    assert changed == ["b", "a.d", "a.z", "a.c"]


# -- the value that a trial counts as ----------------------------------------------------------------------------


def trial(state: str, value: float | None = None, **more: Any) -> Trial:
    return Trial(number=9, parameters={}, state=state, value=value, **more)


DONE = [trial("done", 0.5), trial("stopped", 0.9), trial("done", None), trial("done", -0.2)]


@pytest.mark.parametrize(
    ("state", "value", "told"),
    [
        ("done", 0.1, (0.1,)),
        ("stopped", 0.1, (0.1,)),
        ("done", None, (0.9,)),
        ("failed", None, (0.9,)),
        ("failed", 0.1, (0.9,)),
        ("running", 0.1, ()),
        ("waiting", None, ()),
        ("lost", None, ()),
        ("cancelled", 0.1, None),
    ],
)
def test_a_trial_without_a_number_counts_as_the_worst(state: str, value: float | None, told: Any) -> None:
    assert told_value(trial(state, value), DONE, Metric(name="loss")) == told


@pytest.mark.parametrize(
    ("rule", "goal", "told"),
    [
        ("worst", "minimize", 0.9),
        ("worst", "maximize", -0.2),
        ("latest", "minimize", 0.4),
        ("best", "minimize", 0.3),
    ],
)
def test_the_rule_says_which_value_stands_for_a_missing_one(rule: str, goal: Goal, told: float) -> None:
    metric = Metric(name="loss", goal=goal, impute=rule, impute_while_running=rule)
    failed = trial("failed", best=0.3, values={"loss": 0.4, "other": 9.0})
    assert told_value(failed, DONE, metric) == told_value(trial("running", 0.4, best=0.3), DONE, metric) == (told,)
    assert told_value(trial("failed"), [], metric) == (0.0,), "one that has logged nothing, by every rule"


# -- early stopping; the cases were run through W&B's own package, see docs/notes --------------------------------


@pytest.mark.parametrize(
    ("block", "bands"),
    [
        ({"max_iter": 27, "s": 2, "eta": 3}, (3, 9)),
        ({"max_iter": 27, "s": 9}, (1, 3, 9)),
        ({"max_iter": 20, "s": 2, "eta": 2.5}, (3, 8)),
        ({"max_iter": 2, "s": 1, "eta": 3}, ()),
        ({"max_iter": 27, "s": 1, "min_iter": 5}, (9,)),
        ({"min_iter": 3}, (3, 9, 27, 81)),
        ({"min_iter": 1, "eta": 1.5}, (1, 2, 3, 5, 7)),
    ],
)
def test_trials_are_compared_at_bands(block: dict[str, float], bands: Sequence[int]) -> None:
    found = Hyperband(**block).bands  # type: ignore[arg-type]
    assert found[: len(bands)] == bands
    assert found == bands or ("min_iter" in block and "max_iter" not in block)


RUNS = {0: [10.0, 9.0], 1: [10.0, 10.0], 2: [10.0, 8.0, 8.0], 3: [10.0, 7.0, 7.0], 4: [10.0, 6.0, 6.0]}
RULE = Hyperband(max_iter=4, s=2, eta=2.0)


@pytest.mark.parametrize(("number", "stopped"), [(0, True), (1, True), (2, False), (3, False), (4, False)])
def test_the_best_share_goes_on(number: int, stopped: bool) -> None:
    assert (why_stop(RULE, "minimize", number, RUNS) is not None) == stopped
    mirrored = {each: [-value for value in values] for each, values in RUNS.items()}
    assert (why_stop(RULE, "maximize", number, mirrored) is not None) == stopped


def test_without_strict_the_best_so_far_counts() -> None:
    values = {0: [1.0, 9.0], 1: [5.0, 5.0], 2: [6.0, 6.0]}
    lenient = Hyperband(max_iter=6, s=1, strict=False)
    assert why_stop(lenient, "minimize", 0, values) is None
    assert why_stop(replace(lenient, strict=True), "minimize", 0, values) is not None


@pytest.mark.parametrize("values", [{}, {0: []}, {0: [5.0]}], ids=["unknown", "nothing", "too few"])
def test_a_trial_that_has_come_to_no_band_goes_on(values: dict[int, list[float]]) -> None:
    assert why_stop(Hyperband(max_iter=6, s=1), "minimize", 0, values) is None
