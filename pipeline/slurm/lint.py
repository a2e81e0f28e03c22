"""Looks through a batch script before it costs a day in the queue: what it asks for, how it starts a program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.files import open_plain
from pipeline.slurm.amounts import faults_of_amounts
from pipeline.slurm.body import (
    commands_of,
    exports,
    faults_of_commands,
    faults_of_lines,
    faults_of_torchrun,
    has_step,
    passes_cpus,
    shares_out_gpus,
    traps,
    without_texts,
)
from pipeline.slurm.header import MARK, Header, read_header
from pipeline.slurm.job import SlurmJob, Starter
from pipeline.slurm.ray_body import faults_of_ray, uses_ray
from pipeline.slurm.request import LEAST_NOTICE_S, counts_gpus, gpus_of, is_wide_enough, seconds_of
from pipeline.slurm.rules import check_slurm
from pipeline.terminal.check import Check, Verdict, failed, warned

_LARGEST = 4 << 20
"""Bytes of a script that sbatch takes, unless it was told otherwise."""
_OWN = (
    "vllm",
    "sglang",
    "torchrun",
    "torch.distributed",
    "pipeline",
    "run_parallel.py",
    "accelerate",
    "deepspeed",
)


def check_script(
    path: Path, starter: Starter | None = None, given: Mapping[str, str] | None = None
) -> list[Check]:
    """Check a batch script.

    Args:
        path: The script.
        starter: Who starts the ranks of its program; None guesses from the command, Lightning unless it names a
            launcher and there is more than one GPU or task.
        given: Options of the command line of sbatch, which win over those of the script.

    Returns:
        What is wrong with it, or one check that passed.

    Raises:
        ConfigError: It cannot be read, or is no batch script.
    """
    try:
        with open_plain(path, follow=True) as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > _LARGEST:
        raise ConfigError(f"{path} is larger than {_LARGEST:,} bytes, which sbatch does not take")
    text = data.decode(errors="replace")
    if MARK.lower() not in text.lower().replace("# ", "#"):
        raise ConfigError(f"{path} has no #SBATCH line. Give the file that you would give to sbatch.")
    return check_text(text, starter, given)


def check_text(text: str, starter: Starter | None = None, given: Mapping[str, str] | None = None) -> list[Check]:
    """Check the text of a batch script; see `check_script`."""
    lines = without_texts(text.replace("\r\n", "\n").split("\n"))
    read = read_header(lines)
    read.options.update(given or {})
    job = _job(lines, read.options, starter)
    several = job.nodes * job.here > 1
    faults = [*_whole(text), *_of_header(read), *faults_of_lines(lines, several=several), *_joined(lines, read)]
    faults += faults_of_amounts(read.options, job.nodes)
    faults += faults_of_commands(
        lines, several=several or _nodes_later(lines, read), array="array" in read.options, gpus=job.gpus or 0
    )
    faults += faults_of_torchrun(commands_of(lines), job.nodes)
    faults += faults_of_ray(commands_of(lines), read.options, job.nodes)
    of_job = check_slurm(job)
    if not faults:
        return of_job
    return [*faults, *(check for check in of_job if check.verdict is not Verdict.PASS)]


def _nodes_later(lines: Sequence[str], read: Header) -> bool:
    """Whether the number of nodes is left to the command line of sbatch, and the script counts them."""
    return "nodes" not in read.options and "SLURM_NNODES" in commands_of(lines)


def read_job(lines: Sequence[str], starter: Starter | None = None) -> SlurmJob:
    """What a script asks for."""
    lines = without_texts(lines)
    return _job(lines, read_header(lines).options, starter)


def _job(lines: Sequence[str], options: Mapping[str, str], starter: Starter | None) -> SlurmJob:
    body = commands_of(lines)
    tasks, each = _number(options.get("ntasks")), _number(options.get("ntasks-per-node"))
    nodes = _number(options.get("nodes", "").rpartition("-")[2]) or -(-(tasks or 1) // (each or tasks or 1))
    gpus = _gpus_per_node(options, nodes, tasks) or 0
    per_gpu, guess = _number(options.get("ntasks-per-gpu")), _guess(body)
    job = SlurmJob(
        starter=starter or guess,
        guessed=starter is None and guess is Starter.lightning and "lightning" not in body.lower(),
        nodes=nodes,
        gpus=gpus,
        tasks=tasks,
        tasks_per_node=each or (per_gpu and gpus and per_gpu * gpus) or None,
        cpus_per_task=_number(options.get("cpus-per-task")),
        gpus_per_task=_count(options.get("gpus-per-task")),
        gpu_bind=options.get("gpu-bind"),
        mask=exports(lines).get("CUDA_VISIBLE_DEVICES"),
        loaders=_number(_last(r"num_workers[= ]([0-9]+)", body)) or 0,
        in_step=has_step(body),
        widest=_widest(body, gpus, nodes),
        clusters="array" in options and uses_ray(body),
        ray=uses_ray(body),
        on_cpu=_on_cpu(body),
    )
    per_each = _number(options.get("cpus-per-gpu"))
    if job.cpus_per_task is None and per_each and job.here == 1:
        job = replace(job, cpus_per_task=per_each * gpus)
    return job


# -- the header ------------------------------------------------------------------------------------------------


def _whole(text: str) -> Iterator[Check]:
    if "\r\n" in text:
        yield failed(
            "Slurm: DOS line ends",
            "its lines end as in DOS (\\r\\n), and sbatch refuses it",
            "sed -i 's/\\r$//' FILE; and have the editor write Unix lines",
        )
    if not text.startswith("#!"):
        yield failed(
            "Slurm: no interpreter",
            "its first line does not begin with #!, and sbatch refuses it",
            "let the very first line be #!/bin/bash",
        )


def _of_header(read: Header) -> Iterator[Check]:
    for number, line in read.late:
        yield failed(
            "Slurm: late line",
            f"line {number}, {line!r}, comes after a command, so sbatch ignores it",
            "move it up",
        )
    for number, line in read.misspelt:
        yield failed(
            "Slurm: not read",
            f"line {number}, {line!r}, is a remark to sbatch: it reads lines that begin with #SBATCH, "
            "so written and in the first column",
            "write it so; or ##SBATCH where it is not meant to count",
        )
    for number, line in read.continued:
        yield failed(
            "Slurm: continued line",
            f"line {number}, {line!r}, ends in a backslash, which continues no line for sbatch",
            "begin each line with #SBATCH",
        )
    for number, name in read.unknown.items():
        yield warned(
            "Slurm: unknown option",
            f"line {number}: Slurm itself has no option --{name}; sbatch takes it only where a plugin has it",
            "see sbatch --help on the cluster",
        )
    for number, problem in read.refused.items():
        yield failed("Slurm: refused line", f"line {number}: {problem}", "see man sbatch")
    for number, line in read.lines:
        if found := re.search(r"\$\{?\w+|=~/", line.partition(" #")[0]):
            yield warned(
                "Slurm: no shell",
                f"line {number} has {found[0].lstrip('=')!r}, which sbatch does not replace: no shell reads it",
                "write it out, or give the option on the command line of sbatch; file names may have %j, %u, %x",
            )
        if found := re.search(r"^[^'\"]*[^\s\\'\"#]#(\S+)", line.removeprefix(MARK)):
            yield failed(
                "Slurm: cut off",
                f"line {number}: # begins a remark for sbatch, in a word too, so '#{found[1]}' is lost",
                "write \\# for it",
            )
        if not counts_gpus(read_header([line]).options.get("gres", "")):
            yield warned("Slurm: no number", f"{line} asks for one GPU", "write the number: --gres=gpu:8")
    if read.others:
        yield warned(
            "Slurm: several components",
            "lines after `hetjob` are of another component of the job, and were not looked at",
            "check each component in a script of its own",
        )
    try:
        seconds_of(read.options.get("time", "1"))
    except ValueError:
        yield failed(
            "Slurm: no time", f"--time={read.options['time']}: sbatch refuses it", "as in --time=1-12:30:00"
        )
    yield from _output(read.options)


def _output(options: Mapping[str, str]) -> Iterator[Check]:
    folder = Path(options.get("output", "")).parent
    if "%" not in str(folder) and not (Path(options.get("chdir", ".")) / folder).is_dir():
        yield warned(
            "Slurm: no folder for the output",
            f"--output={options['output']}: there is no folder {folder}, and Slurm makes none: the job would fail "
            "without a word",
            f"mkdir -p {folder}",
        )
    if "array" in options and not re.search(r"%\d*[aAjJx]", options.get("output", "%a")):
        yield warned(
            "Slurm: one output for all",
            f"--output={options['output']} with --array: all tasks write into one file",
            "--output=slurm-%A_%a.out",
        )


# -- the header and the commands together ------------------------------------------------------------------------


def _joined(lines: Sequence[str], read: Header) -> Iterator[Check]:
    """What happens when the time is up, when others come first, and what srun leaves behind."""
    options, body = read.options, commands_of(lines)
    notice = _notice(options.get("signal", ""))
    if notice is not None:
        yield from _told(notice, options, lines)
    requeues = "requeue" in options
    if requeues and notice is not None and not re.search(r"scontrol\s+requeue\b", body):
        yield warned(
            "Slurm: not put back",
            "--requeue puts a job back that was preempted or whose node was lost, not one that has ended "
            "since its time was up",
            'end the script by: if it was told to stop (exit code 143), scontrol requeue "$SLURM_JOB_ID"',
        )
    if requeues and "output" in options and options.get("open-mode") != "append":
        yield warned(
            "Slurm: output lost",
            "a job that is put back into the queue empties its output when it begins again",
            "#SBATCH --open-mode=append",
        )
    if has_step(body) and "cpus-per-task" in options and not passes_cpus(body):
        yield warned(
            "Slurm: one CPU for a step",
            "srun does not take --cpus-per-task over from the job (since Slurm 22.05): the step has one CPU",
            'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK" before srun',
        )


def _told(notice: tuple[bool, str, int], options: Mapping[str, str], lines: Sequence[str]) -> Iterator[Check]:
    to_shell, signal, seconds = notice
    body = commands_of(lines)
    shown = f"--signal={options['signal']}"
    if not to_shell and not has_step(body):
        yield failed(
            "Slurm: nobody is told",
            f"{shown} goes to what srun has started, and nothing is: the program is killed when the time is up",
            "start the program by srun",
        )
    if to_shell and not traps(body, signal) and not re.search(r"^\s*exec\s", body, re.MULTILINE):
        yield failed(
            "Slurm: the shell ends",
            f"{shown} goes to the shell of the script, which {signal} ends, and the job with it",
            f"leave out B: and start the program by srun; or `exec` it, or have a `trap` for {signal}",
        )
    limit = _limit(options)
    if limit is not None and limit <= seconds + LEAST_NOTICE_S:
        yield warned(
            "Slurm: told at once",
            f"{shown} with --time={options['time']}: the job is told to stop about when it begins",
            "ask for more time, or tell it later",
        )


def _limit(options: Mapping[str, str]) -> int | None:
    """Seconds that the job may take; None where it does not say, or not in a way that can be read."""
    try:
        return seconds_of(options["time"]) if "time" in options else None
    except ValueError:
        return None


def _notice(text: str) -> tuple[bool, str, int] | None:
    """Whether the shell is told, by which signal and how many seconds before the end; None for no notice."""
    if not (found := re.fullmatch(r"(?:([RB]+):)?(?:SIG)?(\w+)(?:@(\d+))?", text, re.ASCII)):
        return None
    return "B" in (found[1] or ""), found[2], int((found[3] or "60")[:9])


# -- numbers -----------------------------------------------------------------------------------------------------


def _gpus_per_node(options: Mapping[str, str], nodes: int, tasks: int | None) -> int | None:
    if (found := gpus_of(options.get("gres", ""))) is not None:
        return found
    for name, share in (("gpus-per-node", 1), ("gpus", nodes)):
        count = _count(options.get(name))
        if count is not None:
            return -(-count // share)
    each = _count(options.get("gpus-per-task"))
    if each is None:
        each = gpus_of(options.get("tres-per-task", ""))
    if each is None:
        return None
    here = _number(options.get("ntasks-per-node")) or -(-(tasks or nodes) // nodes)
    return each * here


def _count(text: str | None) -> int | None:
    """GPUs of ``a100:4,h100:2`` or ``8``, together."""
    counts = [_number(part.rpartition(":")[2]) for part in (text or "").split(",")]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _guess(body: str) -> Starter:
    if any(word in body for word in _OWN) or shares_out_gpus(body):
        return Starter.itself
    return Starter.lightning


def _widest(body: str, gpus: int, nodes: int) -> int:
    asked = re.findall(r"\b(?:training|generation)\.gpus_per_job=([0-9]{1,9})\b", body)
    width = 1 if _on_cpu(body) else max(map(int, asked), default=1)
    return min(width, gpus) if gpus and uses_ray(body) and is_wide_enough(width, gpus, nodes) else width


def _on_cpu(body: str) -> bool:
    return re.search(r"\bdevice=cpu\b", body) is not None


def _last(pattern: str, text: str) -> str | None:
    found: list[str] = re.findall(pattern, text)
    return found[-1] if found else None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 9 else None
