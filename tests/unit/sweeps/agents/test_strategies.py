"""Strategies: how many agents, with how many devices and trials each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.sweeps.agents.strategies import LARGEST, STRATEGIES, fit_agents, plan_agents, split_words, usage


@pytest.mark.parametrize(
    ("words", "size", "devices", "trials"),
    [
        ("simple", None, 1, (1,)),
        ("simple 3 2 5", None, 2, (5, 5, 5)),
        ("balanced 10", None, 2, (1,) * 10),
        ("balanced 27 4", None, 4, (3,) * 9),
        ("balanced 28", None, 2, (3,) * 9 + (1,)),
        ("balanced 31", None, 2, (5,) * 6 + (1,)),
        ("balanced", 27, 2, (3,) * 9),
        ("spread 3", None, 1, (1, 1, 1)),
        ("efficient 10 4", None, 1, (3, 3, 3, 1)),
        ("efficient", 27, 1, (3,) * 9),
        ("auto", 27, 1, (None,) * 8),
        ("explore", None, 1, (5,) * 4),
        ("explore 2 3 4", None, 4, (3, 3)),
        ("continuous", None, 2, (None, None)),
        ("4 1", 27, 1, (None,) * 4),
        ("8", 27, 1, (None,) * 8),
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
    ("words", "size", "said"),
    [
        ("balnced 3", None, "Did you mean balanced"),
        ("whatever", None, "continuous [AGENTS=2] [DEVICES=2]"),
        ("auto", None, "this search never ends"),
        ("balanced", None, "as in `balanced 27`"),
        ("simple 1 2 3 4", None, "3 numbers at most (AGENTS DEVICES TRIALS_EACH)"),
        ("simple 0", None, "whole ones from 1 to 10,000"),
        ("simple -2", None, "'-2'"),
        ("simple 1.5", None, "'1.5'"),
        ("simple \u00b2", None, "whole ones"),
        ("simple 99999999999999999999999999", None, "whole ones"),
        ("-4 2", None, "'-4'"),
        ("4x 2", None, "'4x'"),
        ("4 2 1", None, "two numbers at most"),
        ("", None, "no strategy is given"),
    ],
)
def test_what_is_no_strategy_is_refused_in_one_message(words: str, size: int | None, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_agents(words.split(), size)
    assert said in str(refused.value)


def test_the_plan_says_what_is_held_at_once() -> None:
    plan = fit_agents(plan_agents(["balanced", "27", "2"], None), 8)
    assert plan.lines() == [
        "strategy  balanced",
        "agents    9, each with 2 GPUs",
        "trials    27 at most, 3 by each agent",
        "at once   4 agents x 2 GPUs = 8 GPUs; the other agents wait for theirs",
    ]
    assert "until none is left" in plan_agents(["auto"], 27).lines()[2]
    assert "until it is stopped" in plan_agents(["4", "2"], None).lines()[2]
    assert plan_agents(["spread", "2"], None).confirm


def test_an_agent_that_needs_more_devices_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match="each agent needs 4 GPUs, and there are 2"):
        fit_agents(plan_agents(["1", "4"], 3), 2)
    with pytest.raises(ConfigError, match="needs 2 CPU slots, and there is 1"):
        fit_agents(plan_agents(["1", "2"], 3), 1, "CPU slot")


def test_settings_follow_the_numbers() -> None:
    assert split_words(["balanced", "27", "2", "a=1", "~b"]) == (["balanced", "27", "2"], ["a=1", "~b"])
    assert split_words(["+c=4", "x"]) == ([], ["+c=4", "x"])
    assert split_words(["4", "2"]) == (["4", "2"], [])


def test_the_usage_names_every_strategy() -> None:
    assert all(f"\n  {name} " in usage() for name in STRATEGIES)
