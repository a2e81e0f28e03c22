"""Reward 1 for an answer that equals the solution mathematically, judged by the package `math-verify`.

Its parsing and simplification may run for ever on hostile input. Its own timeouts are switched off: they need
`signal.alarm`, and the processes that grade have a deadline already.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pipeline.config.install import install_command
from pipeline.errors import ConfigError
from pipeline.learning.rewards.traits import RewardTraits, Text, judged, reward, text_of


@lru_cache(maxsize=8)
def _parse(text: str) -> list[Any]:
    """Parse a text; kept for a moment, as a completion is asked for its score and then for its answer."""
    try:
        from math_verify import parse
    except ImportError as error:
        raise ConfigError(f"the reward 'math_verify' needs a package: {install_command('math')}") from error
    # It warns at every call that its timeout is off.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    parsed: list[Any] = parse(text, parsing_timeout=None, raise_on_error=True)
    return parsed


def parsed_answer(completion: Text) -> str | None:
    """The answer of a completion as the parser reads it, so that ``1/2`` and a half in LaTeX are one vote."""
    parsed = _parse(text_of(completion))
    return str(parsed[0]) if parsed else None


@reward(
    RewardTraits(
        verifies=True, judges="correctness", answer=parsed_answer, packages=("math-verify", "sympy"), version=2
    )
)
def math_verify(completions: Sequence[Text], solution: Sequence[str | None], **_: Any) -> list[float | None]:
    """Compare answers as mathematics.

    Args:
        completions: Texts or conversations.
        solution: Column with the answer, in LaTeX or plain. Rows without one, or whose one
            cannot be read, get None.
    """
    return judged(completions, solution, _equal)


def _equal(given: Text, wanted: str) -> float | None:
    gold = _parse(wanted) or _parse(f"${wanted}$")
    if not gold:
        return None
    from math_verify import verify

    answer = _parse(text_of(given))
    return float(bool(answer) and bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True)))
