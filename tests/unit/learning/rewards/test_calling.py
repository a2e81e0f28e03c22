"""Which signatures fit which columns: the binder says what Python says when the call is made."""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from importlib import import_module
from typing import Any

import pytest

from pipeline.config.schema import DatasetConfig, GradingConfig
from pipeline.config.tables import TRL_REWARDS
from pipeline.errors import ConfigError
from pipeline.learning.datasets.base import Row
from pipeline.learning.rewards.calling import (
    Item,
    arguments,
    bind,
    makes_rewards,
    mismatch,
    needed_columns,
    takes_messages,
)
from pipeline.learning.rewards.registry import load_rewards
from pipeline.learning.rewards.scoring import Scored, Scorer
from tests.doubles import own_rewards


def plain(completions: Sequence[str], solution: Sequence[str], **_: Any) -> None: ...


def by_keyword(*, completions: Sequence[str], level: Sequence[int], solution: str = "", **_: Any) -> None: ...


def all_named(
    prompts: Any, completions: Any, completion_ids: Any, trainer_state: Any, log_extra: Any, log_metric: Any
) -> None: ...


def by_place(completions: Any, /, **_: Any) -> None: ...


def decorated(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """`wrapper` as `functools.wraps` dresses one around a function of one completion."""

    def one(completion: str, level: int) -> None: ...

    return wraps(one)(wrapper)


class Callable_:
    def __call__(self, completions: Sequence[str], level: Sequence[int], **_: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "columns", "missing", "said"),
    [
        (plain, ["solution"], None, ""),
        (plain, ["answer"], ("solution",), ""),
        (by_keyword, [], ("level",), ""),
        (all_named, ["level"], (), "end its parameters with **_"),
        (partial(plain, solution=["a"]), [], None, ""),
        (Callable_(), [], ("level",), ""),
        (Callable_, ["level"], (), "is a class"),
        (by_place, [], (), "takes completions by position alone"),
        (lambda completions: [1.0], [], (), "takes completions, but is called with prompts, completion_ids"),
        (decorated(lambda completions, **_: None), [], None, ""),
        (decorated(lambda *a, **k: None), [], None, ""),
        (max, [], None, ""),  # a compiled function names no signature
    ],
)
def test_what_a_signature_needs(
    function: Callable[..., Any], columns: list[str], missing: tuple[str, ...] | None, said: str
) -> None:
    found = mismatch(function, columns)
    if missing is None:
        assert found is None
    else:
        assert found is not None
        assert found.missing == missing
        assert said in found.said


def test_what_a_wrapper_passes_on_is_its_own_affair() -> None:
    anything = decorated(lambda *_, **given: [1.0 for _ in given["completions"]])
    assert needed_columns(anything) == ()
    assert not makes_rewards(anything)


def test_what_a_reward_reports_is_named_as_by_trl() -> None:
    given = arguments([Item("p", "c", [1])])
    given["log_extra"](column="length", values=[1])
    given["log_metric"](name="mean", value=1.0)


@pytest.mark.parametrize(
    ("hint", "messages"),
    [
        (list[list[dict[str, str]]], True),
        (Sequence[Sequence[Any]] | None, True),
        (list[str] | list[list[dict[str, str]]], False),
        (list[str | list[dict[str, str]]], False),
        (list[str], False),
    ],
)
def test_messages_are_asked_for_by_an_annotation_that_allows_no_text(hint: Any, messages: bool) -> None:
    def asks(completions: Any, **_: Any) -> None: ...

    asks.__annotations__["completions"] = hint
    assert takes_messages(asks) == ({"completions"} if messages else set())


# -- test trl rewards --------------------------------------------------------------------------------------------
# TRL's own rewards work unchanged, by name and by path, and say what they verify.


RIGHT, WRONG, PLAIN = r"so \boxed{\frac{1}{2}}", r"so \boxed{3}", "no idea"
THOUGHT = f"<think>hm</think> {RIGHT}"
COSINE = {"get_cosine_scaled_reward": {"max_len": 10}}
OPTIONS: dict[str, dict[str, Any]] = {
    **COSINE,
    "get_soft_overlong_punishment": {"max_completion_len": 4, "soft_punish_cache": 2},
    "get_repetition_penalty_reward": {"ngram_size": 1},
}
EXPECTED = {
    "accuracy_reward": [1, 0, 0, 1],
    "reasoning_accuracy_reward": [0, 0, 0, 1],
    "think_format_reward": [0, 0, 0, 1],
    "get_soft_overlong_punishment": [0, 0, -0.5, -1],
    "get_repetition_penalty_reward": [0, -0.5, -2 / 3, -0.75],
    "get_cosine_scaled_reward": [0.98776412, -0.95225425, -0.89694631, 0.82725425],
}


def own(name: str) -> str:
    return f"{own_rewards.__name__}.{name}"


def dataset(rewards: dict[str, float], options: dict[str, Any] | None = None, **grading: Any) -> DatasetConfig:
    settings = {"processes": 1, "timeout_s": 30.0, **grading}
    return DatasetConfig(kind="x", rewards=rewards, grading=GradingConfig(options=options or {}, **settings))


def score(
    config: DatasetConfig, texts: Sequence[str] = (RIGHT, WRONG, PLAIN, THOUGHT), prompt: Any = "1/2?"
) -> Scored:
    rows = [Row(at, prompt, {"solution": r"$\frac{1}{2}$"}) for at in range(len(texts))]
    with Scorer(config) as scorer:
        return scorer.score(rows, texts, [[7] * (at + 1) for at in range(len(texts))])


def test_all_that_trl_ships_is_known() -> None:
    """A later version of TRL that has more fails here, so that nobody guesses what its rewards verify."""
    from trl import rewards as trl_rewards  # slow to import

    assert {name for names in trl_rewards._import_structure.values() for name in names} == set(TRL_REWARDS)
    for name in TRL_REWARDS:
        assert bind(getattr(trl_rewards, name), OPTIONS.get(name, {})).traits.judges


@pytest.mark.parametrize("name", TRL_REWARDS)
def test_by_name_and_by_path_on_text_and_on_conversations(name: str) -> None:
    chat = [{"role": "user", "content": "1/2?"}]
    module = getattr(import_module("trl.rewards"), name).__module__
    for called, prompt in ((name, "1/2?"), (f"trl.rewards.{name}", chat), (f"{module}:{name}", "1/2?")):
        found = score(dataset({called: 1.0}, {called: OPTIONS.get(name, {})}, isolated=False), prompt=prompt)
        assert found.values == pytest.approx(EXPECTED[name])
        assert not any(found.faults)


def test_a_format_or_a_length_never_makes_a_completion_correct() -> None:
    for first in ("think_format_reward", "get_soft_overlong_punishment", "get_repetition_penalty_reward"):
        options = {first: OPTIONS.get(first, {})}
        alone = score(dataset({first: 1.0}, options, isolated=False))
        assert set(alone.correct) == set(alone.answers) == {None}
        found = score(dataset({first: 1.0, "accuracy_reward": 1.0}, options, isolated=False))
        assert list(found.correct) == [True, False, False, True]
        with pytest.raises(ConfigError, match=rf"correct_by={first}: this reward judges .* Choose one of nothing"):
            score(dataset({first: 1.0}, options, correct_by=first))


# -- rewards of the user's own ---------------------------------------------------------------------------------


def test_a_function_that_makes_a_reward_takes_its_settings_once() -> None:
    name = own("scaled")
    for isolated in (True, False):
        found = score(dataset({name: 1.0}, {name: {"scale": 2, "shift": 1}}, isolated=isolated), ["a", "abc"])
        assert found.values.tolist() == [3, 7]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (
            "get_cosine_scaled_reward",
            {},
            "missing a required argument: 'max_len'.*get_cosine_scaled_reward.max_len",
        ),
        ("get_cosine_scaled_reward", {"max_length": 3, "max_len": 2}, "unexpected keyword argument 'max_length'"),
        (own("misnamed"), {}, "missing a required argument: 'texts'. .* takes none of what rewards are given"),
        (own("makes_a_number"), {}, "must make a reward; it returned a float"),
    ],
)
def test_settings_of_which_no_reward_can_be_made_are_refused(
    name: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load_rewards(dataset({name: 1.0}, {name: options}), "cpu")


@pytest.mark.parametrize("isolated", [True, False])
def test_texts_are_given_as_messages_where_a_reward_takes_no_others(isolated: bool) -> None:
    rewards = {own("of_messages"): 1.0, own("says_it_takes_messages"): 1.0}
    found = score(dataset(rewards, isolated=isolated, correct_by="nothing"), ["ab", ""], prompt="123")
    assert [part.tolist() for part in found.parts.values()] == [[5, 3], [2, 0]]
