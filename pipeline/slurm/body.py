"""The commands of a batch script, looked at line by line: what breaks them, and how they start the program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pipeline.terminal.check import Check, failed, warned

_EXPORT = re.compile(r"^\s*export\s+([A-Z_]+)=(\S*)")
_SETS_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
_REMARK_BEHIND = re.compile(r"\\\s+(#.*)?$")
_STEP = re.compile(r"(?:^|[\s;&|(])srun\s", re.MULTILINE)
_CPUS = re.compile(r"SRUN_CPUS_PER_TASK|\bsrun\b[^\n;|&]*\s(?:-c\s*\S|--cpus-per-task)")


def commands_of(lines: Sequence[str]) -> str:
    """The commands, without remarks that have a line of their own."""
    return "\n".join(line for line in lines if not line.lstrip().startswith("#"))


def exports(lines: Sequence[str]) -> dict[str, str]:
    """Variables that are set for programs."""
    return {match[1]: match[2].strip("\"'") for line in lines if (match := _EXPORT.match(line))}


def has_step(commands: str) -> bool:
    """Whether srun starts something."""
    return _STEP.search(commands) is not None


def passes_cpus(commands: str) -> bool:
    """Whether srun is told how many CPUs a task has."""
    return _CPUS.search(commands.replace("\\\n", " ")) is not None


_TORCHRUN = re.compile(r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b")
_SEVERAL = re.compile(r"--nnodes\b|\bPET_NNODES\b")
_MEETING = re.compile(r"--(?:rdzv|master)[_-](?:endpoint|addr)\b|\bPET_(?:RDZV_ENDPOINT|MASTER_ADDR)\b")


def faults_of_torchrun(commands: str, nodes: int) -> Iterator[Check]:
    """What keeps the torchruns of several nodes from finding each other.

    Args:
        commands: Of the script.
        nodes: How many it asks for.
    """
    if nodes < 2 or not _TORCHRUN.search(commands) or _MEETING.search(commands):
        return
    if _SEVERAL.search(commands):
        yield failed(
            "Slurm: nowhere to meet",
            f"torchrun on {nodes} nodes without --rdzv-endpoint or --master-addr: each waits for the others on "
            "its own node until it gives up",
            '--rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$(hostname):29500"; or start the '
            "program by `python -m pipeline launch`, as `slurm write` does",
        )
    else:
        yield warned(
            "Slurm: nodes by themselves",
            f"torchrun without --nnodes on {nodes} nodes: each is a training of its own, and all write the same "
            "checkpoints",
            "--nnodes=$SLURM_NNODES with --rdzv-endpoint, unless you mean one training on each node",
        )


def traps(commands: str, signal: str) -> bool:
    """Whether the shell does something of its own at a signal."""
    return re.search(rf"\btrap\s.*\b(?:SIG)?{re.escape(signal)}\b", commands) is not None


def faults_of_lines(lines: Sequence[str]) -> Iterator[Check]:
    """What is wrong with single lines."""
    continued = False
    for number, line in enumerate(lines, 1):
        bare = line.strip()
        if continued and bare.startswith("#"):
            yield failed(
                "Slurm: broken command",
                f"line {number} is a remark in the middle of a command, which ends there: what follows is lost",
                "put the remark before the command",
            )
        if _REMARK_BEHIND.search(line) and not bare.startswith("#"):
            yield failed(
                "Slurm: broken command",
                f"line {number} has something after its backslash, so the command ends there and the rest is lost",
                "let the backslash be the very last character; put remarks on lines of their own",
            )
        if (match := _EXPORT.match(line)) and match[1] in _SETS_RANKS:
            yield failed(
                "Slurm: ranks by hand",
                f"line {number} sets {match[1]}: frameworks take it for a sign that the ranks exist already",
                "leave it out; the launcher sets it",
            )
        continued = line.endswith("\\") and not bare.startswith("#")
