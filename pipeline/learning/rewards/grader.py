"""Main function of a process that grades: calls rewards as `pool` tells it.

It imports nothing but the rewards it is asked for. Requests and answers are lines of JSON over one socket; an
answer is data that a hostile completion may have shaped, so nothing else than JSON is read from it.

    request   {"function", "options",
               "calls": [{"id", "limit_s", "items": [{"prompt", "completion", "ids", "columns"}]}]}
    answers   {"loaded": true}, or {"broken": message}; then for each call one of
              {"id", "scores": [[value, answer, error] for each item]}, {"id", "error", "certain"},
              {"id", "timeout"}
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from pkgutil import resolve_name
from typing import Any

from pipeline.config.place import is_own, own_place, told
from pipeline.errors import PipelineError
from pipeline.learning.rewards.calling import Bound, Item, arguments, bind
from pipeline.learning.rewards.traits import WrongScores, is_async, read_scores
from pipeline.machine.children import Channel
from pipeline.machine.descendants import begin
from pipeline.machine.memory import own_memory_bytes

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


def _serve(request: dict[str, Any], answer: Callable[..., None], memory_gib: float) -> None:
    try:
        bound = _load(request["function"], json.dumps(request["options"]))
    except BaseException as error:  # a module may raise anything, SystemExit included
        answer(broken=f"cannot import the reward '{request['function']}': {_said(error)}")
        return
    _limit_memory(memory_gib)
    answer(loaded=True)
    if is_async(bound.function):
        asyncio.run(_all_at_once(bound, request["calls"], answer))
        return
    for call in request["calls"]:
        items = [Item(**item) for item in call["items"]]
        try:
            given = bound.function(**arguments(items, bound.arguments))
            scores = _scores(asyncio.run(_awaited(given)) if inspect.isawaitable(given) else given, bound, items)
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


async def _awaited(given: Any) -> Any:
    return await given


async def _all_at_once(bound: Bound, calls: Sequence[dict[str, Any]], answer: Callable[..., None]) -> None:
    """Await all calls; each has the deadline that the pool would otherwise enforce."""

    async def grade(call: dict[str, Any]) -> None:
        items = [Item(**item) for item in call["items"]]
        try:
            async with asyncio.timeout(call["limit_s"]):
                given = await bound.function(**arguments(items, bound.arguments))
            answer(id=call["id"], scores=_scores(given, bound, items))
        except TimeoutError:
            answer(id=call["id"], timeout=True)
        except BaseException as error:  # as above
            answer(id=call["id"], error=_said(error), certain=_is_certain(error))

    await asyncio.gather(*map(grade, calls))


def _scores(given: Any, bound: Bound, items: Sequence[Item]) -> list[tuple[Any, Any, Any]]:
    return [_score(value, bound, item) for value, item in zip(read_scores(given, len(items)), items, strict=True)]


def _score(value: float | None, bound: Bound, item: Item) -> tuple[Any, Any, Any]:
    if value is not None and math.isinf(value):
        return None, None, "the reward is infinite"
    answer = bound.traits.vote(item.completion)
    number = None if value is None or math.isnan(value) else value
    return number, None if answer is None else answer[:_LONGEST_ANSWER], None


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
