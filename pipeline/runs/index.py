"""Which runs there are: experiments, the runs of one, and the one that a user means."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

from pipeline.engine.run_folder import RunFolder
from pipeline.errors import ConfigError, known_names
from pipeline.plan.graph import ANY
from pipeline.runs.origin import read_origin
from pipeline.runs.report.format import command

# -- by name -----------------------------------------------------------------------------------------------------
# The job that a user means, or another thing whose name has parts: by its name, some of it, or a pattern.


MAX_LISTED = 20


def find_job(job_ids: Iterable[str], given: str) -> str:
    """The job that a user means: by its id, a part of it, or a pattern with ``*``; also by its chain.

    Args:
        job_ids: Ids of all jobs.
        given: What the user wrote. Ids that end with it go before ids that contain it.

    Raises:
        ConfigError: No job fits, or several do; says which are near or which they are.
    """
    known = list(job_ids)
    # Ids of jobs that depend on no seed have no part for it; names of their chains do.
    without = "/".join(part for part in given.strip("/").split("/") if part != ANY)
    of_chain = without and not _fitting(known, given.strip("/")) and _fitting(known, without)
    return find_named(known, without if of_chain else given, "job")


def find_named(names: Iterable[str], given: str, what: str) -> str:
    """As `find_job`, of other names that are made alike.

    Args:
        names: All of them.
        given: What the user wrote.
        what: What they name, for messages: ``job``.

    Raises:
        ConfigError: None fits, or several do; says which are near or which they are.
    """
    known = list(names)
    wanted = given.strip("/")
    if wanted in known:
        return wanted
    fitting = _fitting(known, wanted)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ConfigError(f"'{given}' fits {len(fitting)} {what}s; give more of it:\n" + listed(fitting))
    near = _near(known, wanted)
    told = f"Nearest:\n{listed(near)}" if near else f"There are:\n{listed(known)}" if known else ""
    raise ConfigError(f"no {what} fits '{given}'. {told}".rstrip())


def _fitting(known: list[str], wanted: str) -> list[str]:
    if any(sign in wanted for sign in "*?["):
        return [job_id for job_id in known if fnmatchcase(job_id, wanted) or fnmatchcase(job_id, f"*{wanted}")]
    ending = [job_id for job_id in known if f"/{job_id}".endswith(f"/{wanted}")]
    return ending or [job_id for job_id in known if wanted in job_id]


def _near(known: list[str], wanted: str) -> list[str]:
    """Names of which as many parts, wherever they stand, resemble what is wanted."""
    number = wanted.count("/") + 1
    parts: dict[str, str] = {}
    for name in known:
        own = name.split("/")
        for at in range(len(own) - number + 1):
            parts.setdefault("/".join(own[at : at + number]).lower(), name)
    return list(dict.fromkeys(parts[near] for near in get_close_matches(wanted.lower(), parts, n=5, cutoff=0.5)))


def listed(names: list[str]) -> str:
    """The first of some names, a line for each."""
    lines = [f"  {name}" for name in names[:MAX_LISTED]]
    if len(names) > MAX_LISTED:
        lines.append(f"  and {len(names) - MAX_LISTED} more")
    return "\n".join(lines)


_SWEEP = Path("sweep/optuna.log")
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
        return runs[-1] if runs else RunFolder((output_dir / name / "latest").resolve())
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
