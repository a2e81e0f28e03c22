"""Every distribution against the rules by which W&B's own package draws, written here with numpy and scipy."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipeline.sweeps.reading.parameters import read_parameters
from pipeline.sweeps.searching.search import draw, share
from pipeline.sweeps.space import LEAST_SHARE, Choice, Distribution, Parameter, fingerprint, nested

Rule = Callable[[np.ndarray], np.ndarray]
POINTS = 2_000


def made(**given: Any) -> Distribution:
    return next(read_parameters({"x": given})).distribution


def _rounded(rule: Rule, q: float) -> Rule:
    return lambda u: np.round(rule(u) / q) * q


def _log(low: float, high: float) -> Rule:
    return lambda u: np.exp(stats.uniform.ppf(u, low, high - low))


def _inverse_log(low: float, high: float) -> Rule:
    return lambda u: np.exp(-stats.uniform.ppf(1 - u, low, high - low))


# What the file says -> W&B's rule, as `sweeps.params.HyperParameter.ppf` of its package has it.
RULES: dict[str, tuple[dict[str, Any], Rule]] = {
    "uniform": ({"min": -1.5, "max": 4}, lambda u: stats.uniform.ppf(u, -1.5, 5.5)),
    "q_uniform": ({"min": 3, "max": 40, "q": 5}, _rounded(lambda u: stats.uniform.ppf(u, 3, 37), 5)),
    "int_uniform": ({"min": -3, "max": 9}, lambda u: stats.randint.ppf(u, -3, 10).astype(int)),
    "log_uniform": ({"min": -3, "max": 2}, _log(-3, 2)),
    "log_uniform_values": ({"min": 1e-5, "max": 0.1}, _log(math.log(1e-5), math.log(0.1))),
    "q_log_uniform": ({"min": 0, "max": 6, "q": 0.5}, _rounded(_log(0, 6), 0.5)),
    "q_log_uniform_values": ({"min": 1, "max": 900, "q": 8}, _rounded(_log(0, math.log(900)), 8)),
    "inv_log_uniform": ({"min": 1, "max": 5}, _inverse_log(1, 5)),
    "inv_log_uniform_values": ({"min": 0.5, "max": 60}, _inverse_log(-math.log(60), -math.log(0.5))),
    "normal": ({"mu": 3, "sigma": 0.5}, lambda u: stats.norm.ppf(u, 3, 0.5)),
    "q_normal": ({"sigma": 9, "q": 2}, _rounded(lambda u: stats.norm.ppf(u, 0, 9), 2)),
    "log_normal": ({"mu": -1}, lambda u: stats.lognorm.ppf(u, s=1, scale=np.exp(-1))),
    "q_log_normal": ({"mu": 2, "q": 0.25}, _rounded(lambda u: stats.lognorm.ppf(u, s=1, scale=np.exp(2)), 0.25)),
    "beta": ({"a": 2, "b": 5}, lambda u: stats.beta.ppf(u, 2, 5)),
    "q_beta": ({"a": 0.5, "b": 0.5, "q": 0.1}, _rounded(lambda u: stats.beta.ppf(u, 0.5, 0.5), 0.1)),
    "categorical": (
        {"values": list("abcdefg")},
        lambda u: np.array(list("abcdefg"))[stats.randint.ppf(u, 0, 7).astype(int)],
    ),
    "categorical_w_probabilities": (
        {"values": list("abcd"), "probabilities": [0.1, 0.0, 0.6, 0.3]},
        lambda u: np.array(list("abcd"))[np.argmin(u[:, None] >= np.cumsum([0.1, 0.0, 0.6, 0.3]), axis=1)],
    ),
    "constant": ({"value": 7}, lambda u: np.full_like(u, 7)),
}


@pytest.mark.parametrize("kind", RULES)
def test_values_are_those_that_wandb_would_draw(kind: str) -> None:
    """At the same share of the probability, so moments, bounds and steps are the same too."""
    given, rule = RULES[kind]
    distribution = made(distribution=kind, **given)
    shares = [share(f"{kind}/{number}") for number in range(POINTS)]
    ours, theirs = [distribution.at(each) for each in shares], rule(np.array(shares))
    if isinstance(ours[0], str):
        assert ours == theirs.tolist()
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kind", RULES)
def test_numbers_are_whole_where_wandb_has_them_whole(kind: str) -> None:
    given, _ = RULES[kind]
    whole = kind in ("int_uniform", "constant") or isinstance(given.get("q"), int)
    value = made(distribution=kind, **given).at(0.4)
    assert isinstance(value, int if whole else str if kind.startswith("categorical") else float)


@pytest.mark.parametrize("kind", RULES)
def test_a_share_is_found_again_from_its_value(kind: str) -> None:
    """As far as it goes: the value at the share that is found is the value."""
    given, _ = RULES[kind]
    distribution = made(distribution=kind, **given)
    for number in range(50):
        value = distribution.at(share(f"{kind}/{number}"))
        found = min(max(distribution.below(value), LEAST_SHARE), 1 - LEAST_SHARE)
        again = distribution.at(found)
        assert again == (value if isinstance(value, str) else pytest.approx(value))


@pytest.mark.properties
@given(
    low=st.integers(-(10**30), 10**30),
    size=st.integers(1, 10**30),
    u=st.floats(LEAST_SHARE, 1 - LEAST_SHARE),
)
def test_whole_numbers_stay_in_their_range_however_large(low: int, size: int, u: float) -> None:
    distribution = made(distribution="int_uniform", min=low, max=low + size)
    assert low <= distribution.at(u) <= low + size
    assert 0 <= distribution.below(distribution.at(u)) <= 1


@pytest.mark.properties
@given(
    bounds=st.tuples(st.floats(1e-300, 1e300), st.floats(1e-300, 1e300)).filter(lambda two: two[0] < two[1]),
    u=st.floats(LEAST_SHARE, 1 - LEAST_SHARE),
    kind=st.sampled_from(["uniform", "log_uniform_values", "inv_log_uniform_values"]),
)
def test_numbers_stay_in_their_range(bounds: tuple[float, float], u: float, kind: str) -> None:
    distribution = made(distribution=kind, min=bounds[0], max=bounds[1])
    assert bounds[0] <= distribution.at(u) <= bounds[1]
    assert 0 <= distribution.below(distribution.at(u)) <= 1


def test_probabilities_that_fall_short_of_one_leave_no_hole() -> None:
    assert Choice(("a", "b", "c"), (0.3, 0.69999, 0.0)).at(1 - LEAST_SHARE) == "b"


def test_a_value_is_told_from_what_equals_it() -> None:
    choice = Choice((1, True, "1", None, [1, 2], {"a": 1}))
    assert [choice.position(value) for value in (1.0, True, "1", None, [1, 2], {"a": 1})] == [0, 1, 2, 3, 4, 5]
    assert fingerprint(math.inf) != fingerprint("Infinity")
    with pytest.raises(ValueError):
        choice.position(2)


def test_draws_are_the_same_again_and_of_each_trial_and_name_alone() -> None:
    uniform = made(min=0.0, max=1.0)
    both = {name: Parameter((name,), uniform) for name in ("a", "b")}
    assert draw(both, 0, 3) == draw(both, 0, 3)
    assert draw({"b": both["b"]}, 0, 3) == {"b": draw(both, 0, 3)["b"]}
    assert (
        len({value for seed in (0, 1) for number in range(5) for value in draw(both, seed, number).values()}) == 20
    )


def test_draws_are_spread_over_the_whole_of_a_distribution() -> None:
    block = {"x": Parameter(("x",), made(min=0.0, max=1.0))}
    tenths = Counter(int(10 * draw(block, 0, number)["x"]) for number in range(2000))
    assert sorted(tenths) == list(range(10))
    assert all(150 < many < 250 for many in tenths.values()), "200 each, give or take four standard deviations"


def test_values_are_nested_as_in_the_file() -> None:
    parameters = {
        each.name: each
        for each in read_parameters(
            {
                "a": {"parameters": {"b": {"value": 1}, "c.d": {"value": 2}}},
                "e.f": {"value": 3},
            }
        )
    }
    assert nested(parameters, {"a.b": 4, "a.c.d": 5, "e.f": 6}) == {"a": {"b": 4, "c.d": 5}, "e.f": 6}
