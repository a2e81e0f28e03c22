"""Run a sweep with W&B's search: create it there once, and run ``wandb agent`` on devices of our own.

    wandb sweep (the file, normalised)  ->  entity/project/id, kept in the sweep's folder
    slot: devices leased  ->  wandb agent --count 1  ->  the program  ->  devices free  ->  the next one

A program on several devices is started as ranks, by this module: ``python -m pipeline.sweeps.online PROGRAM ...``.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from pipeline.engine.devices.inventory import Device
from pipeline.engine.launch import listen, ranks_command, supervise
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.errors import ConfigError, PipelineError, describe_exit, install_command
from pipeline.files import json_text, write_whole
from pipeline.foreign import ForeignDataError, read_json_file
from pipeline.machine import children
from pipeline.machine.children import tail
from pipeline.runs.report.format import count
from pipeline.runs.trackers import own_runs
from pipeline.sweeps.file import NUM_GPUS, Sweep, as_values, kind_of
from pipeline.sweeps.plan import AgentPool, most_devices
from pipeline.sweeps.trial_process import Handle, Order, side_by_side
from pipeline.terminal.streams import without_colours

_MODULE = "pipeline.sweeps.online"
_DEVICES = "PIPELINE_TRIAL_DEVICES"
"""Environment variable: how many devices the program has."""
_GRACE_S = 20
_CREATE_S = 120.0
LOOKS, EMPTY_S, FAILED_S, BUSY_S = 3, 60.0, 30.0, 5.0
"""Times in a row that a slot gets no trial until the sweep is done; and seconds of rest after such a time, after
a failure of its agent, and while somebody else has one of its devices."""


# -- a program on several devices --------------------------------------------------------------------------------


def main(words: Sequence[str]) -> int:
    """Run a program as ranks: as many as its ``num_gpus`` says, else one on each device; its exit code."""
    devices = ranks = int(os.environ.get(_DEVICES, "1"))
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if match := re.fullmatch(r"(?:--)?num_gpus(?:=(\d+))?", word):
            wanted = match[1] or following
            if not wanted.isdigit() or not 1 <= int(wanted) <= devices:
                needed = f"this trial needs num_gpus={wanted}, and its agent has {devices}"
                sys.stderr.write(f"error: {needed}: give agents more by --gpus-per-agent\n")
                return 2
            ranks = int(wanted)
    with listen(None) as server:
        own = ["--no-python", sys.executable, "-m", "pipeline.sweeps.rank_zero"]
        command, environment = ranks_command([*own, *words], ranks, os.environ, _GRACE_S, server)
        return supervise(command, environment, _GRACE_S, server=server)


# -- the sweep at W&B --------------------------------------------------------------------------------------------


def devices_of_agents(sweep: Sweep, per_agent: int | None) -> int:
    """Return how many devices an agent needs to run every trial of a sweep.

    Raises:
        ConfigError: The command line says fewer.
    """
    _, most = most_devices(sweep, per_agent)
    if per_agent is not None and per_agent < most:
        raise ConfigError(f"--gpus-per-agent {per_agent}: trials of this sweep need up to {most} ({NUM_GPUS})")
    return max(most, per_agent or 1)


def wandb_config(sweep: Sweep, devices: int = 1) -> dict[str, Any]:
    """Write a sweep as ``wandb sweep`` takes it, for agents with so many devices.

    Numbers are numbers, and the distribution of every range is named, as W&B refuses one from a whole number to
    another kind. Distributions that W&B has given up are those that took their place. For trials on several
    devices the command starts ranks.
    """
    config = {"name": sweep.name, **sweep.given, "parameters": _block(sweep.given["parameters"])}
    words = list(sweep.command)
    python = (at for at, word in enumerate(words) if re.fullmatch(r"\$\{interpreter\}|(.*/)?python[0-9.]*", word))
    if devices > 1 and sweep.options.launcher == "torchrun" and (at := next(python, None)) is not None:
        config["command"] = [*words[: at + 1], "-m", _MODULE, *words[at + 1 :]]
    return config


def _block(block: Mapping[str, Any]) -> dict[str, Any]:
    converted: dict[str, Any] = {}
    for name, entry in block.items():
        if kind_of(entry) == "parameters":
            converted[name] = {"parameters": _block(entry["parameters"])}
        else:
            values = as_values(entry)
            converted[name] = {**values, **({"distribution": kind_of(values)} if "min" in entry else {})}
    return converted


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """A sweep at W&B: its path, as ``wandb agent`` takes it, and a digest of what it was created from."""

    path: str
    config: str


def created(config: Mapping[str, Any], file: Path) -> tuple[str, bool]:
    """Return the W&B sweep of a folder: the one created before, else a new one.

    Args:
        config: Configuration for W&B.
        file: File to note it in.

    Returns:
        Its path, and whether it is new.

    Raises:
        ConfigError: Another one was created for this folder.
        PipelineError: W&B does not create it.
    """
    digest = hashlib.sha256(json_text(config, sort_keys=True).encode()).hexdigest()[:16]
    try:
        kept = read_json_file(file, _Kept)
    except FileNotFoundError:
        kept = _Kept(path=_create(config), config=digest)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json_text(asdict(kept), indent=1) + "\n")
        return kept.path, True
    except (ForeignDataError, OSError) as error:
        raise ConfigError(f"{file} cannot be used ({error}): remove it to create the sweep anew") from error
    if kept.config != digest:
        another = f"{kept.path} was created from another file"
        raise ConfigError(f"{another}: give this sweep another name by --name, or remove {file}")
    return kept.path, False


def _create(config: Mapping[str, Any]) -> str:
    if find_spec("wandb") is None:
        raise ConfigError(f"--wandb needs wandb, which is not installed: {install_command('wandb')}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.yaml"
        file.write_text(yaml.safe_dump(dict(config), sort_keys=False))
        words, environment = [sys.executable, "-m", "wandb", "sweep", str(file)], own_runs(os.environ)
        pipe = subprocess.PIPE
        try:  # what it prints is all that it answers, and it may wait for ever
            done = subprocess.run(
                words, env=environment, stdout=pipe, stderr=subprocess.STDOUT, timeout=_CREATE_S, check=False
            )
            printed, why = done.stdout, describe_exit(done.returncode) if done.returncode else ""
        except subprocess.TimeoutExpired as error:
            printed, why = error.stdout or b"", f"within {_CREATE_S:g} s"
    text = without_colours(printed.decode(errors="replace")).strip()
    match = re.search(r"wandb agent ((?:[A-Za-z0-9_.~-]+/){0,2}[A-Za-z0-9_~-]+)\s*$", text, re.MULTILINE)
    if why or match is None:
        lines = "".join(f"\n    {line}" for line in text.splitlines()[-12:])
        raise PipelineError(f"W&B has not created the sweep ({why or 'it names none'}):{lines}")
    return match[1]


# -- slots -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Slot:
    """One slot: devices, folder of its files, trials from W&B, and times in a row without one."""

    devices: Sequence[Device]
    folder: Path
    begun: int = 0
    empty: int = 0

    def count(self) -> int:
        """Return how many trials its agents have begun: each leaves its parameters in a file."""
        return sum(1 for _ in self.folder.glob("wandb/sweep-*/config-*.yaml"))


class OnlineAgents:
    """The agents of one command.

    Attributes:
        trials: Number of trials that were run.
        failures: Agents in a row that have failed.
    """

    def __init__(
        self,
        sweep: Sweep,
        path: str,
        pool: AgentPool,
        folder: Path,
        say: Callable[[str], None],
        *,
        limit: int | None = None,
        grace_s: int = 30,
    ) -> None:
        """Prepare.

        Args:
            sweep: The sweep.
            path: Path of the sweep at W&B.
            pool: Devices of the agents.
            folder: Folder of the sweep.
            say: Told a line where something fails.
            limit: The most trials that are run; None for no bound.
            grace_s: Seconds that a trial has to end after a request.
        """
        self.trials = self.failures = self._running = 0
        self._sweep, self._path, self._places, self._say = sweep, path, pool.places, say
        self._limit, self._grace_s, width, slots = limit, grace_s, pool.per_trial, folder / "slots"
        self._slots = [
            _Slot(devices=pool.devices[at * width : (at + 1) * width], folder=slots / f"{at + 1:02d}")
            for at in range(min(pool.at_once, len(pool.devices) // width))
        ]
        say(f"{count(len(self._slots), 'agent')} with {count(width, pool.kind)} each")

    @property
    def gave_up(self) -> bool:
        """Whether too many agents in a row have failed."""
        return self.failures >= self._sweep.options.max_failures

    def run(self, signals: StopSignals) -> str:
        """Run trials; the name of the signal that has ended it, or ""."""
        for slot in self._slots:
            slot.begun = slot.count()
        return side_by_side(len(self._slots), signals, self._following, self._ended, self._say)

    def _following(self, number: int) -> Order | None:
        slot = self._slots[number]
        within = self._limit is None or self.trials + self._running < self._limit
        if self.gave_up or slot.empty >= LOOKS or not within:
            return None
        self._running += 1
        slot.folder.mkdir(parents=True, exist_ok=True)
        python = str(Path(sys.executable).parent)
        search = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), str(children.PACKAGE_PARENT)]
        return Order(
            # Its agent is told to forward a request to stop: else it leaves its trial.
            words=[sys.executable, "-m", "wandb", "agent", "--forward-signals", "--count", "1", self._path],
            gpus=[self._places[device.uuid or ""] for device in slot.devices] if self._places else None,
            slots=len(slot.devices),
            launcher="none",
            holder=f"sweep {self._sweep.name}, agent {number + 1}",
            variables={
                **self._sweep.environment,
                _DEVICES: str(len(slot.devices)),
                "WANDB_DIR": str(slot.folder),
                "PATH": os.pathsep.join([python, os.environ.get("PATH", os.defpath)]),
                "PYTHONPATH": os.pathsep.join(search),
            },
            folder=str(self._sweep.folder.absolute()),
            log=str(slot.folder / "log.txt"),
            start=str(slot.folder / "start.json"),
            grace_s=self._grace_s,
        )

    def _ended(self, number: int, handle: Handle) -> float:
        self._running -= 1
        slot, result = self._slots[number], handle.result
        if result.busy:
            return BUSY_S
        begun = slot.count()
        new, slot.begun = begun - slot.begun, begun
        self.trials += new
        if handle.told_to_end:
            return 0.0
        if result.refused or result.exit_code != 0:
            self.failures += 1
            why = result.refused or describe_exit(result.exit_code) + tail(Path(handle.order.log))
            self._say(f"agent {number + 1} failed: {why}")
            return FAILED_S
        self.failures = 0
        slot.empty = 0 if new else slot.empty + 1
        return 0.0 if new else EMPTY_S


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
