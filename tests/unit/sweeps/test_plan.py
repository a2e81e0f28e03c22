"""Strategies: how many agents, with how many devices and trials each."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.sweeps.file import sweep_of
from pipeline.sweeps.plan import LARGEST, STRATEGIES, USAGE, most_devices, plan_agents, split_words


@pytest.mark.parametrize(
    ("words", "size", "devices", "trials"),
    [
        ("simple 3 2 5", None, 2, (5, 5, 5)),
        ("balanced 27 4", None, 4, (3,) * 9),
        ("balanced 28", None, 2, (3,) * 9 + (1,)),
        ("balanced 31", None, 2, (5,) * 6 + (1,)),
        ("spread 3", None, 1, (1, 1, 1)),
        ("efficient 10 4", None, 1, (3, 3, 3, 1)),
        ("efficient", 27, 1, (3,) * 9),
        ("auto", 27, 1, (None,) * 8),
        ("explore 2 3 4", None, 4, (3, 3)),
        ("continuous", None, 2, (None, None)),
        ("4 1", 27, 1, (None,) * 4),
    ],
)
def test_a_strategy_is_agents_devices_and_trials(
    words: str, size: int | None, devices: int, trials: tuple[int | None, ...]
) -> None:
    plan = plan_agents(words.split(), size)
    assert (plan.devices, plan.trials) == (devices, trials)


@pytest.mark.properties
@given(st.sampled_from(["balanced", "efficient", "spread"]), st.integers(1, LARGEST), st.integers(1, 100))
def test_shared_trials_are_all_there_and_no_agent_has_none(name: str, trials: int, number: int) -> None:
    words = [name, str(trials), *([] if name == "spread" else [str(number)])]
    shares = [share or 0 for share in plan_agents(words, None).trials]
    assert sum(shares) == trials
    assert min(shares) >= 1
    assert len(set(shares[:-1])) <= 1
    assert shares[-1] <= shares[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("balnced 3", "Did you mean 'balanced'"),
        ("whatever", "continuous [AGENTS] [DEVICES]"),
        ("auto", "never ends"),
        ("balanced", "never ends"),
        ("simple 1 2 3 4", "3 at most"),
        ("simple -2", "'-2'"),
        ("simple \u00b2", "whole ones"),
        ("simple 99999999999999999999999999", "whole ones"),
        ("4x 2", "'4x'"),
    ],
)
def test_what_is_no_strategy_is_refused_in_one_message(words: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_agents(words.split(), None)
    assert said in str(refused.value)


def test_agents_that_do_not_fit_at_once_wait_and_one_that_never_fits_is_refused() -> None:
    plan = plan_agents(["balanced", "27", "2"], None, 8)
    assert (plan.at_once, plan.total, plan.endless) == (4, 27, False)
    assert plan_agents(["4", "2"], None).endless
    with pytest.raises(ConfigError, match="4 GPUs"):
        plan_agents(["1", "4"], 3, 2)


def test_settings_follow_the_numbers() -> None:
    assert split_words(["balanced", "27", "2", "a=1", "~b"]) == (["balanced", "27", "2"], ["a=1", "~b"])
    assert split_words(["+c=4", "x"]) == ([], ["+c=4", "x"])
    assert all(f"\n  {name} " in USAGE for name in STRATEGIES)


@pytest.mark.parametrize(
    ("given", "needed"),
    [({"values": [1, 4, 2]}, (1, 4)), ({"min": 1, "max": 8}, (1, 8)), ({"value": 2}, (2, 2)), (None, (3, 3))],
)
def test_a_parameter_says_how_many_devices_trials_need(
    given: dict[str, object] | None, needed: tuple[int, int]
) -> None:
    parameters = {"a": {"value": 1}, **({"num_gpus": given} if given else {})}
    asked = {"program": "p", "method": "random", "parameters": parameters, "pipeline": {"num_gpus": 3}}
    assert most_devices(sweep_of(asked, Path("s.yaml"))) == needed
