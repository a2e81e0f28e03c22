"""Every single value of a request against what its field was declared to take, and the form of what is told.

Rules that join several fields are in `pipeline.config.checks`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from pipeline.config.schema import CHOICES, PATH, RANGE, Range
from pipeline.errors import ConfigError

_LONGEST_TEXT = 100_000
_LONGEST_NAME = 255
_LONGEST_PATH = 3_000
"""Bytes; Linux takes 4,095, and paths of outputs are longer than the folder that is given."""
_SHOWN = 80


def value_problems(section: object) -> Iterator[str]:
    """What is wrong with single values, one message for each key; nested sections, lists and tables included.

    Args:
        section: A configuration dataclass.
    """
    told: set[str] = set()
    for key, value, declared in _leaves(section, ""):
        owner = key.partition("[")[0]
        problem = None if owner in told else _problem(value, declared)
        if problem is not None:
            told.add(owner)
            yield f"{key}={brief(value)}: {problem}"


def held(value: object, key: str) -> Iterator[tuple[str, Any]]:
    """What settings, a list or a table hold, each under its key; nothing of a single value."""
    if is_dataclass(value):
        prefix = f"{key}." if key else ""
        yield from ((f"{prefix}{item.name}", getattr(value, item.name)) for item in fields(value))
    elif isinstance(value, Mapping):
        yield from ((f"{key}.{brief(name).strip(chr(39))}", entry) for name, entry in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"{key}[{place}]", entry) for place, entry in enumerate(value))


def brief(value: object) -> str:
    """A value as a message shows it: in one line, and not much of it."""
    try:
        text = repr(value) if isinstance(value, str) else str(value)
    except ValueError:  # Python writes no integer of thousands of digits
        return "(a huge number)"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def short(value: float) -> str:
    """A number in few digits where these are all of it: ``0.1``, ``1e+06``, and ``0.10000001`` whole."""
    text = f"{value:g}"
    return text if float(text) == value else repr(value)


def nearest_choice(given: str, choices: Iterable[str]) -> str | None:
    """The one of a few words that was probably meant, in letters of any case."""
    from difflib import get_close_matches  # which workers import in vain

    by_lower = {choice.lower(): choice for choice in choices}
    near = get_close_matches(given.lower(), by_lower, n=1, cutoff=0.7)
    return by_lower[near[0]] if near else None


def _problem(value: object, declared: Mapping[str, Any]) -> str | None:
    allowed: Range | None = declared.get(RANGE)
    choices: Mapping[str, str] | None = declared.get(CHOICES)
    if isinstance(value, str):
        if allowed is not None and value not in allowed.words:
            kind = "a whole number, " if allowed.words else ""
            return f"must be {kind}{allowed}{_hint(value, allowed.words)}"
        if choices is not None and value not in choices:
            return f"must be {' or '.join(map(repr, choices))}{_hint(value, choices)}"
        return _text_problem(value) or (_path_problem(value) if declared.get(PATH) else None)
    if allowed is not None and isinstance(value, (int, float)) and not allowed.holds(value):
        return f"must be {allowed}" + (f". {allowed.advice}" if allowed.advice else "")
    return None


def _hint(given: str, choices: Iterable[str]) -> str:
    near = nearest_choice(given, choices)
    return f". Did you mean '{near}'?" if near else ""


def _text_problem(text: str) -> str | None:
    if len(text) > _LONGEST_TEXT:
        return f"is too long, {_LONGEST_TEXT:,} characters are the most"
    if "\0" in text:
        return "holds a NUL character, which no path and no text may"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is no valid text: it holds bytes that are not UTF-8"
    return None


def _path_problem(text: str) -> str | None:
    if not text:
        return "is empty; give the path of a file or folder"
    path = os.fsencode(text)
    if len(path) > _LONGEST_PATH or any(len(name) > _LONGEST_NAME for name in path.split(b"/")):
        return f"is too long for a path: {_LONGEST_NAME} bytes a name and {_LONGEST_PATH:,} in all are the most"
    return None


def _leaves(value: object, key: str, declared: Mapping[str, Any] | None = None) -> Iterator[tuple[str, Any, Any]]:
    """Key, value and declaration of everything that is no table or list; names in tables are texts, too."""
    if is_dataclass(value):
        for item, (below, entry) in zip(fields(value), held(value, key), strict=True):
            yield from _leaves(entry, below, item.metadata)
    elif isinstance(value, (Mapping, list, tuple)):
        if isinstance(value, Mapping):
            yield from ((key, name, {}) for name in value)
        for below, entry in held(value, key):
            yield from _leaves(entry, below, declared)
    else:
        yield key, value, declared or {}


# -- told --------------------------------------------------------------------------------------------------------
# The form of what is told of a request, apart from the libraries that read one: Hydra takes long to import.


_TOLD = 20
"""Problems of one request that are told at most."""


def refuse_all(problems: Sequence[str]) -> None:
    """Tell all problems in one message, if there are any.

    Raises:
        ConfigError: There are.
    """
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        more = [f"  ... and {len(problems) - _TOLD} more"] if len(problems) > _TOLD else []
        told = [f"  - {problem}" for problem in problems[:_TOLD]]
        raise ConfigError("\n".join([f"{len(problems)} settings are wrong:", *told, *more]))


def one_line(text: str) -> str:
    """A message of several lines in one, without what helps only those who know Hydra."""
    lines = (line.strip() for line in text.splitlines())
    noise = re.compile(r"(full_key|object_type|reference_type)[:=]|See https?:|Set HYDRA_FULL_ERROR")
    return " ".join(line for line in lines if line and not noise.match(line)).rstrip(".") + "."
