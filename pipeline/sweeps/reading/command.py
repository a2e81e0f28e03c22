"""The command line of a trial: W&B's macros, filled in as its agent does."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
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
    sweep: Sweep,
    parameters: Values,
    json_file: Path,
    *,
    num_gpus: int = 1,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """What is run for a trial.

    Args:
        sweep: The sweep.
        parameters: Of the trial, by dotted name.
        json_file: Where the parameters have been written, for ``${args_json_file}``.
        num_gpus: Devices of the trial.
        environment: For ``${envvar:NAME}``; None for that of this process.
    """
    several = sweep.options.distributed_program if num_gpus > 1 else ""
    made = {"program": [several or sweep.program], "args_json_file": [str(json_file)]}
    values = nested(sweep.parameters, parameters)
    return _filled(sweep.command, made | {name: list(of(values)) for name, of in _ARGUMENTS.items()}, environment)


def check_program(sweep: Sweep) -> None:
    """Refuse a sweep whose script is not there, before every trial fails at that.

    Raises:
        ConfigError: Says where it was looked for.
    """
    by_python = ("${interpreter}", "${program}") in pairwise(sweep.command)
    programs = {"program": sweep.program, "pipeline.distributed_program": sweep.options.distributed_program}
    for key, program in programs.items():
        # What begins with "-" is an option of Python's, such as `-mtrain`.
        is_script = program.endswith(".py") or (by_python and program[:1] not in ("", "-"))
        path = sweep.folder / program
        if is_script and not (path.is_file() or (path / "__main__.py").is_file()):
            hint = ". What else is typed than one file belongs in `command`" if " " in program else ""
            raise ConfigError(
                f"{key}: there is no file {program} in {sweep.folder}, where trials start: begin the sweep in the "
                f"folder that it is relative to, or give its whole path{hint}"
            )


def prepare_command(sweep: Sweep, environment: Mapping[str, str] | None = None) -> list[str]:
    """What is run once before the first trial; empty for nothing.

    Args:
        sweep: The sweep. Parameters have no values yet, so ``${args}`` and its like are empty.
        environment: For ``${envvar:NAME}``; None for that of this process.
    """
    nothing: dict[str, list[str]] = {name: [] for name in ("args_json_file", *_ARGUMENTS)}
    return _filled(sweep.options.prepare, {"program": [sweep.program], **nothing}, environment)


def _filled(
    command: Sequence[str], made: Mapping[str, list[str]], environment: Mapping[str, str] | None
) -> list[str]:
    known = os.environ if environment is None else environment
    macros = {"env": ["/usr/bin/env"], "interpreter": [sys.executable], **made}
    words: list[str] = []
    for word in command:
        filled = _VARIABLE.sub(lambda found: known.get(found[1], found[1]), word)
        macro = _MACRO.fullmatch(filled)
        words += [filled] if macro is None else macros.get(macro[1], [filled])
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
"""What stands in a command as ``${NAME}``, besides ``${envvar:NAME}``."""


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
