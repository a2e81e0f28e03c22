"""Call a reward, given by dotted path and settings, with TRL's signature, also in a grading process.

Few imports on purpose: this is the main module of grading processes. They import only the requested rewards, call
them on requests from the pool in `scoring`, and answer in lines of JSON over one socket. A hostile completion may
have shaped an answer, so the pool parses answers only as JSON.

    request   {"function", "options",
               "calls": [{"id", "limit_s", "items": [{"prompt", "completion", "ids", "columns"}]}]}
    answers   {"loaded": true}, or {"broken": message}; then for each call one of
              {"id", "scores": [[value, answer, error] for each item]}, {"id", "error", "certain"},
              {"id", "timeout"}
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import logging
import math
import os
import random
import signal
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import groupby
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from pipeline.errors import ConfigError, JobError, PipelineError, is_own, own_place, told
from pipeline.learning.rewards.answers import gold_box
from pipeline.learning.rewards.traits import (
    RewardTraits,
    Text,
    WrongScores,
    declared_traits,
    is_async,
    read_scores,
    text_of,
)
from pipeline.machine.children import Channel
from pipeline.machine.descendants import begin
from pipeline.machine.memory import own_memory_bytes

if TYPE_CHECKING:
    from pipeline.learning.datasets.base import Row

GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""Arguments of every reward, as in TRL; rewards also get the columns of the dataset and their settings."""
_KEPT_BACK = {"prompt", "completion", "completion_ids"}
"""Columns of a dataset that TRL does not pass to rewards, since it passes its own values."""
_RESERVED = set(GIVEN) - _KEPT_BACK
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


# -- items -------------------------------------------------------------------------------------------------------
# Input of a reward for each completion.


@dataclass(frozen=True)
class Item:
    """One completion to grade, in TRL's terms; plain JSON data."""

    prompt: Any
    completion: Any
    ids: Sequence[int]
    columns: Mapping[str, Any] = field(default_factory=dict)


def items_of(
    rows: Sequence[Row],
    completions: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    needed: Iterable[str] = (),
    messages: Set[str] = frozenset(),
) -> list[Item]:
    """Build the input of a reward for each completion.

    It follows from the row alone, whatever is scored beside it.

    Args:
        rows: The row of each completion; repeated for several completions of one row.
        completions: Texts, without special tokens.
        completion_ids: The sampled token ids.
        needed: Columns that the reward takes without a default; None if a row lacks one.
        messages: Which of "prompts" and "completions" the reward takes only as conversations.

    Raises:
        JobError: A column has the name of an argument that every reward gets.
    """
    wanted = dict.fromkeys(needed)
    found = []
    for row, text, ids in zip(rows, completions, completion_ids, strict=True):
        prompt: Text = row.prompt
        completion: Text = text
        if not isinstance(prompt, str) or "completions" in messages:
            completion = [{"role": "assistant", "content": text}]
        if isinstance(prompt, str) and "prompts" in messages:
            prompt = [{"role": "user", "content": prompt}]
        found.append(Item(prompt, completion, ids, wanted | columns_of(row)))
    return found


def columns_of(row: Row) -> dict[str, Any]:
    """Return the columns of a row that rewards get.

    Raises:
        JobError: A column has the name of an argument that every reward gets.
    """
    if taken := _RESERVED & row.columns.keys():
        raise JobError(f"row {row.id}: rewards are given '{min(taken)}' already; give the column another name")
    return {name: value for name, value in row.columns.items() if name not in _KEPT_BACK}


def batches(rows: Sequence[Row], items: Sequence[Item], size: int) -> list[list[int]]:
    """Group items into calls: all items of a prompt in one call, and only items with the same columns.

    A reward may compare the completions in a call, as rewards for TRL's trainers compare completions of a prompt.

    Args:
        rows: The row of each item; items of a row are adjacent.
        items: Items to score.
        size: Largest number of items in a call, unless a single prompt has more.

    Returns:
        Positions of the items of each call. They follow from these arguments alone.
    """
    columns = [frozenset(item.columns) for item in items]
    alike: dict[frozenset[str], list[list[int]]] = {}
    for (_, names), run in groupby(range(len(items)), key=lambda at: (rows[at].id, columns[at])):
        group, calls = list(run), alike.setdefault(names, [[]])
        if calls[-1] and len(calls[-1]) + len(group) > size:
            calls.append([])
        calls[-1] += group
    return [call for calls in alike.values() for call in calls]


def arguments(items: Sequence[Item], options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the arguments with which TRL calls a reward.

    Args:
        items: Items to score, all with the same columns.
        options: Further arguments, from the configuration.
    """
    return {
        "prompts": [item.prompt for item in items],
        "completions": [item.completion for item in items],
        "completion_ids": [list(item.ids) for item in items],
        **{name: [item.columns[name] for item in items] for name in (items[0].columns if items else {})},
        **(options or {}),
        "trainer_state": None,
        "log_extra": _ignore,
        "log_metric": _ignore,
    }


def _ignore(*_: object, **__: object) -> None:
    """Ignore log messages of a reward; stands in for TRL's log hooks."""


# -- signature ---------------------------------------------------------------------------------------------------
# Whether a reward can be called with the columns of a dataset, by its signature alone.


@dataclass(frozen=True)
class Mismatch:
    """Reason why a reward cannot be called.

    Attributes:
        missing: Parameters without a column.
        said: Another problem with the signature, or "".
    """

    missing: tuple[str, ...] = ()
    said: str = ""


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """Return the parameters of a function, None if it has no signature (as compiled ones).

    For a decorated function these are the parameters of the wrapper, which is what is called.
    """
    try:
        return list(inspect.signature(function, follow_wrapped=False).parameters.values())
    except (ValueError, TypeError):
        return None


def needed_columns(function: Callable[..., Any], options: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the columns without which a reward cannot be called; empty for a function without a signature.

    Args:
        function: The reward.
        options: Names of the reward's settings, which are no columns.
    """
    given = {*GIVEN, *options}
    needed = (each for each in _parameters(function) or () if each.kind in _BY_NAME and each.default is each.empty)
    return tuple(each.name for each in needed if each.name not in given)


def mismatch(function: Callable[..., Any], columns: Iterable[str], options: Iterable[str] = ()) -> Mismatch | None:
    """Describe why a call with these keywords would not bind, or return None if it does.

    Args:
        function: The reward; a function without a signature is not checked.
        columns: Columns of the dataset besides its texts.
        options: Names of the reward's settings.
    """
    if isinstance(function, type):
        return Mismatch(said="is a class; name a function, or an object of that class that can be called")
    if (parameters := _parameters(function)) is None:
        return None
    given = dict.fromkeys([*GIVEN, *columns, *options])
    needed = [each for each in parameters if each.default is each.empty]
    if by_place := [each.name for each in needed if each.kind is each.POSITIONAL_ONLY]:
        return Mismatch(said=f"takes {', '.join(by_place)} by position alone, and is called with keywords")
    if missing := tuple(each.name for each in needed if each.kind in _BY_NAME and each.name not in given):
        return Mismatch(missing=missing)
    named = [each.name for each in parameters if each.kind in _BY_NAME]
    further = [name for name in given if name not in named]
    if not further or any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    said = f"takes {', '.join(named) or 'nothing'}, but is called with {', '.join(further)} too"
    return Mismatch(said=f"{said}; end its parameters with **_")


# -- trl ---------------------------------------------------------------------------------------------------------
# Traits of TRL's own rewards: what they verify and how they read answers; TRL defines neither. A reward is
# recognised by its function, or by the function that a factory returns, wherever it was imported from.


_HOME = "trl.rewards"
_MATH = ("math-verify", "latex2sympy2-extended", "sympy", "trl")


def latex_answer(completion: Text, delimiters: Sequence[str] = ()) -> str | None:
    """Return the answer of a completion as `accuracy_reward` reads it.

    Args:
        completion: Text or conversation.
        delimiters: Marks that may end the reasoning, for `reasoning_accuracy_reward`: without any of them there is
            no answer.
    """
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    text = text_of(completion)
    if delimiters:
        end = next((one for one in delimiters if one in text), None)
        if end is None:
            return None
        text = text.split(end)[-1]
    # It warns at every call that its timeout is off; grading processes have a deadline already.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    latex = LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=True),
        boxed_match_priority=0,
        try_extract_without_anchor=False,
    )
    parsed = parse(text, extraction_config=[latex], extraction_mode="first_match", parsing_timeout=None)
    return str(parsed[0]) if parsed else None


def trl_traits(reward: Any, options: Mapping[str, Any]) -> RewardTraits | None:
    """Return the traits of one of TRL's rewards, or None for any other function.

    Args:
        reward: The function, or the function that a factory returned.
        options: Further arguments of each call.
    """
    module, name = getattr(reward, "__module__", None), getattr(reward, "__name__", "")
    if not isinstance(module, str) or not f"{module}.".startswith(f"{_HOME}."):
        return None
    compares: dict[str, Any] = {"pointwise": True, "verifies": True, "judges": "correctness", "packages": _MATH}
    if name == "accuracy_reward":
        return RewardTraits(**compares, answer=latex_answer, gold=gold_box)
    if name == "reasoning_accuracy_reward":
        delimiters = tuple(options.get("reasoning_delimiters") or ("</think>",))
        return RewardTraits(**compares, answer=partial(latex_answer, delimiters=delimiters))
    if name == "cosine_scaled_reward":
        # The value separates right answers from wrong ones if their ranges do not overlap; the threshold is
        # half-way, so that rounding of the cosine does not matter.
        right = min(reward.min_value_correct, reward.max_value_correct)
        wrong = max(reward.min_value_wrong, reward.max_value_wrong)
        compares |= {"verifies": right > wrong, "judges": "correctness and length", "graded": True}
        return RewardTraits(**compares, answer=latex_answer, correct_from=(right + wrong) / 2)
    judges = {
        "think_format_reward": "format",
        "soft_overlong_punishment_reward": "length",
        "repetition_penalty_reward": "repetition",
    }.get(name)
    if judges is None:
        return None
    return RewardTraits(
        pointwise=True, verifies=False, graded=judges != "format", judges=judges, packages=("trl",)
    )


# -- bound -------------------------------------------------------------------------------------------------------
# A reward with its settings.


@dataclass(frozen=True)
class Bound:
    """A reward with its settings.

    Attributes:
        function: Function to call.
        traits: Traits of the reward.
        arguments: Settings that are passed in each call; empty after a factory has used them.
        messages: Which of "prompts" and "completions" the reward takes only as conversations.
    """

    function: Callable[..., Any]
    traits: RewardTraits
    arguments: Mapping[str, Any] = field(default_factory=dict)
    messages: frozenset[str] = frozenset()


def bind(named: Callable[..., Any], options: Mapping[str, Any], name: str = "") -> Bound:
    """Apply settings to a reward.

    Args:
        named: A reward, or a factory, such as TRL's `get_...` functions.
        options: Settings from the configuration.
        name: Name of the reward in the configuration, for messages.

    Raises:
        ConfigError: A factory fails with these settings, or returns no function.
    """
    if makes_rewards(named):
        named, options = _made(named, options, name or getattr(named, "__name__", "reward")), {}
    traits = traits_of(named, options)
    return Bound(named, traits, options, takes_messages(named) if traits.messages is None else traits.messages)


def makes_rewards(named: Callable[..., Any]) -> bool:
    """Return whether a function is a factory: it takes no argument of `GIVEN`, and has no `**` parameter."""
    parameters = None if isinstance(named, type) else _parameters(named)
    return parameters is not None and not any(
        each.kind is each.VAR_KEYWORD or each.name in GIVEN for each in parameters
    )


def traits_of(function: object, arguments: Mapping[str, Any] | None = None) -> RewardTraits:
    """Return the traits of a reward: the attached ones, or those known for TRL's rewards.

    Args:
        function: The reward.
        arguments: Further arguments of each call.
    """
    return declared_traits(function) or trl_traits(function, arguments or {}) or RewardTraits()


def takes_messages(function: Callable[..., Any]) -> frozenset[str]:
    """Return which texts a reward takes only as conversations: ``list[list[dict[str, str]]]`` and the like."""
    called = function if inspect.isroutine(function) else type(function).__call__
    try:
        hints = typing.get_type_hints(inspect.unwrap(called))
    except Exception:  # a name that exists only for type checkers, or anything else
        return frozenset()
    return frozenset(name for name in ("prompts", "completions") if _are_messages(hints.get(name)))


def _made(factory: Callable[..., Any], options: Mapping[str, Any], name: str) -> Callable[..., Any]:
    signature = inspect.signature(factory)
    is_factory = f"'{name}' takes none of what rewards are given ({', '.join(GIVEN)})"
    try:
        signature.bind(**options)
    except TypeError as error:
        raise ConfigError(
            f"grading.options.{name}: {error}. {is_factory}, so it is called once, to make a reward, as "
            f"{name}{signature}"
        ) from error
    try:
        made = factory(**options)
    except Exception as error:
        raise ConfigError(f"'{name}' makes no reward of these settings: {told(error)}") from error
    if not callable(made):
        raise ConfigError(f"{is_factory}, so it must make a reward; it returned a {type(made).__name__}")
    function: Callable[..., Any] = made
    return function


def _are_messages(hint: object) -> bool:
    """Return whether an annotation of several texts allows only lists for each, no strings."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = [one for one in typing.get_args(hint) if one is not types.NoneType] if union else [hint]
    return all(_is_list(one) and any(map(_is_list, typing.get_args(one)[:1])) for one in members)


def _is_list(hint: object) -> bool:
    origin = typing.get_origin(hint) or hint
    return isinstance(origin, type) and issubclass(origin, Sequence) and not issubclass(origin, str | bytes)


# -- grader ------------------------------------------------------------------------------------------------------


_LONGEST_ERROR = 4000


def main() -> None:
    """Grade until the pool closes the connection."""
    settings = begin()  # so the process ends with its parent even while a regular expression holds the interpreter
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that owns the pool
    channel, pid = Channel.inherited(settings["fd"]), os.getpid()

    def answer(**fields: Any) -> None:
        # a forked copy in a reward would answer instead of this process, also to later calls
        if os.getpid() != pid:
            os._exit(0)
        channel.send(json.dumps(fields).encode())

    for line in channel.lines():
        _serve(json.loads(line), answer, settings["memory_gib"])
    os._exit(0)


def _serve(request: dict[str, Any], answer: Callable[..., None], memory_gib: float) -> None:
    try:
        bound = _load(request["function"], json.dumps(request["options"]))
    except BaseException as error:  # a module may raise anything, including SystemExit
        answer(broken=f"cannot import the reward '{request['function']}': {_said(error)}")
        return
    _limit_memory(memory_gib)
    answer(loaded=True)
    if is_async(bound.function):
        loop().run(_all_at_once(bound, request["calls"], answer))
        return
    for call in request["calls"]:
        items = [Item(**item) for item in call["items"]]
        _seed(items)
        try:
            given = bound.function(**arguments(items, bound.arguments))
            given = loop().run(_awaited(given)) if inspect.isawaitable(given) else given
            scores = scores_of(given, bound.traits, items)
        except BaseException as error:  # whatever it is concerns only this call
            answer(id=call["id"], error=_said(error), certain=_is_certain(error))
        else:
            answer(id=call["id"], scores=scores)


@cache
def _load(path: str, options: str) -> Bound:
    return bind(resolve_name(path), json.loads(options), path)


@cache
def _limit_memory(gib: float) -> None:
    """Limit the address space to the current size, after the imports, plus `gib`. Linux only."""
    if sys.platform != "linux":
        return
    import resource

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = own_memory_bytes()[0] + int(gib * 2**30)
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _seed(items: Sequence[Item]) -> None:
    """Seed random generators by the items, so that scores do not depend on the process or on earlier calls."""
    judged = json.dumps([[item.prompt, item.completion] for item in items]).encode()
    seed = int.from_bytes(hashlib.sha256(judged).digest()[:4])
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


@cache
def loop() -> asyncio.Runner:
    """Return the one event loop that awaits rewards: clients and locks that rewards keep belong to a loop."""
    return asyncio.Runner(loop_factory=asyncio.new_event_loop)  # and therefore separate from other loops


async def _awaited(given: Any) -> Any:
    return await given


async def _all_at_once(bound: Bound, calls: Sequence[dict[str, Any]], answer: Callable[..., None]) -> None:
    """Await all calls at once; each has the deadline that the pool would otherwise enforce."""

    async def grade(call: dict[str, Any]) -> None:
        items = [Item(**item) for item in call["items"]]
        _seed(items)
        try:
            async with asyncio.timeout(call["limit_s"]):
                given = await bound.function(**arguments(items, bound.arguments))
            answer(id=call["id"], scores=scores_of(given, bound.traits, items))
        except TimeoutError:
            answer(id=call["id"], timeout=True)
        except BaseException as error:  # as above
            answer(id=call["id"], error=_said(error), certain=_is_certain(error))

    await asyncio.gather(*map(grade, calls))


def scores_of(given: Any, traits: RewardTraits, items: Sequence[Item]) -> list[tuple[Any, Any, Any]]:
    """Convert the return value of a reward: value or None, vote or None, and error or None of each item.

    Raises:
        WrongScores: The reward returned something else than scores.
    """
    return [_score(value, traits, item) for value, item in zip(read_scores(given, len(items)), items, strict=True)]


def _score(value: float | None, traits: RewardTraits, item: Item) -> tuple[Any, Any, Any]:
    if value is not None and math.isinf(value):
        return None, None, "the reward is infinite"
    return None if value is None or math.isnan(value) else value, traits.vote(item.completion), None


def _said(error: BaseException) -> str:
    text = told(error)
    return text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]}... ({own_place(error)})"


def _is_certain(error: BaseException) -> bool:
    """Return whether an error cannot depend on the completion, as an undefined name in the reward's own file."""
    if isinstance(error, WrongScores | PipelineError):
        return True
    # Code generated from a completion has no file.
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    files = [file for file in files if not file.startswith("<frozen importlib")]
    return type(error) in (NameError, ImportError, ModuleNotFoundError) and bool(files) and is_own(files[-1])


if __name__ == "__main__":
    main()
