"""What a word of a command line may become: commands, options, experiments and jobs, keys and their values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pipeline.commands.completion_scripts import Shell
from pipeline.commands.device_flags import FLAGS
from pipeline.config.install import conf_dir
from pipeline.config.known import NAMED_GROUPS
from pipeline.config.meaning import Meaning, shipped_meanings, shipped_sections
from pipeline.engine.run_folder import RunFolder
from pipeline.errors import PipelineError
from pipeline.runs.index import choose_run, experiments, runs_of
from pipeline.runs.loaded import LoadedRun
from pipeline.sweeps.recorded import RecordedSweep, choose_sweep, sweeps_in

_OF_HYDRA = ("--multirun", "--cfg", "--config-dir", "--hydra-help", "--help", "--version")
_JOBS = ("logs", "why")
"""Commands whose second word is a job; the first word of each that takes a NAME is an experiment."""
_CHAIN, _TRIAL = "chain", "trial"
_SWEEP = "sweep"
"""The group of commands whose names are sweeps."""
_RUNS = {"run", "against"}
"""Options whose value is the timestamp of a run."""
_NAMES = {"name", "names", "experiment", "experiments"}


def candidates(program: Any, words: Sequence[str]) -> list[str]:
    """What may stand in the place of the last word, which has begun.

    Args:
        program: The commands, as click or typer have them.
        words: Those of the command line, without the program.
    """
    *before, current = words or [""]
    command, rest, group = program, list(before), ""
    while inside := getattr(command, "commands", {}):
        name = next((word for word in rest if not word.startswith("-")), None)
        if name is None:
            found: Iterable[str] = _options(command) if current[:1] == "-" else _shown(inside)
            return _beginning(found, current)
        if name not in inside:
            return []
        command, rest, group = inside[name], rest[rest.index(name) + 1 :], command.name or ""
    if command.name == "run" and (group != _SWEEP or _places(command, rest)):
        return settings(current, rest)
    if current[:1] == "-":
        return _beginning(_options(command), current)
    with suppress(PipelineError, OSError):
        if rest and (option := _valued(command).get(rest[-1])) is not None:
            return _beginning(_of_option(option, command, rest), current)
        found = _words_of_sweeps(command, rest) if group == _SWEEP else _words(command, rest, current)
        return _beginning(found, current)
    return []


def settings(current: str, before: Sequence[str] = ()) -> list[str]:
    """A setting that has begun: keys part by part, then values; flags of the main command.

    Args:
        current: What has begun.
        before: The words before it, which may say where runs are.
    """
    if current[:1] == "-":
        return _beginning([*FLAGS, *_OF_HYDRA], current)
    sign = current[: len(current) - len(current.lstrip("+~"))]
    key, equals, value = current[len(sign) :].partition("=")
    if not equals:
        return [sign + each for each in _parts_of_keys(key)]
    head = re.match(r"(.*[\[,])?", value)
    done = (head[1] if head else None) or ""
    chosen = set(re.findall(r"[\w-]+", done))
    values = [each for each in _values(key, before) if each not in chosen]
    return [f"{sign}{key}={done}{each}" for each in _beginning(values, value[len(done) :])]


def _parts_of_keys(begun: str) -> list[str]:
    """Keys up to the next dot after what there is, so that a list of them stays short."""
    keys = [f"{key}=" for key in (*shipped_meanings(), *_groups())]
    found = {key[: key.find(".", len(begun)) + 1] or key for key in keys if key.startswith(begun)}
    # One whole level at once, where only one is possible.
    return _parts_of_keys(only) if len(found) == 1 and (only := next(iter(found))).endswith(".") else sorted(found)


def _values(key: str, before: Sequence[str]) -> list[str]:
    if key in _groups():
        return sorted(path.stem for path in (conf_dir() / key).glob("*.yaml"))
    if key == "experiment.name":
        # Not every shell takes the quotes off what it hands over.
        given = [word.strip("\"'").lstrip("+").partition("=") for word in before]
        places = [value.strip("\"'") for name, _, value in given if name == "output_dir"]
        with suppress(PipelineError, OSError):
            return experiments(Path(places[-1] if places else "outputs"))
    meaning: Meaning | None = shipped_meanings().get(key)
    if meaning is None:
        return []
    return ["true", "false"] if meaning.type == "true or false" else list(meaning.choices)


def _groups() -> list[str]:
    others = (path.name for path in conf_dir().iterdir() if any(path.glob("*.yaml")))
    return sorted({*NAMED_GROUPS, *others})


def _words(command: Any, before: Sequence[str], current: str) -> Iterator[str]:
    """Of a command that is no group: experiments, jobs, keys."""
    places = _places(command, before)
    if command.name == "help":
        yield from (*shipped_meanings(), *shipped_sections(), *_groups())
    elif command.name == "completion":
        yield from (shell.name for shell in Shell)
    elif len(places) == 1 and any(param.name == _CHAIN for param in command.params):
        yield from _with_ends(_chains(_run(before, places[0])), current)
    elif command.name in _JOBS and len(places) == 1:
        yield from _with_ends(LoadedRun(_run(before, places[0])).plan.jobs, current)
    elif command.name == "why" and len(places) == 2:
        yield from shipped_meanings()
    elif any(param.name in _NAMES for param in command.params) and (not places or _takes_several(command)):
        yield from experiments(_output_dir(before))


def _words_of_sweeps(command: Any, before: Sequence[str]) -> Iterator[str]:
    """Of a command of `sweep`: sweeps, and trials of one."""
    places = _places(command, before)
    if not places and any(param.name in _NAMES for param in command.params):
        yield from sweeps_in(_output_dir(before))
    elif len(places) == 1 and any(param.name == _TRIAL for param in command.params):
        yield from map(str, RecordedSweep(choose_sweep(_output_dir(before), places[0])).view.trials)


def _with_ends(names: Iterable[str], begun: str) -> Iterator[str]:
    """Names, and once one has begun the ends that name one alone, as ``PITA/r1/train``."""
    every = list(names)
    yield from every
    if begun:
        parts = (name.split("/") for name in every)
        ends = Counter("/".join(own[at:]) for own in parts for at in range(1, len(own)))
        yield from (end for end, times in ends.items() if times == 1)


def _chains(folder: RunFolder) -> Iterable[str]:
    # Not with the other imports: what reads configurations takes long to load, and no other word needs it.
    from pipeline.runs.trained import config_of, trained_chains

    run = LoadedRun(folder)
    return trained_chains(run, config_of(run))


def _places(command: Any, before: Sequence[str]) -> list[str]:
    """The words that are neither options nor their values."""
    valued = _valued(command)
    after = [False, *(word in valued for word in before)]
    return [word for word, value in zip(before, after, strict=False) if not value and not word.startswith("-")]


def _valued(command: Any) -> dict[str, Any]:
    """Options that have a value behind them, by what is typed."""
    return {
        option: param for param in command.params if not getattr(param, "is_flag", True) for option in param.opts
    }


def _of_option(option: Any, command: Any, before: Sequence[str]) -> Iterator[str]:
    """Values of an option: its choices, or the runs of the experiment; none of a path or number."""
    hint = get_type_hints(command.callback).get(option.name)
    for kind in (hint, *get_args(hint), *(inner for each in get_args(hint) for inner in get_args(each))):
        if isinstance(kind, type) and issubclass(kind, Enum):
            yield from (str(each.value) for each in kind)
    if option.name in _RUNS and (places := _places(command, before)):
        yield from (run.stamp for run in runs_of(_output_dir(before), places[0]))


def _takes_several(command: Any) -> bool:
    return any(param.name in _NAMES and param.nargs == -1 for param in command.params)


def _run(before: Sequence[str], name: str) -> RunFolder:
    return choose_run(_output_dir(before), name, _given(before, "--run"))


def _output_dir(before: Sequence[str]) -> Path:
    return Path(_given(before, "--output-dir") or "outputs")


def _given(before: Sequence[str], option: str) -> str | None:
    """The value of an option that was typed, behind it or in one word with it."""
    words = list(before)
    if option in words[:-1]:
        return words[words.index(option) + 1]
    return next((word.partition("=")[2] for word in words if word.startswith(f"{option}=")), None)


def _shown(inside: dict[str, Any]) -> list[str]:
    return [name for name, command in inside.items() if not command.hidden]


def _options(command: Any) -> list[str]:
    own = [option for param in command.params for option in param.opts if option.startswith("--")]
    return [*own, "--help"]


def _beginning(found: Iterable[str], current: str) -> list[str]:
    return sorted({each for each in found if each.startswith(current)})
