r"""Reward 1 for the number of the solution: in the last ``\boxed{}`` or after ``####``, else the last number."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from pipeline.learning.rewards.answers import (
    MARKED,
    answer_part,
    compared,
    compares,
    gold_box,
    gold_texts,
    last_box,
)
from pipeline.learning.rewards.traits import Text, reward, text_of

_NUMBER = re.compile(
    r"(?<![\w.)])(?P<sign>-?)\$?(?P<minus>-?)"  # -$5 and $-5; no sign in "10-20", nor in the bullet "- 5"
    r"(?P<digits>\d{1,3}(?:,\d{3})+(?!\d)|\d+|(?=\.\d))"
    r"(?:\.(?P<decimals>\d+))?(?:[eE](?P<power>[+-]?\d{1,3})(?!\w))?",
    re.ASCII,
)
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,?\\[,;:! ])(?=\d{3}(?!\d))")
r"""How LaTeX sets digits apart: ``8{,}000``, ``8\,000``, ``8,\!000``."""
_SPACED = re.compile(r"(?<![\d.,])\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)")
"""Digits set apart by spaces, where nothing but an answer is looked at."""
_FEW_WORDS = 3
"""Words of a text that is an answer and nothing else."""
_UNIT = re.compile(
    r"\\(?:text|mathrm|mbox|textbf)\{[^{}\d]*\}(?:\^\{?\d\}?)?|(?<=[A-Za-z])\^\{?\d\}?|\^\{?\\circ\}?"
)
_NO_NUMBER = re.compile(r"\\(?:[dt]?frac|sqrt|pi|times|cdot)|\^|\d\s*/\s*\d")
"""Makes something else of the digits beside it."""


def last_number(text: str) -> str | None:
    """The last number of a text in plain notation: ``$1,250.50`` becomes ``1250.5``. None where there is none."""
    numbers = list(_NUMBER.finditer(_THOUSANDS.sub("", text).replace("\\$", "$")))
    if not numbers:
        return None
    found = numbers[-1]
    whole, decimals = found["digits"].replace(",", ""), found["decimals"] or ""
    if found["power"]:
        plain = format(Decimal(f"{whole}.{decimals}E{found['power']}"), "f")
        whole, _, decimals = plain.partition(".")
    whole, decimals = whole.lstrip("0") or "0", decimals.rstrip("0")
    number = f"{whole}.{decimals}" if decimals else whole
    return f"-{number}" if number != "0" and (found["sign"] or found["minus"]) else number


def final_number(completion: Text) -> str | None:
    """The number of the last box, or after the last ``####`` if that comes later; else the last number."""
    return _final(answer_part(text_of(completion)))


def _final(text: str) -> str | None:
    box, mark = last_box(text), next(reversed(list(MARKED.finditer(text))), None)
    if mark is not None and (box is None or box[0] < mark.start()):
        return _only(text[mark.end() :].strip().split("\n", 1)[0])
    if box is None:
        return _only(text) if len(text.split()) <= _FEW_WORDS else last_number(text)
    return None if box[1] is None else _only(box[1])


def _only(answer: str) -> str | None:
    """The number of a text that is an answer and nothing else; None for another value, such as a fraction."""
    said = answer.rpartition("=")[2].strip().partition(" (")[0]
    said = _SPACED.sub(lambda found: re.sub(r"\s", "", found[0]), _UNIT.sub("", said))
    return None if _NO_NUMBER.search(said) else last_number(said)


def _gold(columns: Mapping[str, Any]) -> Sequence[str]:
    """The answer in a box, where the solution has one, or after the mark."""
    solution = columns.get("solution")
    boxed = isinstance(solution, str) and last_box(solution) is not None
    return gold_box(columns) if boxed else gold_texts(solution, "#### {}")


@reward(compares(isolated=False, answer=final_number, gold=_gold, version=4))
def gsm8k(completions: Sequence[Text], solution: Sequence[Any], **_: Any) -> list[float | None]:
    """Compare final numbers.

    Args:
        completions: Texts or conversations.
        solution: Column with the worked solution or the bare number. Rows without one, or without a number in
            it, get None.

    Raises:
        DataError: A solution is neither text nor number.
    """
    return compared(completions, solution, "gsm8k", _same)


def _same(given: Text, wanted: str) -> float | None:
    number = _final(wanted)
    return None if number is None else float(final_number(given) == number)
