"""From what a dotted path names, and its settings, to a call in TRL's signature, and the process that makes it.

Light on purpose: it is the main function of the processes that grade. They import nothing but the rewards that
they are asked for, call them as the pool of `scoring` tells them, and answer in lines of JSON over one socket. An
answer is data that a hostile completion may have shaped, so nothing else than JSON is read from it.

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
"""Arguments of every reward, as TRL has them; it is given the columns of the dataset and its settings besides."""
_KEPT_BACK = {"prompt", "completion", "completion_ids"}
"""Columns of a dataset that TRL keeps from rewards, since it passes its own."""
_RESERVED = set(GIVEN) - _KEPT_BACK
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


# -- items -------------------------------------------------------------------------------------------------------
# What a reward is given of each completion.


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
    """What a reward is given of each completion. It follows from the row alone, whatever is scored beside it.

    Args:
        rows: The row of each completion, repeated where it has several.
        completions: Texts, without special tokens.
        completion_ids: The sampled token ids.
        needed: Columns that the reward takes without a default, which are None where a row lacks them.
        messages: Which of "prompts" and "completions" it takes as conversations alone.

    Raises:
        JobError: A column has the name of something that rewards are given anyway.
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
    """The columns of a row that rewards are given.

    Raises:
        JobError: A column has the name of something that rewards are given anyway.
    """
    if taken := _RESERVED & row.columns.keys():
        raise JobError(f"row {row.id}: rewards are given '{min(taken)}' already; give the column another name")
    return {name: value for name, value in row.columns.items() if name not in _KEPT_BACK}


def batches(rows: Sequence[Row], items: Sequence[Item], size: int) -> list[list[int]]:
    """Which items to score in one call: all those of a prompt together, and all of a call with the same columns.

    A reward may compare what it is given, as those of TRL's trainers do with the completions of a prompt.

    Args:
        rows: The row of each item; those of a prompt stand side by side.
        items: What to score.
        size: Items of a call at most, unless a prompt alone has more.

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
    """What TRL calls a reward with.

    Args:
        items: What to score, all of them with the same columns.
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
    """The log hooks of rewards that report something of their own, which nothing records."""


# -- signature ---------------------------------------------------------------------------------------------------
# Whether a reward can be called with the columns of a dataset, told from its signature alone.


@dataclass(frozen=True)
class Mismatch:
    """Why a reward cannot be called.

    Attributes:
        missing: Parameters for which there is no column.
        said: What is wrong with the signature besides, or "".
    """

    missing: tuple[str, ...] = ()
    said: str = ""


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """How a function is called, None where it names no signature (compiled ones do not).

    One that is decorated is called as its wrapper: what that passes on is its own affair.
    """
    try:
        return list(inspect.signature(function, follow_wrapped=False).parameters.values())
    except (ValueError, TypeError):
        return None


def needed_columns(function: Callable[..., Any], options: Iterable[str] = ()) -> tuple[str, ...]:
    """Columns that a reward cannot be called without; none of something that names no signature.

    Args:
        function: The reward.
        options: Names of its settings, which are no columns.
    """
    given = {*GIVEN, *options}
    needed = (each for each in _parameters(function) or () if each.kind in _BY_NAME and each.default is each.empty)
    return tuple(each.name for each in needed if each.name not in given)


def mismatch(function: Callable[..., Any], columns: Iterable[str], options: Iterable[str] = ()) -> Mismatch | None:
    """Say why a call with these keywords would not bind, or None if it does.

    Args:
        function: The reward; something that names no signature is not judged.
        columns: Columns of the dataset besides its texts.
        options: Names of its settings.
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
# What TRL's own rewards verify, and how an answer is read by them: TRL itself says neither. A reward is known by
# the function, or what a factory makes, wherever it was imported from.


_HOME = "trl.rewards"
_MATH = ("math-verify", "latex2sympy2-extended", "sympy", "trl")


def latex_answer(completion: Text, delimiters: Sequence[str] = ()) -> str | None:
    """The answer of a completion as `accuracy_reward` reads it.

    Args:
        completion: Text or conversation.
        delimiters: What may end the reasoning before it, for `reasoning_accuracy_reward`: without any of them
            there is no answer.
    """
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    text = text_of(completion)
    if delimiters:
        end = next((one for one in delimiters if one in text), None)
        if end is None:
            return None
        text = text.split(end)[-1]
    # It warns at every call that its timeout is off; who grades has a deadline already.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    latex = LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=True),
        boxed_match_priority=0,
        try_extract_without_anchor=False,
    )
    parsed = parse(text, extraction_config=[latex], extraction_mode="first_match", parsing_timeout=None)
    return str(parsed[0]) if parsed else None


def trl_traits(reward: Any, options: Mapping[str, Any]) -> RewardTraits | None:
    """The traits of one of TRL's rewards, or None for any other function.

    Args:
        reward: The function, or what a factory has made.
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
        # Right answers are told from wrong ones by the value, as long as the two have ranges apart; half-way, so
        # that rounding of the cosine decides nothing.
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
    if makes_rewards(named):
        named, options = _made(named, options, name or getattr(named, "__name__", "reward")), {}
    traits = traits_of(named, options)
    return Bound(named, traits, options, takes_messages(named) if traits.messages is None else traits.messages)


def makes_rewards(named: Callable[..., Any]) -> bool:
    """Whether a function makes a reward: it takes none of what rewards are given, nor anything by `**`."""
    parameters = None if isinstance(named, type) else _parameters(named)
    return parameters is not None and not any(
        each.kind is each.VAR_KEYWORD or each.name in GIVEN for each in parameters
    )


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
    """Whether an annotation of several texts says that each is a list, and none of them text."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = [one for one in typing.get_args(hint) if one is not types.NoneType] if union else [hint]
    return all(_is_list(one) and any(map(_is_list, typing.get_args(one)[:1])) for one in members)


def _is_list(hint: object) -> bool:
    origin = typing.get_origin(hint) or hint
    return isinstance(origin, type) and issubclass(origin, Sequence) and not issubclass(origin, str | bytes)


# -- grader ------------------------------------------------------------------------------------------------------


_LONGEST_ERROR = 4000


def main() -> None:
    """Grade until the pool hangs up."""
    settings = begin()  # so it ends with its parent even while a regular expression holds the interpreter
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that owns the pool
    channel, pid = Channel.inherited(settings["fd"]), os.getpid()

    def answer(**fields: Any) -> None:
        if os.getpid() != pid:  # a copy that a reward has forked would answer in its place, and to the next calls
            os._exit(0)
        channel.send(json.dumps(fields).encode())

    for line in channel.lines():
        _serve(json.loads(line), answer, settings["memory_gib"])
    os._exit(0)


def _serve(request: dict[str, Any], answer: Callable[..., None], memory_gib: float) -> None:
    try:
        bound = _load(request["function"], json.dumps(request["options"]))
    except BaseException as error:  # a module may raise anything, SystemExit included
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
        except BaseException as error:  # whatever it is belongs to this call alone
            answer(id=call["id"], error=_said(error), certain=_is_certain(error))
        else:
            answer(id=call["id"], scores=scores)


@cache
def _load(path: str, options: str) -> Bound:
    return bind(resolve_name(path), json.loads(options), path)


@cache
def _limit_memory(gib: float) -> None:
    """Allow so much more address space than the process has now, after its imports. Linux only."""
    if sys.platform != "linux":
        return
    import resource

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = own_memory_bytes()[0] + int(gib * 2**30)
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _seed(items: Sequence[Item]) -> None:
    """Have what a reward draws follow from what it judges, whichever process does so and after what."""
    judged = json.dumps([[item.prompt, item.completion] for item in items]).encode()
    seed = int.from_bytes(hashlib.sha256(judged).digest()[:4])
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


@cache
def loop() -> asyncio.Runner:
    """The one event loop in which rewards are awaited: clients and locks that they keep belong to a loop."""
    return asyncio.Runner(loop_factory=asyncio.new_event_loop)  # and so that of no one else


async def _awaited(given: Any) -> Any:
    return await given


async def _all_at_once(bound: Bound, calls: Sequence[dict[str, Any]], answer: Callable[..., None]) -> None:
    """Await all calls; each has the deadline that the pool would otherwise enforce."""

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
    """What a reward says of items: of each its value or None, its vote or None, and what is wrong or None.

    Raises:
        WrongScores: It returned something else.
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
    """Whether no completion can bring this about, as a name that the reward's own file has in vain."""
    if isinstance(error, WrongScores | PipelineError):
        return True
    # Code that is made out of a completion has no file.
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    files = [file for file in files if not file.startswith("<frozen importlib")]
    return type(error) in (NameError, ImportError, ModuleNotFoundError) and bool(files) and is_own(files[-1])


if __name__ == "__main__":
    main()
