"""Which runs there are: experiments, the runs of one, and the one that a user means."""

from __future__ import annotations

import shlex
from pathlib import Path

from pipeline.engine.run_folder import RunFolder, find_run
from pipeline.errors import ConfigError, known_names
from pipeline.runs.by_name import MAX_LISTED
from pipeline.runs.origin import read_origin
from pipeline.runs.report.format import command

_SWEEP = Path("sweep/journal.jsonl")
"""In the folder of an experiment, where that is a sweep; see `sweeps.folder`."""


def experiments(output_dir: Path) -> list[str]:
    """Names of the experiments that have a run.

    Raises:
        ConfigError: There is no such folder.
    """
    if not output_dir.is_dir():
        raise ConfigError(
            f"there is no folder {output_dir}. A run makes it some seconds after its command was typed; if the "
            "output_dir of your runs is another one, give it: --output-dir DIR, in Python output_dir=DIR."
        )
    return sorted(path.parent.name for path in output_dir.glob("*/latest") if path.is_dir())


def runs_of(output_dir: Path, name: str) -> list[RunFolder]:
    """All runs of an experiment, oldest first.

    Raises:
        ConfigError: There is none.
    """
    known = experiments(output_dir)
    if name not in known:
        if is_sweep(output_dir, name):
            raise ConfigError(_words_of_sweep(output_dir, name))
        if not known:
            raise ConfigError(f"there are no runs in {output_dir}.")
        raise ConfigError(f"no run of '{name}' in {output_dir}.{known_names(name, known)}")
    found = [RunFolder(path) for path in (output_dir / name).iterdir() if path.is_dir()]
    return sorted((run for run in found if run.begun), key=lambda run: (run.begun, run.path))


def is_sweep(output_dir: Path, name: str) -> bool:
    """Whether the folder of a name holds a sweep."""
    return (output_dir / name / _SWEEP).is_file()


def _words_of_sweep(output_dir: Path, name: str) -> str:
    words = ("status", "logs", "report", "best")
    commands = "\n".join(f"  {command(f'sweep {word} {shlex.quote(name)}', output_dir)}" for word in words)
    return f"there is no run of '{name}' in {output_dir}, but a sweep of that name:\n{commands}"


def runs_before(run: RunFolder) -> list[RunFolder]:
    """Runs of the same experiment that are older, oldest first; all of them where it is none of those any more."""
    folders = runs_of(run.path.parent.parent, run.experiment)
    stamps = [folder.stamp for folder in folders]
    return folders[: stamps.index(run.stamp)] if run.stamp in stamps else folders


def choose_run(output_dir: Path, name: str, stamp: str | None = None) -> RunFolder:
    """The newest run of an experiment, or the one of that timestamp; the begin of a timestamp will do.

    Raises:
        ConfigError: There is none, or there are several.
    """
    runs = runs_of(output_dir, name)
    if stamp is None:
        return find_run(output_dir, name)
    exact = [run for run in runs if run.stamp == stamp]
    fitting = exact or [run for run in runs if run.stamp.startswith(stamp)]
    if len(fitting) == 1:
        return fitting[0]
    listed = ", ".join(run.stamp for run in (fitting or runs)[-MAX_LISTED:])
    if fitting:
        raise ConfigError(f"'{stamp}' fits several runs of {name}: {listed}. Give more of it.")
    raise ConfigError(f"{name} has no run '{stamp}'. There are: {listed}.")


def newest_of_several(folder: RunFolder) -> str | None:
    """What to say where a run was taken because it is the newest, and is one of a multirun; None of others."""
    group = read_origin(folder.path).group
    if not group:
        return None
    runs = runs_of(folder.path.parent.parent, folder.experiment)
    several = sum(read_origin(run.path).group == group for run in runs)
    if several < 2:
        return None
    return (
        f"run {folder.stamp}, the newest of {several} runs of this multirun; `python -m pipeline compare "
        f"{folder.experiment}` shows all, --run another"
    )
