"""From what a dotted path names, and its settings, to a reward that can be called: functions, and what makes one.

Light on purpose: the processes that grade import this.
"""

from __future__ import annotations

import inspect
import logging
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pipeline.config.place import told
from pipeline.errors import ConfigError
from pipeline.learning.rewards.answers import gold_box
from pipeline.learning.rewards.traits import RewardTraits, Text, declared_traits, text_of

# -- signature ---------------------------------------------------------------------------------------------------
# Whether a reward can be called with the columns of a dataset, told from its signature alone.


GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""Arguments of every reward, as TRL has them; it is given the columns of the dataset and its settings besides."""

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Mismatch:
    """Why a reward cannot be called.

    Attributes:
        missing: Parameters for which there is no column.
        said: What is wrong with the signature besides, or "".
    """

    missing: tuple[str, ...] = ()
    said: str = ""


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """How a function is called: of one that is decorated as its wrapper, unless that passes all on (``*a, **k``).

    Raises:
        ValueError, TypeError: It names no signature.
    """
    own = inspect.signature(function, follow_wrapped=False)
    passes_on = any(each.kind is each.VAR_POSITIONAL for each in own.parameters.values())
    return inspect.signature(function) if passes_on else own


def needed_columns(function: Callable[..., Any], options: Iterable[str] = ()) -> tuple[str, ...]:
    """Columns that a reward cannot be called without; none of something that names no signature.

    Args:
        function: The reward.
        options: Names of its settings, which are no columns.
    """
    try:
        parameters = signature_of(function).parameters.values()
    except (ValueError, TypeError):
        return ()
    given = {*GIVEN, *options}
    needed = (each for each in parameters if each.kind in _NAMED and each.default is each.empty)
    return tuple(each.name for each in needed if each.name not in given)


def mismatch(function: Callable[..., Any], columns: Iterable[str], options: Iterable[str] = ()) -> Mismatch | None:
    """Say why a call with these keywords would not bind, or None if it does.

    Args:
        function: The reward; something that names no signature, such as a compiled function, is not judged.
        columns: Columns of the dataset besides its texts.
        options: Names of its settings.
    """
    if isinstance(function, type):
        return Mismatch(said="is a class; name a function, or an object of that class that can be called")
    try:
        parameters = signature_of(function).parameters.values()
    except (ValueError, TypeError):
        return None
    given = dict.fromkeys([*GIVEN, *columns, *options])
    needed = [each for each in parameters if each.default is each.empty]
    if by_place := [each.name for each in needed if each.kind is each.POSITIONAL_ONLY]:
        return Mismatch(
            said=f"takes {', '.join(by_place)} by position alone, but rewards are called with keywords; leave out "
            "the '/' in its parameters"
        )
    missing = tuple(each.name for each in needed if each.kind in _NAMED and each.name not in given)
    if missing:
        return Mismatch(missing=missing)
    named = [each.name for each in parameters if each.kind in _NAMED]
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    if further := [name for name in given if name not in named]:
        return Mismatch(
            said=f"takes {', '.join(named) or 'nothing'}, but is called with {', '.join(further)} too; end its "
            "parameters with **_"
        )
    return None


# -- trl ---------------------------------------------------------------------------------------------------------
# TRL's own rewards: what each of them verifies, and how its answer is read. TRL itself says neither. A reward
# is known by the function, or the object that a factory makes, wherever it was imported from: accuracy_reward
# correctness 0 or 1 the first \boxed{} or LaTeX, parsed reasoning_accuracy_reward correctness 0 or 1 the
# same, after the reasoning get_cosine_scaled_reward correctness graded, by length as accuracy_reward
# think_format_reward format 0 or 1 none get_soft_overlong_punishment length graded, -1 to 0 none
# get_repetition_penalty_reward repetition graded, below 0 none


_HOME = "trl.rewards"
_DELIMITERS = ("</think>",)
"""What TRL takes for the end of the reasoning where nothing else is said."""
_MATH = ("math-verify", "latex2sympy2-extended", "sympy", "trl")


def trl_traits(reward: object, options: Mapping[str, Any]) -> RewardTraits | None:
    """The traits of one of TRL's rewards, or None for any other function.

    Args:
        reward: The function, or what a factory has made.
        options: Further arguments of each call.
    """
    module = getattr(reward, "__module__", None)
    if not isinstance(module, str) or not f"{module}.".startswith(f"{_HOME}."):
        return None
    known = _KNOWN.get(getattr(reward, "__name__", ""))
    return None if known is None else known(reward, options)


def _accuracy(reward: object, options: Mapping[str, Any]) -> RewardTraits:  # noqa: ARG001 - as all in the table
    return RewardTraits(
        pointwise=True,
        verifies=True,
        judges="correctness",
        answer=latex_answer,
        gold=gold_box,
        packages=_MATH,
    )


def _reasoning(reward: object, options: Mapping[str, Any]) -> RewardTraits:  # noqa: ARG001
    delimiters = tuple(options.get("reasoning_delimiters") or _DELIMITERS)
    answer = partial(answer_after, delimiters=delimiters)
    return RewardTraits(pointwise=True, verifies=True, judges="correctness", answer=answer, packages=_MATH)


def _cosine(reward: Any, options: Mapping[str, Any]) -> RewardTraits:  # noqa: ARG001
    """Right answers are told from wrong ones by the value, as long as the two have ranges apart."""
    right = min(reward.min_value_correct, reward.max_value_correct)
    wrong = max(reward.min_value_wrong, reward.max_value_wrong)
    about = RewardTraits(
        pointwise=True,
        verifies=right > wrong,
        graded=True,
        judges="correctness and length",
        answer=latex_answer,
        packages=_MATH,
    )
    # Half-way, so that rounding of the cosine decides nothing.
    return RewardTraits(**{**vars(about), "correct_from": (right + wrong) / 2})


def _unlike_answers(judges: str, *, graded: bool) -> Callable[[object, Mapping[str, Any]], RewardTraits]:
    about = RewardTraits(pointwise=True, verifies=False, graded=graded, judges=judges, packages=("trl",))
    return lambda _reward, _options: about


_KNOWN: Mapping[str, Callable[[Any, Mapping[str, Any]], RewardTraits]] = {
    "accuracy_reward": _accuracy,
    "reasoning_accuracy_reward": _reasoning,
    "cosine_scaled_reward": _cosine,
    "think_format_reward": _unlike_answers("format", graded=False),
    "soft_overlong_punishment_reward": _unlike_answers("length", graded=True),
    "repetition_penalty_reward": _unlike_answers("repetition", graded=True),
}
"""By the `__name__` that TRL gives a function, or what a factory makes."""


def latex_answer(completion: Text) -> str | None:
    """The answer of a completion as `accuracy_reward` reads it."""
    return _parsed(text_of(completion))


def answer_after(completion: Text, delimiters: Iterable[str] = _DELIMITERS) -> str | None:
    """The answer after the reasoning, as `reasoning_accuracy_reward` reads it; None where reasoning has no end."""
    text = text_of(completion)
    end = next((one for one in delimiters if one in text), None)
    return None if end is None else _parsed(text.split(end)[-1])


def _parsed(text: str) -> str | None:
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    # It warns at every call that its timeout is off; who grades has a deadline already.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    latex = LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=True),
        boxed_match_priority=0,
        try_extract_without_anchor=False,
    )
    parsed = parse(text, extraction_config=[latex], extraction_mode="first_match", parsing_timeout=None)
    return str(parsed[0]) if parsed else None


_TEXTS = ("prompts", "completions")
_IS_FACTORY = f"'{{}}' takes none of what rewards are given ({', '.join(GIVEN)})"
_UNIONS = (typing.Union, types.UnionType)


@dataclass(frozen=True)
class Bound:
    """A reward with its settings.

    Attributes:
        function: What is called.
        traits: What is known of it.
        arguments: Its settings, where they are arguments of each call; those of a factory are used up.
        messages: Which of "prompts" and "completions" it takes as conversations alone.
    """

    function: Callable[..., Any]
    traits: RewardTraits
    arguments: Mapping[str, Any] = field(default_factory=dict)
    messages: frozenset[str] = frozenset()


def bind(named: Callable[..., Any], options: Mapping[str, Any], name: str = "") -> Bound:
    """Give a reward its settings.

    Args:
        named: A reward, or a function that makes one, as TRL's `get_...` do.
        options: Settings from the configuration.
        name: Of the reward in the configuration, for messages.

    Raises:
        ConfigError: It makes a reward but cannot with these settings, or makes something else.
    """
    if not makes_rewards(named):
        return _bound(named, options)
    made = _made(named, options, name or getattr(named, "__name__", "reward"))
    return _bound(made, {})


def makes_rewards(named: Callable[..., Any]) -> bool:
    """Whether a function makes a reward: it takes none of what rewards are given, nor anything by `**`."""
    if isinstance(named, type):
        return False
    try:
        parameters = signature_of(named).parameters
    except (ValueError, TypeError):
        return False
    open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return not open_ended and not parameters.keys() & set(GIVEN)


def traits_of(function: object, arguments: Mapping[str, Any] | None = None) -> RewardTraits:
    """What is known of a reward: what was attached to it, or what we know of TRL's.

    Args:
        function: The reward.
        arguments: Further arguments of each call.
    """
    return declared_traits(function) or trl_traits(function, arguments or {}) or RewardTraits()


def takes_messages(function: Callable[..., Any]) -> frozenset[str]:
    """Which texts a reward takes as conversations alone, by its annotations: ``list[list[dict[str, str]]]``."""
    called = function if inspect.isroutine(function) else type(function).__call__
    try:
        hints = typing.get_type_hints(inspect.unwrap(called))
    except Exception:  # a name that is there for type checkers alone, or anything else
        return frozenset()
    return frozenset(name for name in _TEXTS if _are_messages(hints.get(name)))


def _bound(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Bound:
    traits = traits_of(function, arguments)
    messages = takes_messages(function) if traits.messages is None else traits.messages
    return Bound(function, traits, arguments, messages)


def _made(factory: Callable[..., Any], options: Mapping[str, Any], name: str) -> Callable[..., Any]:
    signature = inspect.signature(factory)
    try:
        signature.bind(**options)
    except TypeError as error:
        raise ConfigError(
            f"grading.options.{name}: {error}. {_IS_FACTORY.format(name)}, so it is called once, to make a "
            f"reward, as {name}{signature}"
        ) from error
    try:
        made = factory(**options)
    except Exception as error:
        raise ConfigError(f"'{name}' makes no reward of these settings: {told(error)}") from error
    if not callable(made):
        raise ConfigError(
            f"{_IS_FACTORY.format(name)}, so it must make a reward; it returned a {type(made).__name__}"
        )
    function: Callable[..., Any] = made
    return function


def _are_messages(hint: object) -> bool:
    """Whether an annotation of several texts says that each is a list."""
    return any(_is_list(entry) for one in _members(hint) for entry in typing.get_args(one)[:1] if _is_list(one))


def _members(hint: object) -> tuple[object, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)


def _is_list(hint: object) -> bool:
    origin = typing.get_origin(hint) or hint
    return isinstance(origin, type) and issubclass(origin, Sequence) and not issubclass(origin, str | bytes)
