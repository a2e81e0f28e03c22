r"""Reward 1 for the text of the solution inside the last ``\boxed{...}``, else 0."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pipeline.learning.rewards.traits import RewardTraits, Text, judged, reward, text_of

_OPENING = re.compile(r"\\f?boxed\s*(\{|[^\s{}\\])")
_SPACING = re.compile(r"\\[,;:!> ]|\\left(?![a-zA-Z])|\\right(?![a-zA-Z])|[\s$]")


def last_boxed(text: str) -> str | None:
    r"""What the last ``\boxed{...}`` holds, braces nested in it included; None where there is no whole one.

    ``\fbox`` counts too, and ``\boxed 7`` holds ``7``.
    """
    for opening in reversed(list(_OPENING.finditer(text))):
        if opening[1] != "{":
            return opening[1]
        inside = _until_closed(text, opening.end())
        if inside is not None:
            return inside
    return None


def _until_closed(text: str, start: int) -> str | None:
    depth = 1
    skip = False
    for place in range(start, len(text)):
        if skip or text[place] == "\\":
            skip = not skip  # \{ and \} are text
        elif text[place] == "{":
            depth += 1
        elif text[place] == "}":
            depth -= 1
            if depth == 0:
                return text[start:place]
    return None


def plain(answer: str) -> str:
    """An answer without spacing commands, ``$`` and a final point, so that ways of typing it compare equal."""
    text = _SPACING.sub("", answer).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    return text.rstrip(".")


def boxed_answer(completion: Text) -> str | None:
    """The boxed answer of a completion in plain form, or None."""
    inside = last_boxed(text_of(completion))
    return None if inside is None else plain(inside) or None


@reward(RewardTraits(verifies=True, judges="correctness", answer=boxed_answer, version=2))
def boxed(completions: Sequence[Text], solution: Sequence[str | None], **_: Any) -> list[float | None]:
    r"""Compare boxed answers as text. For mathematical equality use `math_verify`.

    Args:
        completions: Texts or conversations.
        solution: Column with a solution that boxes its answer, or with the bare answer. Rows without one get None.
    """
    return judged(completions, solution, _same)


def _same(given: Text, wanted: str) -> float:
    boxed_one = boxed_answer(wanted)
    return float(boxed_answer(given) == (plain(wanted) if boxed_one is None else boxed_one))
