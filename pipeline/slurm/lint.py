"""Reads a batch script before it costs a day in the queue: its #SBATCH lines and how it starts its program."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.slurm.rules import SlurmJob, Starter, check_slurm
from pipeline.terminal.check import Check, failed, warned

_SHORT = {"-n": "ntasks", "-N": "nodes", "-c": "cpus-per-task", "-G": "gpus"}
_GPUS = re.compile(r"(?:^|,)(?:gres[:/])?gpu(?P<type>:[A-Za-z][^:,(=]*)?(?:[:=](?P<count>\d+))?(?=$|[,(])")
_EXPORT = re.compile(r"^\s*export\s+([A-Z_]+)=(\S*)")
_SETS_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
_OWN = ("torchrun", "torch.distributed", "pipeline", "run_parallel.py", "accelerate", "deepspeed")


def check_script(path: Path, starter: Starter | None = None) -> Iterator[Check]:
    """Check a batch script.

    Args:
        path: The script.
        starter: Who starts the ranks of its program; None guesses from the command, Lightning unless it names a
            launcher and there is more than one GPU or task.

    Raises:
        ConfigError: It cannot be read, or is no batch script.
    """
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if "#SBATCH" not in text:
        raise ConfigError(f"{path} has no #SBATCH line. Give the file that you would give to sbatch.")
    lines = text.splitlines()
    yield from _check_lines(lines)
    yield from check_slurm(read_job(lines, starter))


def read_job(lines: Sequence[str], starter: Starter | None = None) -> SlurmJob:
    """What a script asks for."""
    options = _options(lines)
    commands = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    exports = {match[1]: match[2].strip("\"'") for line in lines if (match := _EXPORT.match(line))}
    nodes = _number(options.get("nodes")) or 1
    tasks = _number(options.get("ntasks"))
    job = SlurmJob(
        starter=starter or _guess(commands),
        nodes=nodes,
        gpus=_gpus_per_node(options, nodes, tasks),
        tasks=tasks,
        tasks_per_node=_number(options.get("ntasks-per-node")),
        cpus_per_task=_number(options.get("cpus-per-task")),
        gpus_per_task=_number(options.get("gpus-per-task")),
        gpu_bind=options.get("gpu-bind"),
        mask=exports.get("CUDA_VISIBLE_DEVICES"),
        loaders=_number(_last(r"num_workers[= ](\d+)", commands)) or 0,
        in_step=bool(re.search(r"(^|[\s;&|(])srun\s", commands)),
    )
    return replace(job, gpus=job.gpus or 0)


def _check_lines(lines: Sequence[str]) -> Iterator[Check]:
    began = False
    for number, line in enumerate(lines, 1):
        bare = line.strip()
        if bare.startswith("#SBATCH") and began:
            yield failed(
                "Slurm: late line",
                f"line {number}, {bare!r}, comes after a command, so sbatch ignores it",
                "move it up",
            )
        if bare and not bare.startswith("#"):
            began = True
        if re.search(r"\\\s+(#.*)?$", line) and not bare.startswith("#"):
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
    for line in lines:
        match = _GPUS.search(_options([line]).get("gres", ""))
        if match and match["count"] is None:
            yield warned("Slurm: no number", f"{line.strip()} asks for one GPU", "write the number: --gres=gpu:8")


def _options(lines: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        if not line.startswith("#SBATCH"):
            continue
        words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
        while words:
            word = words.pop(0)
            name, equals, value = word.partition("=")
            if not equals and words and not words[0].startswith("-"):
                value = words.pop(0)
            found[_SHORT.get(name, name.removeprefix("--"))] = value
    return found


def _gpus_per_node(options: dict[str, str], nodes: int, tasks: int | None) -> int | None:
    if match := _GPUS.search(options.get("gres", "")):
        return int(match["count"] or 1)
    for name, share in (("gpus-per-node", 1), ("gpus", nodes)):
        count = _number(options.get(name, "").rpartition(":")[2])
        if count is not None:
            return -(-count // share)
    each = _number(options.get("gpus-per-task", "").rpartition(":")[2])
    if each is None:
        return None
    here = _number(options.get("ntasks-per-node")) or -(-(tasks or nodes) // nodes)
    return each * here


def _guess(commands: str) -> Starter:
    if any(word in commands for word in _OWN):
        return Starter.itself
    return Starter.lightning


def _last(pattern: str, text: str) -> str | None:
    found: list[str] = re.findall(pattern, text)
    return found[-1] if found else None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
