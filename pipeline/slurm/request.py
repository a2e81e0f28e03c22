"""What a job is to have, in sbatch's own words, and the checks that need no Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from pipeline.errors import ConfigError
from pipeline.slurm.header import KNOWN, is_flag, is_misspelt, no_option

NOTICE_S = 300
"""Seconds before the end of its time at which a job is told, where there are that many."""
LEAST_NOTICE_S = 60
"""Slurm looks once a minute or so, and may tell a minute early."""
_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<day_hours>\d+)(?::(?P<day_minutes>\d+)(?::(?P<day_seconds>\d+))?)?"
    r"|(?P<first>\d+)(?::(?P<second>\d+)(?::(?P<third>\d+))?)?)",
    re.ASCII,
)
_ENDLESS = ("infinite", "unlimited", "-1")
_ARRAY = re.compile(r"\d+(?:-\d+(?::[1-9]\d*)?)?(?:,\d+(?:-\d+(?::[1-9]\d*)?)?)*(?:%[1-9]\d*)?", re.ASCII)
_GRES = re.compile(r"[\w.-]+(?::[\w.-]+)*(?:,[\w.-]+(?::[\w.-]+)*)*", re.ASCII)
_GPUS = re.compile(
    r"(?:^|,)(?:gres[:/])?gpu(?P<type>:(?=[^:,(=]*[A-Za-z])\w[^:,(=]*)?(?:[:=](?P<count>\d+))?(?=$|[,(])",
    re.ASCII,
)
"""A type may begin with a digit, as that of a part of a GPU: gpu:1g.10gb:2."""
_ASKS_FOR_GPUS = re.compile(r"(?:^|,)(?:gres[:/])?gpu(?=$|[:=,(])")
_NODES = re.compile(r"[\w.-]+(?:\[[\d,-]+\][\w.-]*)*(?:,[\w.-]+(?:\[[\d,-]+\][\w.-]*)*)*", re.ASCII)
_MEM = re.compile(r"\d+[KMGT]?", re.ASCII | re.IGNORECASE)
_NAME = re.compile(r"[^\s,]+")


class Kind(Enum):
    """What a job runs: the first word of the command."""

    run = "run"  # an experiment: one task, whose engine starts its workers
    sweep = "sweep"  # an agent of a sweep, of which an array has many
    launch = "launch"  # a program on every GPU, over one node or several


@dataclass(frozen=True, kw_only=True)
class DeviceNeeds:
    """What an experiment says of its devices.

    Attributes:
        widest: Devices that its widest job takes.
        on_cpu: Whether it runs on CPUs, whatever there is.
    """

    widest: int = 1
    on_cpu: bool = False


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A job of Slurm.

    Attributes:
        command: What it runs: the words of a command of this package, as ``run experiment.name=x``.
        name: Of the job.
        account: Who pays; None leaves it to Slurm, here and in what follows.
        partition: Where it waits.
        qos: With which priority and limits.
        time: How long it may take, in any of sbatch's forms.
        gres: Devices of each node, as ``gpu:8`` or ``gpu:h200:8``.
        cpus_per_task: CPUs of each node, which has one task.
        mem: Memory of each node, as ``200G``.
        nodes: Machines.
        array: Indices of an array, as ``0-3`` or ``0-15%4``.
        exclude: Nodes that it must not have.
        nodelist: Nodes that it must have.
        constraint: Features that nodes must have.
        output: File for what it prints; None for one named by its number, in the folder of submission.
        notice_s: Seconds before the end of its time at which it is told to save and stop; None for what is usual.
        requeue: Whether it goes back into the queue when it was told to stop, preempted, or its node was lost.
        others: Further options of sbatch, long name -> value.
        srun: Words that srun is given before what it starts.
        setup: Lines of shell that come first, as ``module load cuda``.
        ray: Whether it brings up a Ray cluster on its nodes, and runs on that.
        needs: What the command itself says of devices, as far as that matters here.
    """

    command: Sequence[str]
    name: str
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    time: str | None = None
    gres: str | None = None
    cpus_per_task: int | None = None
    mem: str | None = None
    nodes: int = 1
    array: str | None = None
    exclude: str | None = None
    nodelist: str | None = None
    constraint: str | None = None
    output: str | None = None
    notice_s: int | None = None
    requeue: bool = True
    others: Mapping[str, str] = field(default_factory=dict)
    srun: Sequence[str] = ()
    setup: Sequence[str] = ()
    ray: bool = False
    needs: DeviceNeeds = field(default_factory=DeviceNeeds)

    @property
    def kind(self) -> Kind:
        """What it runs."""
        return Kind(self.command[0])

    @property
    def gpus(self) -> int:
        """GPUs of each node, which has one task."""
        return gpus_of(self.gres or "") or _gpus_otherwise(self.others, self.nodes)

    @property
    def seconds(self) -> int | None:
        """How long it may take; None for no bound of its own."""
        return None if self.time is None else seconds_of(self.time)

    @property
    def notice(self) -> int:
        """Seconds before its end at which it is told; 0 for never. Of a short job it is a quarter of its time.

        A program that is launched is told only where that was asked for, since a signal that it does not expect
        ends it.
        """
        if self.notice_s is not None:
            return self.notice_s
        if self.kind is Kind.launch or not self.requeue:
            return 0
        return NOTICE_S if self.seconds is None else max(LEAST_NOTICE_S, min(NOTICE_S, self.seconds // 4))


def _gpus_otherwise(options: Mapping[str, str], nodes: int) -> int:
    """GPUs of each node by another option than ``--gres``: all of the job are spread over its nodes."""
    for name in ("gpus-per-node", "gpus-per-task", "gpus"):
        if name in options:
            count = gpus_of(",".join(f"gpu:{part}" for part in options[name].split(","))) or 0
            return -(-count // nodes) if name == "gpus" else count
    return gpus_of(options.get("tres-per-task", "")) or 0


def gpus_of(gres: str) -> int | None:
    """GPUs that ``--gres`` names, of all types together; None where it names none."""
    # Of a number that no machine has, and that Python might not even read, the first digits are enough.
    counts = [int((found["count"] or "1")[:9]) for found in _GPUS.finditer(gres)]
    return sum(counts) if counts else None


def counts_gpus(gres: str) -> bool:
    """Whether every GPU of ``--gres`` has its number: ``gpu:h200`` is one."""
    return all(found["count"] for found in _GPUS.finditer(gres))


def seconds_of(time: str) -> int | None:
    """A time as sbatch reads it: ``90`` are minutes, ``1:30`` minutes and seconds, ``1-12`` days and hours.

    Returns:
        Seconds; None where there is no bound.

    Raises:
        ValueError: It is no time.
    """
    if time.lower() in _ENDLESS:
        return None
    found = _TIME.fullmatch(time)
    if found is None:
        raise ValueError(time)
    part = {name: int(value or 0) for name, value in found.groupdict().items()}
    if found["days"] is not None:
        return (part["days"] * 24 + part["day_hours"]) * 3600 + part["day_minutes"] * 60 + part["day_seconds"]
    if found["third"] is not None:
        return part["first"] * 3600 + part["second"] * 60 + part["third"]
    return part["first"] * 60 + part["second"]


def check_request(request: JobRequest) -> None:
    """Refuse what sbatch would, and what would not do what was meant.

    Raises:
        ConfigError: The first thing that is wrong.
    """
    for problem in _problems(request):
        raise ConfigError(problem)


def _problems(request: JobRequest) -> Iterator[str]:
    yield from _odd_texts(request)
    yield from _of_form(request)
    yield from _numbers(request)
    yield from _of_kind(request)


_LONGEST = 1000
"""Characters of a value. What follows are bounds of Slurm's, or far beyond what any cluster has."""
_MOST_AGENTS = 10_000
_LARGEST_INDEX = 4_000_000
_LONGEST_NOTICE_S = 65_535
_LONGEST_S = 3650 * 86_400
_MOST = {"nodes": 65_536, "cpus-per-task": 65_535}
_MOST_GPUS = 1024
_MOST_WIDTHS = 6


def _odd_texts(request: JobRequest) -> Iterator[str]:
    given = {name: value for name, value in _texts(request).items() if value is not None}
    for name, value in (given | {"job-name": request.name}).items():
        if not value.strip():
            yield f"--{name} is empty: leave it out, or give it a value"
    for name, value in (given | {"job-name": request.name} | dict(request.others)).items():
        if not value.isprintable():
            yield f"--{name} {value!r}: without line breaks, tabs and other characters that nobody sees"
        if len(value) > _LONGEST:
            yield f"--{name} has {len(value):,} characters: at most {_LONGEST:,}, or sbatch does not take it"

    for name, value in request.others.items():
        if not value and name in KNOWN and not is_flag(name):
            yield f"--option {name}: give it a value, as in --option {name}=VALUE"
    for line in request.setup:
        if not line.replace("\t", "").isprintable():
            yield f"--setup {line!r}: one line without control characters; give --setup once for each line"
        elif line.lstrip().startswith("#SBATCH"):
            yield f"--setup {line}: an option of sbatch is no command; --option NAME=VALUE is for those"


def _texts(request: JobRequest) -> dict[str, str | None]:
    return {
        "account": request.account,
        "partition": request.partition,
        "qos": request.qos,
        "time": request.time,
        "gres": request.gres,
        "mem": request.mem,
        "array": request.array,
        "exclude": request.exclude,
        "nodelist": request.nodelist,
        "constraint": request.constraint,
        "output": request.output,
    }


_FORMS = {
    "account": (_NAME, "one word"),
    "partition": (re.compile(r"[^\s,]+(,[^\s,]+)*"), "one word, or several with commas between"),
    "qos": (_NAME, "one word"),
    "gres": (_GRES, "as gpu:8, gpu:h200:8 or gpu:4,nvme:1"),
    "mem": (_MEM, "a number of megabytes, or one with K, M, G or T: 200G"),
    "array": (_ARRAY, "indices, as 0-3, 1,5,7 or 0-15%4, of which 4 run at once"),
    "exclude": (_NODES, "names of nodes, as n1,n7 or n[1-4]"),
    "nodelist": (_NODES, "names of nodes, as n1,n7 or n[1-4]"),
}


def _of_form(request: JobRequest) -> Iterator[str]:
    for name, value in _texts(request).items():
        if value is not None and name in _FORMS and not _FORMS[name][0].fullmatch(value):
            yield f"--{name} {value}: {_FORMS[name][1]}"
    if request.gres is not None and len(_ASKS_FOR_GPUS.findall(request.gres)) != len(_GPUS.findall(request.gres)):
        yield f"--gres {request.gres}: {_FORMS['gres'][1]}"
    if request.array is not None and _ARRAY.fullmatch(request.array):
        yield from _indices(request.array)
    if request.time is not None:
        try:
            if (seconds_of(request.time) or 0) > _LONGEST_S:
                yield f"--time {request.time}: at most {_LONGEST_S // 86_400:,} days"
        except ValueError:
            yield (
                f"--time {request.time}: as 90 (minutes), 1:30:00 (hours), 2-12 (days and hours), 2-12:30 or "
                "2-12:30:00"
            )
    for name in request.others:
        if is_misspelt(name):
            yield f"--option: {no_option(name)}"
        if name in _WRITTEN:
            yield f"--option {name}: the script has a line of its own for --{name}; see --help"


def _indices(array: str) -> Iterator[str]:
    """What is wrong with an array that can be read."""
    several = array.partition("%")[0]
    ranges = [[int(part) for part in re.split("[-:]", each)] for each in several.split(",")]
    total = 0
    for low, *more in ranges:
        high, step = (*more, 1)[:2] if more else (low, 1)
        if low > high:
            yield f"--array {array}: {low}-{high} goes down; write {high}-{low}"
        if high > _LARGEST_INDEX:
            yield f"--array {array}: indices go up to {_LARGEST_INDEX:,} at most, and most clusters allow fewer"
        total += max(0, (high - low) // step + 1)
    if total > _MOST_AGENTS:
        yield f"--array {array}: {total:,} agents; at most {_MOST_AGENTS:,}"
    if several.isdigit():
        agents = f"for {several} agents write --array 0-{int(several) - 1}, " if int(several) > 1 else ""
        yield f"--array {array} is one index, and so one agent: {agents}for one leave it out"


_WRITTEN = {
    *(
        "account",
        "array",
        "constraint",
        "cpus-per-task",
        "exclude",
        "gres",
        "job-name",
        "mem",
        "nodelist",
        "nodes",
    ),
    *("no-requeue", "ntasks", "ntasks-per-node", "open-mode", "output", "partition", "qos", "requeue", "signal"),
    *("time", "wrap"),
}
"""Options that are written as fields of a request say, or that would contradict what it runs."""


def _numbers(request: JobRequest) -> Iterator[str]:
    for name, value in (("nodes", request.nodes), ("cpus-per-task", request.cpus_per_task)):
        if value is not None and value < 1:
            yield f"--{name} {value}: at least 1"
        elif value is not None and value > _MOST[name]:
            yield f"--{name} {value}: at most {_MOST[name]:,}"
    if request.gpus > _MOST_GPUS:
        yield f"--gres {request.gres}: at most {_MOST_GPUS:,} GPUs of a node"
    seconds = request.seconds
    if request.notice_s is not None and request.notice_s < LEAST_NOTICE_S:
        yield f"--notice {request.notice_s}: at least {LEAST_NOTICE_S} seconds, as Slurm looks once a minute"
    if request.notice_s is not None and request.notice_s > _LONGEST_NOTICE_S:
        yield f"--notice {request.notice_s}: at most {_LONGEST_NOTICE_S:,} seconds, the most that Slurm takes"
    if seconds is not None and request.notice and seconds < request.notice + 2 * LEAST_NOTICE_S:
        yield (
            f"--time {request.time} with a notice of {request.notice} s: the job would stop as soon as it has "
            "begun. Give it more time, a shorter --notice, or --no-requeue"
        )


def _of_kind(request: JobRequest) -> Iterator[str]:
    if request.ray and request.kind is not Kind.run:
        yield (
            f"--ray is for an experiment: {request.kind.value} "
            + (
                "has agents on many nodes as an array (--array 0-3)"
                if request.kind is Kind.sweep
                else "needs no Ray"
            )
            + ". Leave it out"
        )
    if request.kind is Kind.run and request.nodes > 1 and not request.ray:
        yield (
            f"--nodes {request.nodes}: a run has workers on one machine, unless --ray brings up a Ray cluster "
            "on all of them. Several machines also take part in a sweep as an array of agents (--array 0-3), or "
            "in a training of yours by launch"
        )
    if request.kind is Kind.sweep and request.nodes > 1:
        yield f"--nodes {request.nodes}: an agent is on one machine. An array has many of them: --array 0-3"
    if request.kind is not Kind.sweep and request.array is not None:
        yield (
            f"--array {request.array}: every task would do the same"
            + (", each on a cluster of its own" if request.ray else "")
            + ". An array is for agents of a sweep: sweep agent NAME"
        )
    if request.ray:
        yield from _of_ray(request)


def _of_ray(request: JobRequest) -> Iterator[str]:
    needs = request.needs
    if not request.gpus and not needs.on_cpu:
        yield "--ray without GPUs: ask for those of each node by --gres gpu:8, or run on its CPUs by device=cpu"
    if request.gpus and not needs.on_cpu and not is_wide_enough(needs.widest, request.gpus, request.nodes):
        yield (
            f"--gres {request.gres} --nodes {request.nodes}: the widest job of this run takes {needs.widest} GPUs "
            f"(training.gpus_per_job, generation.gpus_per_job), and a node has {request.gpus}: a job of more has "
            f"all GPUs of several nodes. Ask for {widths(request.gpus, request.nodes)} GPUs in a job, or for "
            f"--gres gpu:{needs.widest}"
        )


def is_wide_enough(width: int, gpus: int, nodes: int) -> bool:
    """Whether a job of a run through Ray finds so many GPUs: on one node, or all of several."""
    return width <= gpus or (width % gpus == 0 and width <= gpus * nodes)


def widths(gpus: int, nodes: int) -> str:
    """On how many GPUs a job of a run through Ray may be, in words: ``up to 8, or 16, 24 or 32``."""
    whole = [str(gpus * number) for number in range(2, nodes + 1)]
    if len(whole) > _MOST_WIDTHS:
        whole = [*whole[: _MOST_WIDTHS - 1], f"so on to {whole[-1]}"]
    return f"up to {gpus}" + (
        f", or {' or '.join(filter(None, [', '.join(whole[:-1]), whole[-1]]))}" if whole else ""
    )
