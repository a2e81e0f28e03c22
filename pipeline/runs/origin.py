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
    """

    command: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)
    folder: str = ""
    group: str = ""
    bounded: list[str] | None = None
    devices: list[str] = field(default_factory=list)
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

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
    )


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
