"""The command line of a trial: W&B's macros, filled in as its agent does."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.sweeps.space import nested
from pipeline.sweeps.spec import Sweep

Values = Mapping[str, Any]

_MACRO = re.compile(r"\$\{([^}]*)\}")
_VARIABLE = re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")


def macro_of(word: str) -> str | None:
    """Name of the macro that a word of a command is; None for one that is none."""
    found = _MACRO.fullmatch(_VARIABLE.sub("", word))
    return None if found is None else found[1]


def trial_command(
    sweep: Sweep, parameters: Values, json_file: Path, environment: Mapping[str, str] | None = None
) -> list[str]:
    """What is run for a trial.

    Args:
        sweep: The sweep.
        parameters: Of the trial, by dotted name.
        json_file: Where the parameters have been written, for ``${args_json_file}``.
        environment: For ``${envvar:NAME}``; None for that of this process.
    """
    return filled(sweep.command, sweep, parameters, json_file, environment)


def filled(
    command: Sequence[str],
    sweep: Sweep,
    parameters: Values,
    json_file: Path,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """A command with its macros filled in; see `trial_command`."""
    known = os.environ if environment is None else environment
    values = nested(sweep.parameters, parameters)
    made: dict[str, list[str]] = {
        "env": ["/usr/bin/env"],
        "interpreter": [sys.executable],
        "program": [sweep.program],
        "args_json_file": [str(json_file)],
    }
    words: list[str] = []
    for word in command:
        word = _VARIABLE.sub(lambda found: known.get(found[1], found[1]), word)
        macro = _MACRO.fullmatch(word)
        words += [word] if macro is None else made.get(macro[1]) or list(_ARGUMENTS[macro[1]](values))
    return words


def _flags(values: Values) -> Iterator[str]:
    return (f"--{name}={value}" for name, value in values.items())


def _no_equals(values: Values) -> Iterator[str]:
    return (word for name, value in values.items() for word in (f"--{name}", str(value)))


def _no_boolean_flags(values: Values) -> Iterator[str]:
    for name, value in values.items():
        if value is not False:
            yield f"--{name}" if value is True else f"--{name}={value}"


_ARGUMENTS: Mapping[str, Callable[[Values], Iterator[str]]] = {
    "args": _flags,
    "args_no_equals": _no_equals,
    "args_no_hyphens": lambda values: (f"{name}={value}" for name, value in values.items()),
    "args_no_boolean_flags": _no_boolean_flags,
    "args_json": lambda values: iter([json.dumps(values)]),
    "args_append_hydra": lambda values: (f"+{name}={value}" for name, value in values.items()),
    "args_override_hydra": lambda values: (f"++{name}={value}" for name, value in values.items()),
}
MACROS = ("env", "interpreter", "program", "args_json_file", *_ARGUMENTS)


# -- for runs of this program ------------------------------------------------------------------------------------


def overrides_of(values: Values) -> list[str]:
    """Parameters as settings of a run, ``algos.PITA.eta=0.3``, quoted as Hydra reads them.

    Args:
        values: Of a trial, by dotted name.
    """
    return [f"{name}={_setting(value)}" for name, value in values.items()]


_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_WORDS = {"true", "false", "null", "nan", "inf"}


def _setting(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list() | tuple():
            return f"[{','.join(map(_setting, value))}]"
        case dict():
            return "{" + ",".join(f"{_setting(str(key))}:{_setting(each)}" for key, each in value.items()) + "}"
        case str() if not _PLAIN.fullmatch(value) or value.lower() in _WORDS:
            from hydra.core.override_parser.types import Quote, QuotedString

            return QuotedString(value, Quote.single).with_quotes()
    return str(value)
