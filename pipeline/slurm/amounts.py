"""Numbers of a batch script that sbatch reads otherwise than they were meant, or that exclude each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pipeline.terminal.check import Check, failed, warned

_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
_LEAST_MB = 1024
"""Less memory than a Python with torch takes before it does anything."""


def faults_of_amounts(options: Mapping[str, str], nodes: int) -> Iterator[Check]:
    """What is wrong with memory, time and numbers of GPUs.

    Args:
        options: Of the header, long name -> value.
        nodes: How many it asks for.
    """
    yield from _memory(options)
    yield from _time(options.get("time", ""))
    total, each = (_number(options.get(name, "")) for name in ("gpus", "gpus-per-node"))
    if total and each and (total < each or ("nodes" in options and total != each * nodes)):
        yield failed(
            "Slurm: GPUs twice",
            f"--gpus={options['gpus']} are those of all nodes, and --gpus-per-node={options['gpus-per-node']} "
            f"those of one, of which there {'are' if nodes > 1 else 'is'} {nodes}: sbatch refuses it",
            f"leave out --gpus, or --gpus={each * nodes}",
        )


def _memory(options: Mapping[str, str]) -> Iterator[Check]:
    given = [name for name in _MEMORY if name in options]
    if len(given) > 1:
        yield failed(
            "Slurm: memory twice",
            " and ".join(f"--{name}={options[name]}" for name in given) + " exclude each other: sbatch refuses it",
            f"keep --{given[0]}={options[given[0]]} alone",
        )
    for name in given:
        value = options[name]
        if (number := _number(value)) is not None and 0 < number < _LEAST_MB:
            yield failed(
                "Slurm: megabytes",
                f"--{name}={value} are {value} megabytes, in which no training begins",
                f"#SBATCH --{name}={value}G",
            )


def _time(text: str) -> Iterator[Check]:
    if (found := re.fullmatch(r"(\d+):(\d+)", text)) and found[1].strip("0"):
        yield warned(
            "Slurm: minutes",
            f"--time={text} are {int(found[1])} minutes and {int(found[2])} seconds",
            f"--time={text}:00 for hours and minutes; --time={int(found[1])} if minutes are meant",
        )
    if text and not text.strip("0:-"):
        yield warned(
            "Slurm: no limit",
            f"--time={text} asks for a job without end: where a partition has a longest time it waits for ever, "
            "and it fits into no gap",
            "--time=24:00:00, as long as it may take",
        )


def _number(text: str) -> int | None:
    found = re.fullmatch(r"(?:[\w.-]*:)?(\d{1,8})", text)
    return int(found[1]) if found else None
