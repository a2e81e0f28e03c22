"""Reward 1 for the number of the solution, found as GSM8K marks it: after ``####``, else the last number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pipeline.learning.rewards.traits import RewardTraits, Text, judged, reward, text_of

MARK = "####"
_NUMBER = re.compile(
    r"(?<![\w.)])(?P<sign>-?)\$?(?P<minus>-?)"  # -$5 and $-5; no sign in "10-20", nor in the bullet "- 5"
    r"(?P<digits>\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
    r"(?:\.(?P<decimals>\d+))?",
    re.ASCII,
)


def last_number(text: str) -> str | None:
    """The last number of a text in plain notation: ``$1,250.50`` becomes ``1250.5``. None where there is none."""
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return None
    found = numbers[-1]
    whole = found["digits"].replace(",", "").lstrip("0") or "0"
    decimals = (found["decimals"] or "").rstrip("0")
    number = f"{whole}.{decimals}" if decimals else whole
    return f"-{number}" if number != "0" and (found["sign"] or found["minus"]) else number


def final_number(completion: Text) -> str | None:
    """The number after the last ``####``; without that mark the last number."""
    head, mark, tail = text_of(completion).rpartition(MARK)
    if not mark:
        return last_number(tail)
    first_line = tail.strip().split("\n", 1)[0]
    return last_number(first_line) or last_number(head)


@reward(RewardTraits(verifies=True, judges="correctness", isolated=False, answer=final_number))
def gsm8k(completions: Sequence[Text], solution: Sequence[str | None], **_: Any) -> list[float | None]:
    """Compare final numbers.

    Args:
        completions: Texts or conversations.
        solution: Column with the worked solution or the bare number. Rows without one, or without a number in
            it, get None.
    """
    return judged(completions, solution, _same)


def _same(given: Text, wanted: object) -> float | None:
    number = final_number(str(wanted))  # the bare number of a JSON file may be one
    return None if number is None else float(final_number(given) == number)
