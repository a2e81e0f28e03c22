"""A sweep whose search is W&B's: created there once, and worked on by ``wandb agent`` on devices of our own.

wandb.sweep(the file, normalised)  ->  entity/project/id, kept in the sweep's folder
slot: devices leased  ->  wandb agent --count 1  ->  the program  ->  devices free  ->  the next one
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.config.install import install_command
from pipeline.engine.launch.run import LOOPBACK, Meeting, listen, ranks_command, supervise
from pipeline.errors import ConfigError, PipelineError, describe_exit
from pipeline.files import json_text, write_whole
from pipeline.foreign import ForeignDataError, read_json, read_json_file
from pipeline.machine import children
from pipeline.sweeps.spec import Launcher, Sweep
from pipeline.terminal.streams import printable

# -- under agent -------------------------------------------------------------------------------------------------
# What W&B's agent runs for a trial on several devices: the program as ranks, one on each. wandb agent ->
# python -m pipeline.sweeps.online.at_wandb PROGRAM ARGUMENTS -> torchrun -> rank_zero -> PROGRAM The slot
# that holds the devices says how many there are. A trial may use fewer: its parameter ``num_gpus``.


DEVICES = "PIPELINE_TRIAL_DEVICES"
"""Environment variable: how many devices the program has."""
GRACE_S = 20
REFUSED = 2
_NUM_GPUS = re.compile(r"(?:--)?num_gpus(?:=(\d+))?")


def ranks_of(words: Sequence[str], devices: int) -> int:
    """How many ranks a program has: as many as it is told, else one on each device.

    Args:
        words: Its arguments.
        devices: How many there are.

    Raises:
        PipelineError: It needs more than there are.
    """
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if found := _NUM_GPUS.fullmatch(word):
            given = found[1] or following
            if not given.isdigit() or not 1 <= int(given) <= devices:
                raise PipelineError(
                    f"this trial needs num_gpus={given}, and its agent has {devices}: give agents more with "
                    "--gpus-per-agent, or take the value out of the sweep"
                )
            return int(given)
    return devices


def main() -> int:
    """Run the program; its exit code."""
    words = sys.argv[1:]
    try:
        ranks = ranks_of(words, int(os.environ.get(DEVICES, "1")))
    except PipelineError as error:
        sys.stderr.write(f"error: {error}\n")
        return REFUSED
    with listen(None) as server:
        arguments = [
            *Meeting(1, 0, LOOPBACK, server.getsockname()[1]).torchrun(),
            f"--nproc-per-node={ranks}",
            "--no-python",
            sys.executable,
            *("-m", "pipeline.sweeps.agents.rank_zero"),
            *words,
        ]
        command, environment = ranks_command(arguments, os.environ, GRACE_S, server)
        return supervise(command, environment, GRACE_S, server=server)


if __name__ == "__main__":
    sys.exit(main())

CREATED_S = 120.0
"""Seconds that W&B has to create a sweep."""
NUM_GPUS = "num_gpus"
_PYTHON = re.compile(r"(\$\{interpreter\}|(.*/)?python[0-9.]*)")
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]{1,200}")
_LINES = 12


@dataclass(frozen=True, kw_only=True)
class OnlineSweep:
    """A sweep at W&B.

    Attributes:
        id: As W&B has named it.
        entity: Whose it is.
        project: In which project.
        config: Digest of what it was created from; "" where that was not kept.
    """

    id: str
    entity: str
    project: str
    config: str = ""

    @property
    def path(self) -> str:
        """As ``wandb agent`` takes it."""
        return f"{self.entity}/{self.project}/{self.id}"


def most_devices(sweep: Sweep, each: int | None) -> int:
    """Devices that an agent needs so that it can run every trial of a sweep.

    Args:
        sweep: The sweep.
        each: What the command line says; None for nothing.

    Raises:
        ConfigError: Trials need more, or the file does not bound what they need.
    """
    block: Mapping[str, Any] = sweep.given.get("parameters", {}).get(NUM_GPUS, {})
    values = [block["value"]] if "value" in block else block.get("values") or [block.get("max", 0)]
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        raise ConfigError(f"parameter {NUM_GPUS}: whole numbers are needed, where there is {values}")
    most = max(values) or sweep.options.num_gpus
    if each is not None and each < most and block:
        raise ConfigError(
            f"--gpus-per-agent {each}: trials of this sweep need up to {most} ({NUM_GPUS}). W&B chooses trials "
            f"without knowing what an agent has; give {most}, or take larger values out of the file"
        )
    return each or most


def as_uploaded(config: Mapping[str, Any], sweep: Sweep, devices: int) -> dict[str, Any]:
    """What W&B is given: the file, and for trials on several devices a command that starts ranks.

    Args:
        config: The normalised file.
        sweep: The sweep.
        devices: Of each agent.
    """
    if devices == 1 or sweep.options.launcher is Launcher.none:
        return dict(config)
    words = list(sweep.command)
    at = next((at for at, word in enumerate(words) if _PYTHON.fullmatch(word)), None)
    if at is None:
        return dict(config)
    return {**config, "command": [*words[: at + 1], "-m", "pipeline.sweeps.online.at_wandb", *words[at + 1 :]]}


def created(config: Mapping[str, Any], kept: Path, timeout_s: float = CREATED_S) -> tuple[OnlineSweep, bool]:
    """The sweep at W&B that belongs to a folder: the one that was created before, else a new one.

    Args:
        config: What W&B is given.
        kept: File in which it is noted.
        timeout_s: Seconds that W&B has.

    Returns:
        The sweep, and whether it is new.

    Raises:
        ConfigError: Another one was created for this folder.
        PipelineError: W&B does not create it.
    """
    digest = hashlib.sha256(json_text(config, sort_keys=True).encode()).hexdigest()[:16]
    try:
        before = read_json_file(kept, OnlineSweep)
    except FileNotFoundError:
        before = None
    except (ForeignDataError, OSError) as error:
        raise ConfigError(f"{kept} cannot be used ({error}): remove it to create the sweep anew") from error
    if before is not None:
        if before.config != digest:
            raise ConfigError(
                f"{before.path} was created from another file. Give this sweep a name of its own by --name, or "
                f"remove {kept} to create it anew"
            )
        return before, False
    made = _create(config, digest, timeout_s)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_whole(kept, json_text({**asdict(made), "path": made.path}, indent=1) + "\n")
    return made, True


def _create(config: Mapping[str, Any], digest: str, timeout_s: float) -> OnlineSweep:
    if find_spec("wandb") is None:
        raise ConfigError(
            f"--wandb needs the package wandb, which is not installed: {install_command('wandb')}. "
            "Without --wandb the same file is searched on this machine"
        )
    words, environment = children.command("pipeline.sweeps.online.create", os.environ)
    asked = {
        "config": dict(config),
        "entity": config.get("entity") or os.environ.get("WANDB_ENTITY"),
        "project": config.get("project") or os.environ.get("WANDB_PROJECT"),
    }
    try:
        done = subprocess.run(
            words,
            input=json.dumps(asked).encode(),
            capture_output=True,
            env=environment,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PipelineError(
            f"W&B has not created the sweep within {timeout_s:g} s{_said(error.stderr)}"
        ) from error
    if done.returncode:
        raise PipelineError(
            f"W&B has not created the sweep ({describe_exit(done.returncode)}){_said(done.stderr)}"
        )
    try:
        made = read_json(done.stdout, OnlineSweep)
    except ForeignDataError as error:
        raise PipelineError(f"W&B has given no id of a sweep: {error}{_said(done.stderr)}") from error
    for name in (made.id, made.entity, made.project):
        if not _PLAIN.fullmatch(name):
            raise PipelineError(f"W&B has given a sweep that cannot be: {name[:80]!r}{_said(done.stderr)}")
    return OnlineSweep(id=made.id, entity=made.entity, project=made.project, config=digest)


def _said(output: bytes | None) -> str:
    """The last lines that it printed, indented."""
    lines = (output or b"").decode(errors="replace").strip().splitlines()[-_LINES:]
    return (":" if lines else "") + "".join(f"\n    {printable(line)}" for line in lines)


def agent_words(path: str) -> list[str]:
    """The command by which a slot runs one trial, which is told of a request to stop: else its agent leaves it."""
    return [sys.executable, "-m", "wandb", "agent", "--forward-signals", "--count", "1", path]


def agent_variables(devices: int, folder: Path) -> dict[str, str]:
    """What the agent and its program find in their environment, besides what they have from this process.

    Args:
        devices: Of the slot.
        folder: Where wandb keeps its files of the slot.
    """
    python = str(Path(sys.executable).parent)
    search = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), str(children.PACKAGE_PARENT)]
    return {
        DEVICES: str(devices),
        "WANDB_DIR": str(folder),
        "PATH": os.pathsep.join([python, os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(search),
    }


def begun_runs(folder: Path) -> int:
    """How many trials the agents of a slot have begun: they leave the parameters of each in a file."""
    return sum(1 for _ in folder.glob("wandb/sweep-*/config-*.yaml"))


def shares(devices: Sequence[Any], each: int, at_once: int) -> list[list[Any]]:
    """The devices of each slot."""
    many = min(at_once, len(devices) // each)
    return [list(devices[at * each : (at + 1) * each]) for at in range(many)]
