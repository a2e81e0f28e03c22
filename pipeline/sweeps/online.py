"""A sweep whose search is W&B's: created there once, and worked on by ``wandb agent`` on devices of our own.

    wandb.sweep(the file, normalised)  ->  entity/project/id, kept in the sweep's folder
    slot: devices leased  ->  wandb agent --count 1  ->  the program  ->  devices free  ->  the next one

A program on several devices is started as ranks, by this module: ``python -m pipeline.sweeps.online PROGRAM ...``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.config.place import install_command
from pipeline.engine.devices.inventory import Device
from pipeline.engine.launch.run import LOOPBACK, Meeting, listen, ranks_command, supervise
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.errors import ConfigError, PipelineError, describe_exit
from pipeline.files import json_text, write_whole
from pipeline.foreign import ForeignDataError, read_json, read_json_file
from pipeline.machine import children
from pipeline.machine.children import tail
from pipeline.sweeps.file import NUM_GPUS, Sweep, as_values, kind_of
from pipeline.sweeps.plan import most_devices
from pipeline.sweeps.trial_process import Ended, Order, SideBySide, Task
from pipeline.terminal.streams import printable

_MODULE = "pipeline.sweeps.online"
_DEVICES = "PIPELINE_TRIAL_DEVICES"
"""Environment variable: how many devices the program has."""
_GRACE_S = 20
_CREATE = """
import json, os, sys
answer = os.dup(1)
os.dup2(2, 1)  # wandb prints
asked = json.load(sys.stdin)
try:
    import wandb
    made = wandb.sweep(asked["config"], entity=asked["entity"], project=asked["project"])
    api = wandb.Api()
    known = {
        "id": made,
        "entity": api.settings.get("entity") or api.default_entity,
        "project": api.settings.get("project") or "uncategorized",
    }
except Exception as error:  # wandb has many kinds; where in its code says nothing to a user
    sys.exit(f"{type(error).__name__}: {error}")
os.write(answer, json.dumps(known).encode())
"""
"""A process of its own, as wandb takes seconds to import, prints, and may wait for ever."""


# -- a program on several devices --------------------------------------------------------------------------------


def main(words: Sequence[str]) -> int:
    """Run a program as ranks: as many as its ``num_gpus`` says, else one on each device; its exit code."""
    devices = ranks = int(os.environ.get(_DEVICES, "1"))
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if found := re.fullmatch(r"(?:--)?num_gpus(?:=(\d+))?", word):
            given = found[1] or following
            if not given.isdigit() or not 1 <= int(given) <= devices:
                sys.stderr.write(
                    f"error: this trial needs num_gpus={given}, and its agent has {devices}: give agents more by "
                    "--gpus-per-agent, or take the value out of the sweep\n"
                )
                return 2
            ranks = int(given)
    with listen(None) as server:
        meeting = Meeting(1, 0, LOOPBACK, server.getsockname()[1]).torchrun()
        own = ["--no-python", sys.executable, "-m", "pipeline.sweeps.rank_zero"]
        arguments = [*meeting, f"--nproc-per-node={ranks}", *own, *words]
        command, environment = ranks_command(arguments, os.environ, _GRACE_S, server)
        return supervise(command, environment, _GRACE_S, server=server)


# -- the sweep at W&B --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OnlineSweep:
    """A sweep at W&B.

    Attributes:
        id: As W&B has named it.
        entity: Whose it is.
        project: In which project.
        config: Digest of what it was created from.
    """

    id: str
    entity: str
    project: str
    config: str = ""

    @property
    def path(self) -> str:
        """As ``wandb agent`` takes it."""
        return f"{self.entity}/{self.project}/{self.id}"


def devices_of_agents(sweep: Sweep, each: int | None) -> int:
    """How many devices an agent needs so that it can run every trial of a sweep.

    Raises:
        ConfigError: The command line says fewer.
    """
    _, most = most_devices(sweep, each)
    if each is not None and each < most:
        raise ConfigError(
            f"--gpus-per-agent {each}: trials of this sweep need up to {most} ({NUM_GPUS}), and W&B chooses them "
            "without "
            f"knowing what an agent has. Give {most}, or take larger values out of the file"
        )
    return max(most, each or 1)


def wandb_config(sweep: Sweep, devices: int = 1) -> dict[str, Any]:
    """Write a sweep as ``wandb.sweep`` takes it, for agents with so many devices.

    Numbers are numbers, and the distribution of every range is named, as W&B refuses one from a whole number to
    another kind. Distributions that W&B has given up are those that took their place. For trials on several
    devices the command starts ranks.
    """
    found = {"name": sweep.name, **sweep.given, "parameters": _block(sweep.given["parameters"])}
    words = list(sweep.command)
    python = (at for at, word in enumerate(words) if re.fullmatch(r"\$\{interpreter\}|(.*/)?python[0-9.]*", word))
    if devices > 1 and sweep.options.launcher == "torchrun" and (at := next(python, None)) is not None:
        found["command"] = [*words[: at + 1], "-m", _MODULE, *words[at + 1 :]]
    return found


def _block(block: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, given in block.items():
        if kind_of(given) == "parameters":
            found[name] = {"parameters": _block(given["parameters"])}
        else:
            found[name] = {
                **as_values(given),
                **({"distribution": kind_of(as_values(given))} if "min" in given else {}),
            }
    return found


def created(config: Mapping[str, Any], kept: Path, timeout_s: float = 120.0) -> tuple[OnlineSweep, bool]:
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
        made = _create(config, digest, timeout_s)
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, json_text({**asdict(made), "path": made.path}, indent=1) + "\n")
        return made, True
    except (ForeignDataError, OSError) as error:
        raise ConfigError(f"{kept} cannot be used ({error}): remove it to create the sweep anew") from error
    if before.config != digest:
        raise ConfigError(
            f"{before.path} was created from another file. Give this sweep a name of its own by --name, or remove "
            f"{kept} to create it anew"
        )
    return before, False


def _create(config: Mapping[str, Any], digest: str, timeout_s: float) -> OnlineSweep:
    if find_spec("wandb") is None:
        raise ConfigError(
            f"--wandb needs the package wandb, which is not installed: {install_command('wandb')}. Without "
            "--wandb "
            "the same file is searched on this machine"
        )
    asked = {
        "config": dict(config),
        **{key: config.get(key) or os.environ.get(f"WANDB_{key.upper()}") for key in ("entity", "project")},
    }
    words, given = [sys.executable, "-c", _CREATE], json.dumps(asked).encode()
    try:
        done = subprocess.run(words, input=given, capture_output=True, timeout=timeout_s, check=False)
        why = describe_exit(done.returncode) if done.returncode else ""
        said = done.stderr
    except subprocess.TimeoutExpired as error:
        why, said = f"within {timeout_s:g} s", error.stderr or b""
    lines = "".join(
        f"\n    {printable(line)}" for line in said.decode(errors="replace").strip().splitlines()[-12:]
    )
    if why:
        raise PipelineError(f"W&B has not created the sweep ({why}):{lines}")
    try:
        made = read_json(done.stdout, OnlineSweep)
    except ForeignDataError as error:
        raise PipelineError(f"W&B has given no id of a sweep: {error}{lines}") from error
    for name in (made.id, made.entity, made.project):
        if not re.fullmatch(r"[A-Za-z0-9_.~-]{1,200}", name):
            raise PipelineError(f"W&B has given a sweep that cannot be: {name[:80]!r}{lines}")
    return OnlineSweep(id=made.id, entity=made.entity, project=made.project, config=digest)


# -- slots -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a slot waits for what is not there.

    Attributes:
        checks: How often in a row it is given no trial until it takes the sweep for done.
        empty_s: Seconds for which it rests where W&B had no trial for it.
        failed_s: Where its agent has failed.
        busy_s: Where somebody else has one of its devices.
    """

    checks: int = 3
    empty_s: float = 60.0
    failed_s: float = 30.0
    busy_s: float = 5.0


@dataclass(kw_only=True)
class Slot:
    """One slot: its devices, where its files are, trials that W&B has given it, and how often in a row none."""

    devices: Sequence[Device]
    place: Path
    begun: int = 0
    empty: int = 0

    def count(self) -> int:
        """How many trials its agents have begun: they leave the parameters of each in a file."""
        return sum(1 for _ in self.place.glob("wandb/sweep-*/config-*.yaml"))


class OnlineSlots:
    """The slots of one command.

    Attributes:
        trials: How many trials were run.
        failures: Agents in a row that have failed.
    """

    def __init__(
        self,
        sweep: Sweep,
        path: str,
        slots: Sequence[Slot],
        places: Mapping[str, int],
        say: Callable[[str], None],
        *,
        limit: int | None = None,
        grace_s: int = 30,
        patience: Patience | None = None,
    ) -> None:
        """Prepare.

        Args:
            sweep: What was asked for.
            path: The same at W&B.
            slots: With their devices.
            places: UUID -> position in the visible set.
            say: Told a line where something fails.
            limit: The most trials that are run; None for no bound.
            grace_s: Seconds that a trial has to end once it was told to.
            patience: How long slots wait.
        """
        self.trials = self.failures = self._running = 0
        self._sweep, self._path, self._slots, self._places, self._say = sweep, path, slots, places, say
        self._limit, self._grace_s, self._patience = limit, grace_s, patience or Patience()

    @property
    def gave_up(self) -> bool:
        """Whether too many agents in a row have failed."""
        return self.failures >= self._sweep.options.max_failures

    def run(self, signals: StopSignals) -> str:
        """Run trials; the name of the signal that has ended it, or ""."""
        for slot in self._slots:
            slot.begun = slot.count()
        return SideBySide(len(self._slots), self._following, self._ended, self._say).run(signals)

    def _following(self, number: int) -> Task | None:
        slot = self._slots[number]
        within = self._limit is None or self.trials + self._running < self._limit
        if self.gave_up or slot.empty >= self._patience.checks or not within:
            return None
        self._running += 1
        slot.place.mkdir(parents=True, exist_ok=True)
        python = str(Path(sys.executable).parent)
        search = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), str(children.PACKAGE_PARENT)]
        order = Order(
            # Its agent is told to forward a request to stop: else it leaves its trial.
            words=[sys.executable, "-m", "wandb", "agent", "--forward-signals", "--count", "1", self._path],
            gpus=[self._places[device.uuid or ""] for device in slot.devices] if self._places else None,
            slots=len(slot.devices),
            launcher="none",
            holder=f"sweep {self._sweep.name}, agent {number + 1}",
            variables={
                **self._sweep.environment,
                _DEVICES: str(len(slot.devices)),
                "WANDB_DIR": str(slot.place),
                "PATH": os.pathsep.join([python, os.environ.get("PATH", os.defpath)]),
                "PYTHONPATH": os.pathsep.join(search),
            },
            folder=str(self._sweep.folder.absolute()),
            log=str(slot.place / "log.txt"),
            start=str(slot.place / "start.json"),
            grace_s=self._grace_s,
        )
        return Task(name=f"agent {number + 1}", order=order)

    def _ended(self, ended: Ended) -> float:
        self._running -= 1
        slot = self._slots[ended.slot]
        if ended.busy:
            return self._patience.busy_s
        begun = slot.count()
        given, slot.begun = begun - slot.begun, begun
        self.trials += given
        if ended.asked:
            return 0.0
        if ended.refused or ended.exit_code != 0:
            self.failures += 1
            why = ended.refused or describe_exit(ended.exit_code) + tail(Path(ended.task.order.log))
            self._say(f"{ended.task.name} failed: {why}")
            return self._patience.failed_s
        self.failures = 0
        slot.empty = 0 if given else slot.empty + 1
        return 0.0 if given else self._patience.empty_s


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
