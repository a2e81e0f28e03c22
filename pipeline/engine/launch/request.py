"""What a launch was asked for, and the checks that need nothing but the request itself."""

from __future__ import annotations

import importlib.machinery
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.schema import DeviceChoice
from pipeline.errors import ConfigError

LAST_PORT = 65535
LOOPBACK = "127.0.0.1"
_OUTER_LAUNCHER = ("RANK", "TORCHELASTIC_RUN_ID")


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """One command line.

    Attributes:
        program: The program and its arguments.
        device: `cpu`, or None for GPUs.
        gpus: Exactly these GPUs, in this order, as positions in the visible set.
        num_gpus: So many, the idlest; None with no `gpus` takes every visible one.
        nproc: Processes, for the CPU alone.
        nnodes: Machines.
        node_rank: Which of them this is; None leaves it to Slurm.
        master_addr: Address of machine 0.
        master_port: Port on machine 0 where the processes meet.
        wait: Queue for GPUs that others hold.
        grace_s: Seconds that processes have to end before they are killed.
    """

    program: Sequence[str]
    device: DeviceChoice | None = None
    gpus: Sequence[int] | None = None
    num_gpus: int | None = None
    nproc: int | None = None
    nnodes: int = 1
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    wait: bool = False
    grace_s: int = 8

    @property
    def on_cpu(self) -> bool:
        """Whether the processes do without GPUs."""
        return self.device is DeviceChoice.cpu


@dataclass(frozen=True)
class Program:
    """What each process runs, as torchrun takes it.

    Attributes:
        flags: Of torchrun.
        name: A script, a module or an executable.
        arguments: Of the program.
    """

    flags: tuple[str, ...]
    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Meeting:
    """Where the processes find each other.

    Attributes:
        nnodes: Machines.
        node_rank: Which of them this is.
        address: Of machine 0.
        port: On machine 0; None lets the system choose one. Several machines have to be told.
    """

    nnodes: int
    node_rank: int
    address: str
    port: int | None

    def torchrun(self) -> list[str]:
        """As arguments of torchrun."""
        assert self.port is not None
        return [
            f"--nnodes={self.nnodes}",
            f"--node-rank={self.node_rank}",
            f"--master-addr={self.address}",
            f"--master-port={self.port}",
        ]

    def __str__(self) -> str:
        """As in ``node 1 of 2, meeting at 10.0.0.4:29500``."""
        node = f"node {self.node_rank} of {self.nnodes}, " if self.nnodes > 1 else ""
        return f"{node}meeting at {self.address}:{self.port}"


def check_request(request: LaunchRequest) -> None:
    """Refuse options that contradict each other.

    Raises:
        ConfigError: They do, or a number is out of its range.
    """
    if request.on_cpu:
        if request.gpus is not None or request.num_gpus is not None:
            raise ConfigError("--device cpu uses no GPU: leave out --gpus and --num-gpus, or --device cpu")
        if request.nproc is None:
            raise ConfigError("--device cpu needs --nproc N: how many processes to start")
    elif request.nproc is not None:
        raise ConfigError("--nproc is for --device cpu; with GPUs there is one process on each: use --num-gpus N")
    if request.nproc is not None and request.nproc < 1:
        raise ConfigError(f"--nproc {request.nproc}: at least 1")
    if request.grace_s < 1:
        raise ConfigError(f"--grace {request.grace_s}: at least 1 second")


def find_program(words: Sequence[str], folder: Path) -> Program:
    """Understand the program: a script, ``-m MODULE``, or an executable.

    Args:
        words: Everything after the options.
        folder: Where it would start.

    Raises:
        ConfigError: It does not exist, or starts processes of its own.
    """
    usage = "Give it last, after --: pipeline launch --gpus 0,1 -- train.py --lr 1e-3"
    if not words or (words[0] == "-m" and len(words) == 1):
        raise ConfigError(f"there is no program to start. {usage}")
    first, *rest = words
    if first == "-m":
        _check_module(rest[0], folder)
        return Program(("--module",), rest[0], tuple(rest[1:]))
    if first.startswith("-"):
        raise ConfigError(f"'{first}' is not an option of launch. See --help. {usage}")
    if Path(first).name == "run_parallel.py":
        raise ConfigError(
            "run_parallel.py starts a process on each GPU by itself: run it without launch. "
            "Choose GPUs by distributed.gpu_ids=[0,2]."
        )
    if first.endswith(".py"):
        if not (folder / first).is_file():
            raise ConfigError(f"there is no file {first} in {folder}. {usage}")
        return Program((), first, tuple(rest))
    executable = shutil.which(first, path=None) or shutil.which(str(folder / first))
    if executable is None:
        raise ConfigError(f"there is no program {first}: neither a file ending in .py nor an executable. {usage}")
    return Program(("--no-python",), executable, tuple(rest))


def _check_module(name: str, folder: Path) -> None:
    # The first part alone: looking for the others would import it.
    top = name.partition(".")[0]
    if importlib.machinery.PathFinder.find_spec(top, [str(folder), *sys.path]) is None:
        raise ConfigError(f"there is no module {name}: '{top}' is not installed and not in {folder}")


def find_meeting(request: LaunchRequest, environ: Mapping[str, str]) -> Meeting:
    """Where the processes meet: the options, else MASTER_ADDR and MASTER_PORT, else a free port.

    Args:
        request: What was asked for.
        environ: The environment. What an outer launcher left in it counts for nothing.

    Raises:
        ConfigError: Something is missing, or out of its range.
    """
    inherited = {} if any(name in environ for name in _OUTER_LAUNCHER) else environ
    port = _port(request, inherited)
    if request.nnodes < 1:
        raise ConfigError(f"--nnodes {request.nnodes}: at least 1")
    if request.nnodes == 1:
        for name, value in (("--node-rank", request.node_rank), ("--master-addr", request.master_addr)):
            if value is not None:
                raise ConfigError(f"{name} is for several machines: give --nnodes too, or leave it out")
        return Meeting(1, 0, LOOPBACK, port)
    address = request.master_addr or inherited.get("MASTER_ADDR")
    if not address:
        raise ConfigError("--nnodes needs --master-addr: the address of machine 0, the same on each of them")
    if port is None:
        raise ConfigError("--nnodes needs --master-port: a port that is free on machine 0, the same on each")
    return Meeting(request.nnodes, _node_rank(request, environ), address, port)


def _node_rank(request: LaunchRequest, environ: Mapping[str, str]) -> int:
    rank = request.node_rank
    if rank is None and environ.get("SLURM_NODEID", "").isdigit():
        rank = int(environ["SLURM_NODEID"])
    allowed = f"0 to {request.nnodes - 1}, another on each machine"
    if rank is None:
        raise ConfigError(f"--nnodes needs --node-rank: which machine this is, {allowed}")
    if not 0 <= rank < request.nnodes:
        raise ConfigError(f"--node-rank {rank} with --nnodes {request.nnodes}: it is {allowed}")
    return rank


def _port(request: LaunchRequest, environ: Mapping[str, str]) -> int | None:
    name, text = "--master-port", request.master_port
    if text is None:
        given = environ.get("MASTER_PORT")
        if not given:
            return None
        name = "MASTER_PORT"
        if not given.isdigit():
            raise ConfigError(f"MASTER_PORT={given} is no port: a number from 1 to {LAST_PORT}, or unset it")
        text = int(given)
    if not 1 <= text <= LAST_PORT:
        raise ConfigError(f"{name} {text} is no port: they go from 1 to {LAST_PORT}")
    return text
