"""Where a run came from: what was typed, on which machine, with which versions. For people, and to repeat it.

It is written when the run begins, so that also a run which was killed can say it. Results do not depend on it.
"""

from __future__ import annotations

import logging
import os
import platform
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

import psutil

from pipeline import __version__
from pipeline.arithmetic import processor
from pipeline.files import json_text, write_whole
from pipeline.foreign import ForeignDataError, read_json_file

FILE = "origin.json"
PACKAGES = ("torch", "transformers", "numpy", "hydra-core", "omegaconf")

log = logging.getLogger("pipeline")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What ``origin.json`` holds.

    Attributes:
        command: Words of the command that repeats the run, from the same folder; none where it was not started by
            settings as one types them.
        settings: Those of them that are settings, ``KEY=VALUE``.
        folder: The folder in which it was started.
        group: What it has in common with the other runs of its multirun, or "".
        bounded: Algorithms whose divergence is an upper bound.
        devices: On which it ran.
        machine: What it is: ``host``, ``system``, ``processor``, ``cpus``, ``memory_gib``.
        versions: Package -> version, of Python too.
        slurm: The job of Slurm in which it ran, see `slurm_job`; empty outside of one.
    """

    command: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)
    folder: str = ""
    group: str = ""
    bounded: list[str] | None = None
    devices: list[str] = field(default_factory=list)
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    slurm: Mapping[str, str] = field(default_factory=dict)

    @property
    def command_line(self) -> str:
        """The command as it is typed in a shell, or ""."""
        return shlex.join(self.command)


def this_origin(
    command: Sequence[str],
    settings: Sequence[str],
    *,
    group: str,
    bounded: Iterable[str],
    devices: Iterable[str],
) -> Origin:
    """The origin of a run that begins in this process."""
    return Origin(
        command=list(command),
        settings=list(settings),
        folder=_here(),
        group=group,
        bounded=list(bounded),
        devices=list(devices),
        machine=_machine(),
        versions=_versions(),
        slurm=slurm_job(os.environ),
    )


_OF_SLURM = {
    "job": "SLURM_JOB_ID",
    "array": "SLURM_ARRAY_JOB_ID",
    "task": "SLURM_ARRAY_TASK_ID",
    "name": "SLURM_JOB_NAME",
    "partition": "SLURM_JOB_PARTITION",
    "nodes": "SLURM_JOB_NODELIST",
    "restarts": "SLURM_RESTART_COUNT",
    "cluster": "SLURM_CLUSTER_NAME",
}


def slurm_job(environ: Mapping[str, str]) -> dict[str, str]:
    """The job of Slurm that a process is in: ``job`` its id, ``restarts`` how often it was put back, and so on.

    Args:
        environ: Variables of the process.
    """
    if not environ.get("SLURM_JOB_ID"):
        return {}
    return {name: environ[variable] for name, variable in _OF_SLURM.items() if environ.get(variable)}


def slurm_in_words(job: Mapping[str, str]) -> str:
    """As in ``Slurm job 41 (4_1 of an array) on n1, partition main, put back 2 times``; "" outside of one."""
    if "job" not in job:
        return ""
    parts = [f"Slurm job {job['job']}"]
    if "array" in job and "task" in job:
        parts[0] += f" ({job['array']}_{job['task']} of an array)"
    if "nodes" in job:
        parts[0] += f" on {job['nodes']}"
    if "partition" in job:
        parts.append(f"partition {job['partition']}")
    if job.get("restarts", "0") != "0":
        parts.append(f"put back {job['restarts']} time{'s' if job['restarts'] != '1' else ''}")
    return ", ".join(parts)


def _here() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # somebody has removed it
        return ""


def _machine() -> dict[str, str]:
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": processor(),
        "cpus": str(len(os.sched_getaffinity(0))),
        "memory_gib": f"{psutil.virtual_memory().total / (1 << 30):.1f}",
    }


def _versions() -> dict[str, str]:
    """Of what results rest on. Looked up without importing any of it."""
    found = {"pipeline": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def write_origin(folder: Path, origin: Origin) -> None:
    """Write ``origin.json`` to the folder of a run."""
    write_whole(folder / FILE, json_text(asdict(origin), indent=1) + "\n")


def read_origin(folder: Path) -> Origin:
    """Read it; empty where a run has none that can be used, as those of earlier versions have none."""
    path = folder / FILE
    try:
        return read_json_file(path, Origin, follow=True)
    except FileNotFoundError:
        return Origin()
    except (ForeignDataError, OSError) as error:
        log.warning("%s is passed over: %s", path, error)
        return Origin()
