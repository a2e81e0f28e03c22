"""Main function of a process that grades: calls rewards as `pool` tells it.

It imports nothing but the rewards it is asked for. Requests and answers are lines of JSON over one socket; an
answer is data that a hostile completion may have shaped, so nothing else than JSON is read from it.

    request   {"function", "options",
               "calls": [{"id", "limit_s", "items": [{"prompt", "completion", "ids", "columns"}]}]}
    answers   {"loaded": true} once per request, or {"broken": message};
              for each call {"start": id}, and then one of
              {"id", "scores": [[value, answer, error] for each item]},
              {"id", "error", "certain", "column"}, {"id", "timeout"}
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pkgutil import resolve_name
from typing import Any

from pipeline.config.place import own_place, told
from pipeline.learning.rewards.calling import Bound, bind
from pipeline.learning.rewards.grading import cause_of
from pipeline.learning.rewards.traits import RewardTraits, is_async, read_scores
from pipeline.machine.begin import begin
from pipeline.machine.channel import Channel
from pipeline.machine.memory import own_memory_bytes

Answer = Callable[..., None]
Items = Sequence[Mapping[str, Any]]

_LONGEST_ERROR = 4000
_LONGEST_ANSWER = 1000


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


def _serve(request: dict[str, Any], answer: Answer, memory_gib: float) -> None:
    try:
        bound = _load(request["function"], json.dumps(request["options"]))
    except BaseException as error:  # a module may raise anything, SystemExit included
        answer(broken=f"cannot import the reward '{request['function']}': {_told(error)}")
        return
    _limit_memory(memory_gib)
    answer(loaded=True)
    if is_async(bound.function):
        asyncio.run(_grade_together(bound, request, answer))
        return
    for call in request["calls"]:
        answer(start=call["id"])
        answer(id=call["id"], **_grade(bound, call["items"]))


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


def _grade(bound: Bound, items: Items) -> dict[str, Any]:
    try:
        given = bound.function(**_arguments(items, bound.arguments))
        return _checked(asyncio.run(_awaited(given)) if inspect.isawaitable(given) else given, bound.traits, items)
    except BaseException as error:  # whatever it is belongs to this call alone
        return _failed(error)


async def _awaited(given: Awaitable[Any]) -> Any:
    return await given


def _failed(error: BaseException) -> dict[str, Any]:
    return {"error": _told(error), **asdict(cause_of(error))}


async def _grade_together(bound: Bound, request: dict[str, Any], answer: Answer) -> None:
    """Await all calls at once; each has the deadline that the pool would otherwise enforce."""

    async def grade(call: dict[str, Any]) -> None:
        answer(start=call["id"])
        try:
            async with asyncio.timeout(call["limit_s"]):
                given = await bound.function(**_arguments(call["items"], bound.arguments))
            answer(id=call["id"], **_checked(given, bound.traits, call["items"]))
        except TimeoutError:
            answer(id=call["id"], timeout=True)
        except BaseException as error:  # as above
            answer(id=call["id"], **_failed(error))

    await asyncio.gather(*(grade(call) for call in request["calls"]))


def _arguments(items: Items, options: Mapping[str, Any]) -> dict[str, Any]:
    """What TRL calls a reward with; all items have the same columns."""
    return {
        "prompts": [item["prompt"] for item in items],
        "completions": [item["completion"] for item in items],
        "completion_ids": [item["ids"] for item in items],
        **{name: [item["columns"][name] for item in items] for name in items[0]["columns"]},
        **options,
        "trainer_state": None,
        "log_extra": _ignore,
        "log_metric": _ignore,
    }


def _checked(given: Any, traits: RewardTraits, items: Items) -> dict[str, Any]:
    values = read_scores(given, len(items))
    return {"scores": [_score(value, traits, item) for value, item in zip(values, items, strict=True)]}


def _score(value: float | None, traits: RewardTraits, item: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    if value is not None and math.isinf(value):
        return None, None, "the reward is infinite"
    answer = traits.vote(item["completion"])
    number = None if value is None or math.isnan(value) else value
    return number, None if answer is None else answer[:_LONGEST_ANSWER], None


def _told(error: BaseException) -> str:
    text = told(error)
    if len(text) <= _LONGEST_ERROR:
        return text
    return f"{text[:_LONGEST_ERROR]}... ({own_place(error)})"


def _ignore(name: str, value: object) -> None:
    """TRL's hooks for rewards that log something of their own."""


if __name__ == "__main__":
    main()
