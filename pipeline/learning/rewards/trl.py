r"""TRL's own rewards: what each of them verifies, and how its answer is read. TRL itself says neither.

A reward is known by the function, or the object that a factory makes, wherever it was imported from:

    accuracy_reward               correctness   0 or 1              the first \boxed{} or LaTeX, parsed
    reasoning_accuracy_reward     correctness   0 or 1              the same, after the reasoning
    get_cosine_scaled_reward      correctness   graded, by length   as accuracy_reward
    think_format_reward           format        0 or 1              none
    get_soft_overlong_punishment  length        graded, -1 to 0     none
    get_repetition_penalty_reward repetition    graded, below 0     none
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from pipeline.learning.rewards.answers import gold_box
from pipeline.learning.rewards.traits import RewardTraits, Text, text_of

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
