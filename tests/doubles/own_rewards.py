"""Rewards as users write them, most with a mistake. Modules of tests cannot be imported by a grading process."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from pipeline.learning.rewards.traits import RewardTraits, reward, text_of


def right(completions: Sequence[str], **_: Any) -> list[float]:
    return [1.0] * len(completions)


def holds(completions: Sequence[str], solution: Sequence[str], **_: Any) -> list[float]:
    return [float(right in text) for text, right in zip(completions, solution, strict=True)]


def measures_length(completions: Sequence[str], **_: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def holds_in_turns(completions: Sequence[Any], solution: Sequence[str], **_: Any) -> list[float]:
    return holds([turns[0]["content"] for turns in completions], solution)


def needs_level(completions: Sequence[str], level: Sequence[int], **_: Any) -> list[float]:
    return [float(one) for one in level]


def reads_prompt(completions: Sequence[str], prompt: Sequence[str], **_: Any) -> list[float]:
    return [float(len(one)) for one in prompt]


def looks_up_level(completions: Sequence[str], **columns: Any) -> list[float]:
    return [float(one) for one in columns["level"]]


def returns_nothing(completions: Sequence[str], **_: Any) -> None:
    """The return was forgotten."""


def words(completions: Sequence[str], **_: Any) -> list[str]:
    return ["good" for _ in completions]


def not_a_number(completions: Sequence[str], **_: Any) -> list[float]:
    return [float("nan")] * len(completions)


def undefined(completions: Sequence[str], **_: Any) -> list[float]:
    return [_score(text) for text in completions]


def _score(text: str) -> float:
    return misspelt(text)  # type: ignore[name-defined]  # noqa: F821


def expects_json(completions: Sequence[str], **_: Any) -> list[float]:
    return [float(json.loads(text)["score"]) for text in completions]


def ends_the_process(completions: Sequence[str], **_: Any) -> list[float]:
    sys.stdout.flush()
    os._exit(3)


@reward(RewardTraits(isolated=False))
def reads_last_line(completions: Sequence[str], **_: Any) -> list[float]:
    for text in completions:
        for line in text.splitlines():
            if line.startswith("Answer:"):
                answer = line
    return [float(answer == "5")] * len(completions)


def runs_code(completions: Sequence[str], **_: Any) -> list[float]:
    return [float(eval("number_" + text)) for text in completions]


def imports_what_is_not_there(completions: Sequence[str], **_: Any) -> list[float]:
    import not_there_at_all  # type: ignore[import-not-found]

    return [not_there_at_all.score(text) for text in completions]


class Awaited:
    async def __call__(self, completions: Sequence[str], **_: Any) -> list[float]:
        return [1.0] * len(completions)

    def method(self, completions: Sequence[str], **_: Any) -> list[float]:
        return [1.0] * len(completions)


awaited_object = Awaited()


def hands_on(**given: Any) -> Any:
    """No coroutine function, but what it returns is one."""
    return awaited_object(**given)


_busy = asyncio.Lock()


async def one_after_the_other(completions: Sequence[str], **_: Any) -> list[float]:
    """Hold a lock that belongs to the loop in which it was first waited for, as the clients of judges do."""

    async def length(text: str) -> float:
        async with _busy:
            await asyncio.sleep(0)
            return float(len(text))

    return await asyncio.gather(*map(length, completions))


def begins_with_the_year(completions: Sequence[str], day: Sequence[str], **_: Any) -> list[float]:
    return [float(each[:4]) for each in day]


def uses_up(completions: Sequence[str], numbers: Sequence[list[int]], **_: Any) -> list[float]:
    return [float(each.pop()) for each in numbers]


def hint_or_default(completions: Sequence[str], hint: Sequence[str] | None = None, **_: Any) -> list[float | None]:
    return [0.0] * len(completions) if hint is None else [1.0 if one else None for one in hint]


def hint_needed(completions: Sequence[str], hint: Sequence[str | None], **_: Any) -> list[float]:
    return [0.5 if one is None else 1.0 for one in hint]


def any_columns(completions: Sequence[str], **columns: Any) -> list[float]:
    return [float("hint" in columns) + 2 * float("level" in columns)] * len(completions)


def normalised(completions: Sequence[str], **_: Any) -> list[float]:
    """By the mean and the spread of the lengths of the call."""
    sizes = [len(text) for text in completions]
    mean = sum(sizes) / len(sizes)
    spread = (sum((size - mean) ** 2 for size in sizes) / len(sizes)) ** 0.5
    return [(size - mean) / (spread + 1e-4) for size in sizes]


def above_mean(completions: Sequence[str], prompts: Sequence[str], hint: Sequence[float], **_: Any) -> list[float]:
    """Longer than the mean of those of its prompt; what the row adds."""
    found = []
    for prompt, text, more in zip(prompts, completions, hint, strict=True):
        same = [len(other) for each, other in zip(prompts, completions, strict=True) if each == prompt]
        found.append(float(len(text) > sum(same) / len(same)) + more)
    return found


def of_the_call(completions: Sequence[str], **_: Any) -> list[float]:
    """How many there are."""
    return [float(len(completions))] * len(completions)


async def awaited_ranks(completions: Sequence[str], **_: Any) -> list[float | None]:
    return [None if not text else float(sorted(completions).index(text)) for text in completions]


def stops(completions: Sequence[str], **_: Any) -> list[float]:
    """Compares, and does what one of the completions says."""
    for text in completions:
        if text == "hang":
            time.sleep(600)
        if text == "exit":
            os._exit(3)
        if text == "raise":
            raise ValueError("too bad")
    return [float(len(completions))] * len(completions)


def shares(completions: Sequence[str], **_: Any) -> list[float]:
    """Graded, and nothing is said of it."""
    return [text.count("a") / max(1, len(text)) for text in completions]


def scaled(scale: float, shift: float = 0.0) -> Any:
    """Makes a reward, as TRL's `get_...` do."""

    def reward_of(completions: Sequence[str], **_: Any) -> list[float]:
        return [scale * len(text) + shift for text in completions]

    return reward_of


def misnamed(texts: Sequence[str]) -> list[float]:
    """Meant as a reward."""
    return [1.0] * len(texts)


def makes_a_number(scale: float = 1.0) -> float:
    return scale


def of_messages(completions: list[list[dict[str, str]]], prompts: list[list[dict[str, str]]], **_: Any) -> Any:
    """Annotated as TRL's are."""
    return [
        float(len(prompt[-1]["content"]) + len(completion[0]["content"]))
        for prompt, completion in zip(prompts, completions, strict=True)
    ]


@reward(RewardTraits(messages=frozenset({"completions"})))
def says_it_takes_messages(completions: Any, **_: Any) -> list[float]:
    return [float(len(completion[0]["content"])) for completion in completions]


@reward(RewardTraits(verifies=True, answer=text_of))
def reads_answers(completions: Sequence[str], solution: Sequence[str], **_: Any) -> list[float]:
    return holds(completions, solution)


@reward(RewardTraits(graded=True))
def declared_graded(completions: Sequence[str], **_: Any) -> list[float]:
    return [text.count("a") / max(1, len(text)) for text in completions]
