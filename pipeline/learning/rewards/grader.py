"""Main function of a process that grades: calls rewards, one completion at a time, as `pool` tells it.

It imports nothing but the rewards it is asked for. Requests and answers are lines of JSON over one socket; an
answer is data that a hostile completion may have shaped, so nothing else than JSON is read from it.

    request   {"function", "options", "limit_s", "items": [{"id", "prompt", "completion", "ids", "columns"}]}
    answers   {"loaded": true} once per request, or {"broken": message};
              for each item {"start": id}, and then one of
              {"id", "value", "answer"}, {"id", "error", "certain", "column"}, {"id", "timeout"}
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from functools import cache
from pkgutil import resolve_name
from typing import Any

from pipeline.config.place import own_place, told
from pipeline.learning.rewards.calling import Bound, bind
from pipeline.learning.rewards.cause import cause_of
from pipeline.learning.rewards.traits import RewardTraits, is_async, read_scores
from pipeline.machine.begin import begin
from pipeline.machine.channel import Channel
from pipeline.machine.memory import own_memory_bytes

Answer = Callable[..., None]

_LONGEST_ERROR = 4000
_LONGEST_ANSWER = 1000


def main() -> None:
    """Grade until the pool hangs up."""
    settings = begin()  # so it ends with its parent even while a regular expression holds the interpreter
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that owns the pool
    channel = Channel.inherited(settings["fd"])

    def answer(**fields: Any) -> None:
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
    for item in request["items"]:
        answer(start=item["id"])
        answer(id=item["id"], **_grade(bound, item))


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


def _grade(bound: Bound, item: dict[str, Any]) -> dict[str, Any]:
    try:
        given = bound.function(**_arguments(item, bound.arguments))
        return _checked(asyncio.run(_awaited(given)) if inspect.isawaitable(given) else given, bound.traits, item)
    except BaseException as error:  # whatever it is belongs to this completion alone
        return _failed(error)


async def _awaited(given: Awaitable[Any]) -> Any:
    return await given


def _failed(error: BaseException) -> dict[str, Any]:
    return {"error": _told(error), **asdict(cause_of(error))}


async def _grade_together(bound: Bound, request: dict[str, Any], answer: Answer) -> None:
    """Await all items at once; each has the deadline that the pool would otherwise enforce."""

    async def grade(item: dict[str, Any]) -> None:
        answer(start=item["id"])
        try:
            async with asyncio.timeout(request["limit_s"]):
                given = await bound.function(**_arguments(item, bound.arguments))
            answer(id=item["id"], **_checked(given, bound.traits, item))
        except TimeoutError:
            answer(id=item["id"], timeout=True)
        except BaseException as error:  # as above
            answer(id=item["id"], **_failed(error))

    await asyncio.gather(*(grade(item) for item in request["items"]))


def _arguments(item: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """One item in TRL's signature: every list has one entry."""
    return {
        "prompts": [item["prompt"]],
        "completions": [item["completion"]],
        "completion_ids": [item["ids"]],
        **{name: [value] for name, value in item["columns"].items()},
        **options,
        "trainer_state": None,
        "log_extra": _ignore,
        "log_metric": _ignore,
    }


def _checked(given: Any, traits: RewardTraits, item: dict[str, Any]) -> dict[str, Any]:
    value = read_scores(given, 1)[0]
    if value is not None and math.isinf(value):
        raise ValueError("the reward is infinite")
    answer = traits.vote(item["completion"])
    return {
        "value": None if value is None or math.isnan(value) else value,
        "answer": None if answer is None else answer[:_LONGEST_ANSWER],
    }


def _told(error: BaseException) -> str:
    text = told(error)
    if len(text) <= _LONGEST_ERROR:
        return text
    return f"{text[:_LONGEST_ERROR]}... ({own_place(error)})"


def _ignore(name: str, value: object) -> None:
    """TRL's hooks for rewards that log something of their own."""


if __name__ == "__main__":
    main()
