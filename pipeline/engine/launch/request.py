"""What a launch was asked for, and the checks that need nothing but the request itself."""

from __future__ import annotations

import importlib.machinery
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ConfigError

LAST_PORT = 65535
LOOPBACK = "127.0.0.1"
_OUTER_LAUNCHER = ("RANK", "TORCHELASTIC_RUN_ID")


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """One command line.

    Attributes:
        program: The program and its arguments.
        gpus: Exactly these GPUs, in this order, as positions in the visible set.
        num_gpus: So many, the idlest; None with no `gpus` takes every visible one.
        nproc: Processes without GPUs; None for one on each GPU.
        nnodes: Machines.
        node_rank: Which of them this is; None leaves it to Slurm.
        master_addr: Address of machine 0.
        master_port: Port on machine 0 where the processes meet.
        wait: Queue for GPUs that others hold.
        grace_s: Seconds that processes have to end before they are killed.
    """

    program: Sequence[str]
    gpus: Sequence[int] | None = None
    num_gpus: int | None = None
    nproc: int | None = None
    nnodes: int = 1
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    wait: bool = False
    grace_s: int = 8


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
        # The first part alone: looking for the others would import it.
        top = rest[0].partition(".")[0]
        if importlib.machinery.PathFinder.find_spec(top, [str(folder), *sys.path]) is None:
            raise ConfigError(f"there is no module {rest[0]}: '{top}' is not installed and not in {folder}")
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


def find_meeting(request: LaunchRequest, environ: Mapping[str, str]) -> Meeting:
    """Where the processes meet: the options, else MASTER_ADDR and MASTER_PORT, else a free port.

    Args:
        request: What was asked for.
        environ: The environment. What an outer launcher left in it counts for nothing.

    Raises:
        ConfigError: Something is missing, or out of its range.
    """
    inherited = {} if any(name in environ for name in _OUTER_LAUNCHER) else environ
    port, given = request.master_port, inherited.get("MASTER_PORT")
    if port is None and given:
        if not given.isdigit() or not 1 <= int(given) <= LAST_PORT:
            raise ConfigError(f"MASTER_PORT={given} is no port: a number from 1 to {LAST_PORT}, or unset it")
        port = int(given)
    if request.nnodes == 1:
        if request.node_rank is not None or request.master_addr is not None:
            raise ConfigError("--node-rank and --master-addr are for several machines: give --nnodes too")
        return Meeting(1, 0, LOOPBACK, port)
    address, rank = request.master_addr or inherited.get("MASTER_ADDR"), request.node_rank
    if rank is None and environ.get("SLURM_NODEID", "").isdigit():
        rank = int(environ["SLURM_NODEID"])
    if not address or port is None or rank is None or not 0 <= rank < request.nnodes:
        raise ConfigError(
            f"--nnodes {request.nnodes} needs --master-addr, the address of machine 0, --master-port, a port that "
            f"is free there, both the same on each, and --node-rank, 0 to {request.nnodes - 1}, another on each"
        )
    return Meeting(request.nnodes, rank, address, port)
