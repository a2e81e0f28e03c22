r"""Reward 1 for an answer that equals the solution mathematically, judged by the package `math-verify`.

The package looks for mathematics in a text, by ``$`` and the like, and takes the first number of ``3\sqrt{13}``
alone. So an answer that stands there by itself, of a row or a box, is put into a box of its own (Skywork-OR1#16).

Its parsing and simplification may run for ever on hostile input. Its own timeouts are switched off: they need
`signal.alarm`, and the processes that grade have a deadline already.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from pipeline.config.install import install_command
from pipeline.errors import ConfigError
from pipeline.learning.rewards.answers import answer_part, boxes, gold_box, last_box, odd_solution, written
from pipeline.learning.rewards.traits import RewardTraits, Text, judged, reward, text_of

_DELIMITERS = re.compile(r"\$.+\$|\\\(|\\\[", re.DOTALL)
_WHOLE = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\(((?:(?!\\\)).)+)\\\)|\\\[((?:(?!\\\]).)+)\\\]", re.DOTALL)
"""One formula and nothing beside it."""
_MARK = "####"
"""Before the answer of a worked solution of GSM8K."""
_FEW_WORDS = 5
"""Words of a solution that may be an answer of words alone."""
_COMMAND = re.compile(r"\\(?:text|mathrm|mbox|textbf|operatorname|begin|end)\*?\{[^{}]*\}|\\[A-Za-z]+")
_WORD = re.compile(r"[A-Za-z]{2,}")
_PLAIN_WORDS = {"or", "and", "sqrt", "pi", "sin", "cos", "tan", "log", "ln", "exp"}
_PLAIN = re.compile(r"[\d\s.,%*/+()^-]+")
_SPACED = re.compile(r"(?<![\d.,])-?[1-9]\d{0,2}(?:(?:[ \u00a0\u202f~]|\\[,;:! ])\d{3})+(?![\d])")
"""Digits of one number, set apart by spaces."""
_MIXED = re.compile(r"(?<![\d.])(\d+)\s+(\d+)/(\d+)")
_POWER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([+-]?\d+)(?!\w)")
_PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])")
_DECIMAL_COMMA = re.compile(r"-?\d+,(?:\d{1,2}|\d{4,})")
"""May be two numbers as well."""
_STATED = re.compile(r"final answer is[^\n]*?I hope", re.IGNORECASE)
"""How answers end that are written as in Minerva's prompt (arXiv 2206.14858)."""
_JOINED = re.compile(r"(?:[\s,;$]|\\[()\[\]]|\\q?quad|\band\b|\bor\b|\\text\{[^{}]*\b(?:and|or)\b[^{}]*\})*")
_QUANTITY = re.compile(r"([-+]?\$?[\d.,]*\d)\s+([A-Za-z]{2,})\.?")
_TEXT = re.compile(r"\(?[A-Za-z][a-z]{3,}(?:[ '-][A-Za-z]+)*\)?\.?|[A-Za-z]+(?: [A-Za-z]+)+\.?")


@lru_cache(maxsize=32)
def _parse(text: str, latex: bool = False) -> list[Any]:
    """Parse a text; kept for a moment, as a solution judges many completions and each has a vote besides.

    Args:
        text: It.
        latex: Whether it is nothing but LaTeX, of which no number is taken where the whole is not understood.
    """
    try:
        from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse
    except ImportError as error:
        raise ConfigError(f"the reward 'math_verify' needs a package: {install_command('math')}") from error
    # It warns at every call that its timeout is off.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    parsed: list[Any] = parse(
        text,
        [LatexExtractionConfig()] if latex else [LatexExtractionConfig(), ExprExtractionConfig()],
        parsing_timeout=None,
        raise_on_error=True,
    )
    return parsed


def _read(text: str) -> list[Any]:
    """What the parser makes of the answer in a text: its last box, else the text, bare or not; empty for none."""
    found = boxes(text)
    if found:
        stated = _STATED.search(text, found[-1][0])
        return _parse(stated[0]) if stated else _boxed(text, found)
    whole = _WHOLE.fullmatch(text.strip().rstrip("."))
    if whole is not None:
        return _alone(next(part for part in whole.groups() if part is not None))
    return _alone(text) if _is_bare(text) else _parse(text)


def _boxed(text: str, found: Sequence[tuple[int, int, str | None]]) -> list[Any]:
    """Parse the last box, with those before it that are joined to it: several boxes may hold one answer each."""
    joined = [found[-1][2]]
    for (_, end, inside), (start, _, _) in reversed(list(pairwise(found))):
        if not _JOINED.fullmatch(text, end, start):
            break
        joined.insert(0, inside)
    parts = list(dict.fromkeys(part for part in joined if part is not None))
    return [] if joined[-1] is None else _alone(", ".join(parts))


def _is_bare(text: str) -> bool:
    """Whether a text is an answer that stands there by itself, and no prose with an answer in it."""
    if "\n" in text.strip() or _DELIMITERS.search(text) or re.search(r"[A-Za-z]\s*:", text):
        return False
    words = [word for word in _WORD.findall(_COMMAND.sub(" ", text)) if word.lower() not in _PLAIN_WORDS]
    return len(words) <= 1


def _alone(answer: str) -> list[Any]:
    """Parse an answer that stands there by itself."""
    answer = answer.strip().strip("$").strip().rstrip(".").replace("°", r"^\circ")
    if not answer:
        return []
    answer = _SPACED.sub(lambda found: re.sub(r"\\[,;:! ]|\s|~", "", found[0]), answer)
    answer = _PI.sub(r"\\pi", _MIXED.sub(r"\1\\frac{\2}{\3}", _POWER.sub(r"\1\\cdot 10^{\2}", answer)))
    if (quantity := _QUANTITY.fullmatch(answer)) and quantity[2].lower() not in _PLAIN_WORDS:
        return _parse(answer)
    if _TEXT.fullmatch(answer):
        answer = rf"\text{{{answer.rstrip('.')}}}"
    found = _parse(rf"\boxed{{{answer}}}", latex=True)
    if _DECIMAL_COMMA.fullmatch(answer):
        found = [*found, *_parse(answer)]
    if all(isinstance(each, str) for each in found) and _PLAIN.fullmatch(plain := answer.replace("\\%", "%")):
        found = [*_parse(plain), *found]  # what LaTeX does not have, as `2**10` and `50 %`
    return found


def parsed_answer(completion: Text) -> str | None:
    """The answer of a completion as the parser reads it, so that ``1/2`` and a half in LaTeX are one vote."""
    parsed = _read(answer_part(text_of(completion)))
    return str(parsed[0]) if parsed else None


@reward(
    RewardTraits(
        pointwise=True,
        verifies=True,
        judges="correctness",
        answer=parsed_answer,
        gold=gold_box,
        refuses=odd_solution,
        packages=("math-verify", "sympy"),
        version=4,
    )
)
def math_verify(completions: Sequence[Text], solution: Sequence[Any], **_: Any) -> list[float | None]:
    """Compare answers as mathematics.

    Args:
        completions: Texts or conversations.
        solution: Column with the answer, in LaTeX or plain, bare, between dollars or boxed. Rows without one, or
            whose one cannot be read, get None.

    Raises:
        DataError: A solution is neither text nor number.
    """
    return judged(completions, [written(each, "math_verify") for each in solution], _equal)


def _equal(given: Text, wanted: str) -> float | None:
    gold = _gold(wanted)
    if not gold:
        return None
    from math_verify import verify

    answer = _read(answer_part(text_of(given)))
    if not answer:
        return 0.0
    try:
        return float(verify(gold, answer, timeout_seconds=None, raise_on_error=True))
    except (ArithmeticError, NotImplementedError, TypeError, ValueError):
        # What has no value, as 12:00; the texts may still be the same.
        return float(verify(gold, answer, timeout_seconds=None))


def _gold(wanted: str) -> list[Any]:
    _, mark, final = wanted.rpartition(_MARK)
    if mark and last_box(wanted) is None:
        return _alone(final)
    return _read(wanted) or (_alone(wanted) if len(wanted.split()) <= _FEW_WORDS else [])
