"""Whether a reward can be called with the columns of a dataset, told from its signature alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""Arguments of every reward, as TRL has them; it is given the columns of the dataset and its settings besides."""

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Mismatch:
    """Why a reward cannot be called.

    Attributes:
        missing: Parameters for which there is no column.
        said: What is wrong with the signature besides, or "".
    """

    missing: tuple[str, ...] = ()
    said: str = ""


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """How a function is called: of one that is decorated as its wrapper, unless that passes all on (``*a, **k``).

    Raises:
        ValueError, TypeError: It names no signature.
    """
    own = inspect.signature(function, follow_wrapped=False)
    passes_on = any(each.kind is each.VAR_POSITIONAL for each in own.parameters.values())
    return inspect.signature(function) if passes_on else own


def needed_columns(function: Callable[..., Any], options: Iterable[str] = ()) -> tuple[str, ...]:
    """Columns that a reward cannot be called without; none of something that names no signature.

    Args:
        function: The reward.
        options: Names of its settings, which are no columns.
    """
    try:
        parameters = signature_of(function).parameters.values()
    except (ValueError, TypeError):
        return ()
    given = {*GIVEN, *options}
    needed = (each for each in parameters if each.kind in _NAMED and each.default is each.empty)
    return tuple(each.name for each in needed if each.name not in given)


def mismatch(function: Callable[..., Any], columns: Iterable[str], options: Iterable[str] = ()) -> Mismatch | None:
    """Say why a call with these keywords would not bind, or None if it does.

    Args:
        function: The reward; something that names no signature, such as a compiled function, is not judged.
        columns: Columns of the dataset besides its texts.
        options: Names of its settings.
    """
    if isinstance(function, type):
        return Mismatch(said="is a class; name a function, or an object of that class that can be called")
    try:
        parameters = signature_of(function).parameters.values()
    except (ValueError, TypeError):
        return None
    given = dict.fromkeys([*GIVEN, *columns, *options])
    needed = [each for each in parameters if each.default is each.empty]
    if by_place := [each.name for each in needed if each.kind is each.POSITIONAL_ONLY]:
        return Mismatch(
            said=f"takes {', '.join(by_place)} by position alone, but rewards are called with keywords; leave out "
            "the '/' in its parameters"
        )
    missing = tuple(each.name for each in needed if each.kind in _NAMED and each.name not in given)
    if missing:
        return Mismatch(missing=missing)
    named = [each.name for each in parameters if each.kind in _NAMED]
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    if further := [name for name in given if name not in named]:
        return Mismatch(
            said=f"takes {', '.join(named) or 'nothing'}, but is called with {', '.join(further)} too; end its "
            "parameters with **_"
        )
    return None
