r"""Reward 1 for the text of the solution inside the last ``\boxed{...}``, else 0."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.learning.rewards.answers import answer_part, compared, compares, gold_box, last_box, last_boxed
from pipeline.learning.rewards.traits import Text, reward, text_of

_SPACING = re.compile(r"\\[,;:!> ]|\\left(?![a-zA-Z])|\\right(?![a-zA-Z])|(?<!\d)\s+|\s++(?!\d+/\d)|[~$]")
"""None that makes a mixed number."""
_FONT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\{([^{}]*)\}")
_THOUSANDS = re.compile(r"-?\d{1,3}(?:(?:,|\{,\})\d{3})+(?:\.\d+)?")


def plain(answer: str) -> str:
    """An answer without spacing, fonts, ``$`` and a final point, so that ways of typing it compare equal."""
    text = (
        _SPACING.sub("", _FONT.sub(r"\1", answer))
        .replace("\\dfrac", "\\frac")
        .replace("\\tfrac", "\\frac")
        .rstrip(".")
    )
    return re.sub(r"[,{}]", "", text) if _THOUSANDS.fullmatch(text) else text


def boxed_answer(completion: Text) -> str | None:
    """The boxed answer of a completion in plain form, or None."""
    return _boxed(answer_part(text_of(completion)))


def _boxed(text: str) -> str | None:
    inside = last_boxed(text)
    return None if inside is None else plain(inside) or None


def _gold(columns: Mapping[str, Any]) -> Sequence[str]:
    r"""The answer in a box, be it prose."""
    return [text if "boxed" in text else rf"\boxed{{{text}}}" for text in gold_box(columns)]


@reward(compares(answer=boxed_answer, gold=_gold, version=5))
def boxed(completions: Sequence[Text], solution: Sequence[Any], **_: Any) -> list[float | None]:
    r"""Compare boxed answers as text. For mathematical equality use `math_verify`.

    Args:
        completions: Texts or conversations.
        solution: Column with a solution that boxes its answer, or with the bare answer. Rows without one get None.

    Raises:
        DataError: A solution is neither text nor number.
    """
    return compared(completions, solution, "boxed", same_text)


def same_text(given: Text, wanted: str) -> float | None:
    """1 for a completion that boxes the answer of a solution, as text, 0 for another; None where that has none."""
    right = plain(wanted) if last_box(wanted) is None else _boxed(wanted)
    return None if right is None else float(boxed_answer(given) == right)
