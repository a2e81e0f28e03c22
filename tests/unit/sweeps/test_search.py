"""Searches as a sweep asks them: pure for the trials so far, apart from each other, and to an end."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from pipeline.sweeps.file import LEAST_SHARE, Goal, Hyperband, Metric, Sweep, fingerprint, made, sweep_of
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


def test_a_bayesian_search_learns_where_the_best_is() -> None:
    sweep = sweep_for("bayes", {"x": {"min": 0.0, "max": 1.0}, "y": {"values": ["a", "b", "c"]}})
    sweep = replace(sweep, metric=Metric(name="score", goal="maximize"))
    trials = tried(sweep, 40, lambda _, given: -((given["x"] - 0.8) ** 2) - (given["y"] != "b"))
    assert sum(trial.parameters["y"] == "b" for trial in trials[20:]) > 10
    assert sum(abs(trial.parameters["x"] - 0.8) < 0.2 for trial in trials[20:]) > 12


# -- grids -------------------------------------------------------------------------------------------------------


def listed(block: dict[str, Any]) -> list[dict[str, Any]]:
    """As `sweeps.grid_search` of W&B's package goes through a grid: sorted names, each combination once."""
    values = {name: {fingerprint(value): value for value in _values(of)} for name, of in sorted(block.items())}
    return [
        dict(zip(values, each, strict=True))
        for each in itertools.product(*(of.values() for of in values.values()))
    ]


def _values(given: dict[str, Any]) -> list[Any]:
    if given.get("distribution") == "q_uniform":
        return list(np.arange(given["min"], given["max"], given.get("q", 1.0)).tolist())
    return list(
        given.get("values") or ([given["value"]] if "value" in given else range(given["min"], given["max"] + 1))
    )


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
@example({"a": {"distribution": "q_uniform", "min": -1, "max": 1, "q": 2}})
def test_points_are_wandbs_in_its_order(block: dict[str, Any]) -> None:
    sweep, expected = sweep_for("grid", block), listed(block)
    points = [trial.parameters for trial in tried(sweep, 999, lambda *_: 0.0)]
    assert most_trials(sweep) == len(points)
    assert most_trials(replace(sweep, run_cap=1)) == 1
    assert repr([sorted(point.items()) for point in points]) == repr([sorted(point.items()) for point in expected])
    assert all(list(point) == list(block) for point in points)


# -- the value that a trial counts as ----------------------------------------------------------------------------


def trial(state: str, value: float | None = None, **more: Any) -> Trial:
    return Trial(number=9, parameters={}, state=state, value=value, **more)


DONE = [trial("done", 0.5), trial("stopped", 0.9), trial("done", None), trial("done", -0.2)]
LOGGED: dict[str, Any] = {"best": 0.3, "values": {"loss": 0.4, "other": 9.0}}


@pytest.mark.parametrize(
    ("of", "rule", "goal", "told"),
    [
        (trial("done", 0.1), "best", "minimize", (0.1,)),
        (trial("stopped", 0.1), "best", "minimize", (0.1,)),
        (trial("done", None), "worst", "minimize", (0.9,)),
        (trial("failed", 0.1), "worst", "maximize", (-0.2,)),
        (trial("failed", **LOGGED), "latest", "minimize", (0.4,)),
        (trial("failed", **LOGGED), "best", "minimize", (0.3,)),
        (trial("running", 0.4, best=0.3), "latest", "minimize", (0.4,)),
        (trial("running", 0.4, best=0.3), "best", "minimize", (0.3,)),
        (trial("running", 0.1), "false", "minimize", ()),
        (trial("waiting"), "worst", "minimize", ()),
        (trial("lost"), "worst", "minimize", ()),
        (trial("cancelled", 0.1), "worst", "minimize", None),
    ],
)
def test_what_a_search_is_told_of_a_trial(of: Trial, rule: str, goal: Goal, told: Any) -> None:
    impute: Any = "worst" if rule == "false" else rule
    metric = Metric(name="loss", goal=goal, impute=impute, impute_while_running=rule)  # type: ignore[arg-type]
    assert told_value(of, DONE, metric) == told
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


def test_a_trial_that_has_come_to_no_band_goes_on() -> None:
    for values in ({}, {0: []}, {0: [5.0]}):
        assert why_stop(Hyperband(max_iter=6, s=1), "minimize", 0, values) is None
