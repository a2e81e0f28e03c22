"""What a trial runs, seen from outside: whether it starts ranks itself, and what must not leak into it. Pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.runs.tracking.trackers import is_of_other_run
from pipeline.sweeps.reporting import VARIABLE

STARTS_RANKS = {"torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "srun", "ray"}
_MODULES = {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "pipeline"}
_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def is_of_outer(name: str) -> bool:
    """Whether a variable ties a program to a run that somebody else tracks, or to the trial of an outer sweep."""
    return name == VARIABLE or is_of_other_run(name)


def as_ranks(words: Sequence[str]) -> list[str] | None:
    """A command as it is started once on each device: without ``env`` and ``python`` where a script follows.

    Returns:
        What `find_program` understands; None for a command that starts processes on its devices by itself.
    """
    rest = _without_env(words)
    if rest and _PYTHON.fullmatch(Path(rest[0]).name) and len(rest) > 1:
        script = [word for word in rest[1:] if word not in ("-u", "-B")]
        if script[:1] == ["-m"]:
            return None if script[1:2] and script[1] in _MODULES else script
        if script and script[0].endswith(".py"):
            return script
    return None if rest and Path(rest[0]).name in STARTS_RANKS else rest


def as_typed(words: Sequence[str]) -> list[str]:
    """A command as a user types it: without W&B's ``env``, and `python` for the whole path of this one."""
    rest = _without_env(words)
    return ["python", *rest[1:]] if rest[:1] == [sys.executable] else rest


def _without_env(words: Sequence[str]) -> list[str]:
    rest = list(words)
    return rest[1:] if len(rest) > 1 and Path(rest[0]).name == "env" and not _is_special(rest[1]) else rest


def _is_special(word: str) -> bool:
    """Whether ``env`` has something to do itself."""
    return word.startswith("-") or _ASSIGNMENT.match(word) is not None
