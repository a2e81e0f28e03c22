"""Make the command of a trial of its parameters: W&B's macros, filled in as its agent does.

A run of this package (``run_parallel.py``) is told its parameters as settings, shares a name and a store with the
other trials, and is judged on validation prompts.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeline.engine.devices.inventory import Device
from pipeline.errors import ConfigError
from pipeline.sweeps.file import ENVVAR, NUM_GPUS, PROGRAM, Sweep, macro_of, nested

Values = Mapping[str, Any]
_ARGUMENTS: Mapping[str, Callable[[Values], Iterable[str]]] = {
    "args": lambda values: (f"--{name}={value}" for name, value in values.items()),
    "args_no_equals": lambda values: (word for name, text in values.items() for word in (f"--{name}", str(text))),
    "args_no_hyphens": lambda values: (f"{name}={value}" for name, value in values.items()),
    "args_no_boolean_flags": lambda values: (
        f"--{name}" if value is True else f"--{name}={value}"
        for name, value in values.items()
        if value is not False
    ),
    "args_json": lambda values: [json.dumps(values)],
    "args_append_hydra": lambda values: (f"+{name}={value}" for name, value in values.items()),
    "args_override_hydra": lambda values: (f"++{name}={value}" for name, value in values.items()),
}


def trial_command(sweep: Sweep, parameters: Values, json_file: Path, *, num_gpus: int = 1) -> list[str]:
    """Fill in what is run for a trial.

    Args:
        sweep: The sweep.
        parameters: Parameters of the trial, by dotted name.
        json_file: File of the parameters, for ``${args_json_file}``.
        num_gpus: Devices of the trial.
    """
    several = sweep.options.distributed_program if num_gpus > 1 else ""
    values = nested(sweep.parameters, parameters)
    made = {name: list(of(values)) for name, of in _ARGUMENTS.items()}
    made |= {"program": [several or sweep.program], "args_json_file": [str(json_file)]}
    return _filled(sweep.command, made)


def prepare_command(sweep: Sweep) -> list[str]:
    """Fill in what is run once before the first trial, without parameters; empty for nothing."""
    nothing: dict[str, list[str]] = {name: [] for name in ("args_json_file", *_ARGUMENTS)}
    return _filled([*map(str, sweep.options.prepare)], {"program": [sweep.program], **nothing})


def _filled(command: Sequence[str], made: Mapping[str, list[str]]) -> list[str]:
    macros = {"env": ["/usr/bin/env"], "interpreter": [sys.executable], **made}
    words: list[str] = []
    for word in command:
        filled, macro = ENVVAR.sub(lambda match: os.environ.get(match[1], match[1]), word), macro_of(word)
        words += [filled] if macro is None or word != filled else macros.get(macro, [filled])
    return words


def check_program(sweep: Sweep) -> None:
    """Refuse a sweep whose script is not there.

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
            missing = f"{key}: there is no file {program} in {sweep.folder}, where trials start"
            raise ConfigError(f"{missing}: give its whole path; further words belong in `command`")


def own_command(
    sweep: Sweep, output_dir: Path, parameters: Values, devices: Sequence[Device], ids: Sequence[int], cores: int
) -> list[str]:
    """Write the command of a run of this package.

    Args:
        sweep: The sweep.
        output_dir: Folder of all runs.
        parameters: Parameters of the trial.
        devices: Devices of the run.
        ids: Ids of its GPUs, as positions in the visible set.
        cores: Cores that its workers share without GPUs.
    """
    settings = {name: value for name, value in parameters.items() if name != NUM_GPUS}
    where: Values = {"distributed.gpu_ids": list(ids)}
    if devices[0].kind != "cuda":
        threads = settings.get("system.cpu_threads")
        workers = max(1, cores // threads) if isinstance(threads, int) and threads > 0 else cores
        where = {"device": "cpu", "execution.workers": settings.get("execution.workers", workers)}
    named = {"experiment.name": sweep.name, "output_dir": str(output_dir)}
    program = next(word for word in (sweep.program, *sweep.command) if Path(word).name == PROGRAM)
    return [sys.executable, program, *overrides_of({**settings, **named, **where})]


def overrides_of(values: Values) -> list[str]:
    """Write parameters as settings of a run, ``algos.PITA.eta=0.3``, quoted as Hydra reads them.

    Args:
        values: Values of a trial, by dotted name.
    """
    return [f"{name}={_setting(value)}" for name, value in values.items()]


def _setting(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list() | tuple():
            return f"[{','.join(map(_setting, value))}]"
        case dict():
            return "{" + ",".join(f"{_key(str(key))}:{_setting(item)}" for key, item in value.items()) + "}"
        case str() if not re.fullmatch(r"[A-Za-z_/][A-Za-z0-9_./@-]*", value) or value.lower() in _WORDS:
            from hydra.core.override_parser.types import Quote, QuotedString

            return QuotedString(value, Quote.single).with_quotes()
    return str(value)


def _key(name: str) -> str:
    """Return the key of a table, which Hydra takes without quotes alone."""
    return re.sub(r"[\\()\[\]{}:=, \t]", r"\\\g<0>", name)


_WORDS = {"true", "false", "null", "nan", "inf"}


# -- what a program starts ---------------------------------------------------------------------------------------

STARTS_RANKS = {"torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "srun", "ray"}
_MODULES = {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "pipeline"}


def as_ranks(words: Sequence[str]) -> list[str] | None:
    """Return the command to start once per device: without ``env`` and ``python`` before a script.

    Returns:
        What `find_program` understands; None for a command that starts processes on its devices by itself.
    """
    rest = _without_env(words)
    if len(rest) > 1 and re.fullmatch(r"(python|pypy)[0-9.]*", Path(rest[0]).name):
        script = [word for word in rest[1:] if word not in ("-u", "-B")]
        if script[:1] == ["-m"]:
            return None if script[1:2] and script[1] in _MODULES else script
        if script and script[0].endswith(".py"):
            return script
    return None if rest and Path(rest[0]).name in STARTS_RANKS else rest


def as_typed(words: Sequence[str]) -> list[str]:
    """Return a command as a user types it: without W&B's ``env``, and with `python` for this interpreter."""
    rest = _without_env(words)
    return ["python", *rest[1:]] if rest[:1] == [sys.executable] else rest


def _without_env(words: Sequence[str]) -> list[str]:
    plain = (
        len(words) > 1 and Path(words[0]).name == "env" and not re.match(r"-|[A-Za-z_][A-Za-z0-9_]*=", words[1])
    )
    return list(words[1:] if plain else words)
