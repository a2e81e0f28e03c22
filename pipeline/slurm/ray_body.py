"""The commands of a batch script that bring up Ray: what makes its nodes miss each other, or end early."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pipeline.terminal.check import Check, failed, warned

_OWN = re.compile(r"-m\s+pipeline\s+slurm\s+ray\s+start\b")
_START = re.compile(r"\bray\s+start\b[^\n;|&]*")
_STEP = re.compile(r"\bsrun\b[^\n;|&]*\bray\s+start\b[^\n;|&]*")
_TOKEN = re.compile(r"\bRAY_AUTH_TOKEN=[\"']?[\w-]")


def uses_ray(commands: str) -> bool:
    """Whether a script brings a cluster up."""
    return _START.search(commands) is not None


def faults_of_ray(commands: str, options: Mapping[str, str], nodes: int) -> Iterator[Check]:
    """What keeps the Ray of a script from being there, on all nodes, for as long as its program runs.

    Args:
        commands: Of the script.
        options: Of its header, long name -> value.
        nodes: How many it asks for.
    """
    commands = commands.replace("\\\n", " ")
    starts: list[str] = _START.findall(commands)
    if not starts:
        return
    if _TOKEN.search(commands):
        yield failed(
            "Slurm: token for all to read",
            "RAY_AUTH_TOKEN stands in the script, where others may read it (scontrol show job, the file itself), "
            "and who has it runs code as you",
            "RAY_AUTH_TOKEN=\"$(od -An -tx1 -N32 /dev/urandom | tr -d ' \\n')\"; export RAY_AUTH_TOKEN",
        )
    if _OWN.search(commands):
        return
    if any("--block" not in step for step in _STEP.findall(commands)):
        yield failed(
            "Slurm: Ray ends at once",
            "srun starts `ray start` without --block: it returns, the step is over, and Slurm ends what it began",
            "add --block, and & at the end of the line",
        )
    if nodes > 1 and not any("--head" not in start for start in starts):
        yield failed(
            "Slurm: Ray on one node",
            f"{nodes} nodes, and `ray start` for the head alone: the others idle",
            "srun --nodes=$((SLURM_NNODES - 1)) --exclude=... ray start --address=HEAD:PORT --block &; or have "
            "the script written: `python -m pipeline slurm write --ray`",
        )
    if any("--head" in start and "--port" not in start for start in starts):
        yield warned(
            "Slurm: one port for all",
            "`ray start --head` without --port takes 6379, as does that of another job on the same node",
            "--port=$((20000 + SLURM_JOB_ID % 10000))",
        )
    if options.get("signal") and not re.match(r"[RB]*B[RB]*:", options["signal"]) and _STEP.search(commands):
        yield warned(
            "Slurm: Ray is told too",
            f"--signal={options['signal']} reaches every process of every step: Ray ends before the run has saved",
            "start it by `python -m pipeline slurm ray start`, which lets it pass; or --signal=B:... with a trap",
        )
