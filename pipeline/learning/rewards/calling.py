"""From what a dotted path names, and its settings, to a reward that can be called: functions, and what makes one.

Light on purpose: the processes that grade import this.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.config.place import told
from pipeline.errors import ConfigError
from pipeline.learning.rewards.signature import GIVEN, signature_of
from pipeline.learning.rewards.traits import RewardTraits, declared_traits
from pipeline.learning.rewards.trl import trl_traits

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
