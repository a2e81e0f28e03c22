"""How fields of the configuration are declared: with the range of their numbers, or as the path of a file.

The schema uses these, and so may settings of a class of the user's own. What is declared here is checked in one
place, `pipeline.config.values`, for every key alike.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MISSING: Any = "???"
"""`omegaconf.MISSING`, without OmegaConf: importing it takes longer than many commands do."""
LARGEST_SEED = 2**63 - 1
"""What every generator of random numbers takes."""
LONGEST_S = 1_000_000_000
"""Seconds: thirty years, which every clock takes."""
LARGEST_RATE = 100.0
"""Learning rate, of Adam: a step moves each weight by about as much."""
LARGEST_WEIGHT = 1e6
"""Of what is added up in a loss or a reward: far from where float32 ends."""
SMALLEST_DIVISOR = 1e-6
"""Of what values are divided by, likewise."""
OTHERWISE_MEASURED = ", or null to go by what is measured"
"""Hint for memory, in MiB."""

RANGE = "range"
PATH = "path"
CHOICES = "choices"
UNLESS_DEFAULT = "unless_default"
KEYED = "keyed"
MODEL_TEXT = "model_text"
BY_CONTENT = "by what is there, wherever that is"
"""How results depend on the name of a place."""
_GROUPED_FROM = 10_000
_EXACT_BELOW = 2**53


@dataclass(frozen=True, kw_only=True)
class Range:
    """Which numbers a field takes.

    Attributes:
        at_least: The smallest.
        above: What it must be larger than, where there is no smallest.
        at_most: The largest.
        below: What it must be smaller than, where there is no largest.
        infinite: Whether infinity is taken as well, whatever the largest is.
        words: Texts that may stand in the place of a number.
        hint: What stands after the range: what else to write, or what a number means.
        advice: What a message says besides, to one whose number is out of range.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    infinite: bool = False
    words: Sequence[str] = ()
    hint: str = ""
    advice: str = ""

    def holds(self, value: float) -> bool:
        """Whether a number is in the range; nan never is."""
        if value != value or math.inf in (value, -value):
            return self.infinite and value > 0
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        """In words, to follow "must be": ``at least 1 and at most 4096``."""
        sides = {
            "at least": self.at_least,
            "above": self.above,
            "at most": self.at_most,
            "below": self.below,
        }
        told = " and ".join(f"{name} {_readable(bound)}" for name, bound in sides.items() if bound is not None)
        return (told or "a finite number") + (", or inf" if self.infinite else "") + self.hint


def number(
    default: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    infinite: bool = False,
    words: Sequence[str] = (),
    hint: str = "",
    advice: str = "",
    affects_result: bool = True,
    keyed: str = "",
) -> Any:
    """A field of numbers with their range: a number, one or null, a list of numbers, or a table of them.

    What is out of range is refused before anything starts, and so are nan and infinity.

    Args:
        default: Its default; of a list or table each instance gets a copy.
        at_least: The smallest number.
        above: What it must be larger than, where there is no smallest.
        at_most: The largest number.
        below: What it must be smaller than, where there is no largest.
        infinite: Take infinity as well.
        words: Texts that may stand in the place of a number, for a field of type ``int | str``.
        hint: What is added to the range, such as ", or null to take what the machine has".
        advice: What a message says besides, as a sentence without its full stop.
        affects_result: False for what changes how fast or where work is done, never what comes out; it is then
            left out of the keys of results.
        keyed: Of one that is left out: what of it the plan puts into keys all the same, to follow "results depend
            on it", such as "where it is more than 1".
    """
    allowed = Range(
        at_least=at_least,
        above=above,
        at_most=at_most,
        below=below,
        infinite=infinite,
        words=words,
        hint=hint,
        advice=advice,
    )
    return _field(default, affects_result, {RANGE: allowed, KEYED: keyed})


def file_or_folder(default: str | None, *, affects_result: bool = True, keyed: str = "") -> Any:
    """A field that names a file or folder; what no file system takes is refused before anything starts.

    Args:
        default: Its default.
        affects_result: As for `number`.
        keyed: Likewise.
    """
    return _field(default, affects_result, {PATH: True, KEYED: keyed})


def one_of(
    default: str | None, choices: Mapping[str, str], *, affects_result: bool = True, keyed: str = ""
) -> Any:
    """A field of text that takes one of a few; any other is refused before anything starts.

    Args:
        default: Its default.
        choices: What may be chosen -> what that means, or "".
        affects_result: As for `number`.
        keyed: Likewise.
    """
    return _field(default, affects_result, {CHOICES: choices, KEYED: keyed})


def model_text(default: Any) -> Any:
    r"""A field of text that models read, or of a list of them: typed on the command line, ``\n`` is a line break.

    ``\t`` is a tab, ``\\n`` a backslash and an n; commands of LaTeX, such as ``\nabla``, stay as they are.

    Args:
        default: Its default.
    """
    return _field(default, True, {MODEL_TEXT: True})


def option(default: Any) -> Any:
    """A field that came after results were stored: with its default they are what they were, and keep their keys.

    Args:
        default: What there was before; any other value is part of keys.
    """
    return _field(default, True, {UNLESS_DEFAULT: True})


def hint(default: Any, keyed: str = "") -> Any:
    """A field that cannot change a result; `plan.keys` leaves it out.

    Args:
        default: Its default.
        keyed: As for `number`, of one that can.
    """
    return _field(default, False, {KEYED: keyed})


def _field(default: Any, affects_result: bool, declared: dict[str, Any]) -> Any:
    metadata = declared if affects_result else {**declared, "affects_result": False}
    if isinstance(default, (list, dict)):
        empty = type(default)
        return field(default_factory=(lambda: copy.copy(default)) if default else empty, metadata=metadata)
    return field(default=default, metadata=metadata)


def _readable(bound: float) -> str:
    if bound != int(bound) or (isinstance(bound, float) and abs(bound) >= _EXACT_BELOW):
        return f"{bound:g}"
    return f"{int(bound):,}" if abs(bound) >= _GROUPED_FROM else str(int(bound))
