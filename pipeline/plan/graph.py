"""The plan: jobs, their keys and what each waits for, a DAG that can be printed, drawn and saved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from pipeline.config.schema import UNLESS_DEFAULT
from pipeline.errors import CycleError, PlanError

if TYPE_CHECKING:
    import networkx as nx

# -- keys --------------------------------------------------------------------------------------------------------
# What determines a result, and the hash that names it.


FORMAT = 1
"""Raised when the meaning of stored files changes, which makes every older result unknown."""


_CONFIG = "config"
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def result_key(determined_by: Mapping[str, Any]) -> str:
    """Hash plain data into a key: 40 hexadecimal digits of the SHA-256 of its canonical JSON."""
    return _hashed(_canonical({"format": FORMAT, **determined_by}))


class ResultKeys:
    """Makes the keys of many jobs, see `result_key`; what thousands of them share is made text once."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[object, str]] = {}

    def key(self, determined_by: Mapping[str, Any], config: object) -> str:
        """The key of plain data and a configuration, which is the same object for all jobs that share it."""
        parts = {"format": FORMAT, **determined_by}
        before = _canonical({name: value for name, value in parts.items() if name < _CONFIG})
        after = _canonical({name: value for name, value in parts.items() if name > _CONFIG})  # the format at least
        opened = before[:-1] + ("," if len(before) > 2 else "")
        return _hashed(f'{opened}"{_CONFIG}":{self._text(config)},{after[1:]}')

    def _text(self, config: object) -> str:
        # With the object itself, so that no other has its number meanwhile.
        if id(config) not in self._texts:
            self._texts[id(config)] = config, _canonical(config)
        return self._texts[id(config)][1]


def _hashed(text: str, digits: int = 40) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


class SharedConfigs:
    """Configurations of stages by digest. Thousands of shards share a few, so a saved plan has each once."""

    def __init__(self) -> None:
        self.table: dict[str, Any] = {}
        self._digests: dict[int, tuple[object, str]] = {}

    def shorten(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Put a digest in the place of the sections under ``config``."""
        if _CONFIG not in data:
            return dict(data)
        config = data[_CONFIG]  # the planner gives jobs of one stage the same object
        if id(config) not in self._digests:
            self._digests[id(config)] = config, _hashed(_canonical(config), 16)
            self.table[self._digests[id(config)][1]] = config
        return {**data, _CONFIG: self._digests[id(config)][1]}


def determining(config: object) -> Any:
    """The part of a configuration that can change a result, as plain data.

    Fields whose metadata say ``affects_result: False`` (worker counts, loader processes, ...) are left out, so
    that changing them finds the same results again. So are options (`config.schema.option`) at their defaults.
    """
    if is_dataclass(config):
        return {
            item.name: determining(getattr(config, item.name)) for item in fields(config) if _counts(item, config)
        }
    if isinstance(config, Enum):
        return config.name
    if isinstance(config, Mapping):
        return {str(name): determining(value) for name, value in config.items()}
    if isinstance(config, (list, tuple)):
        return [determining(value) for value in config]
    return config


def _counts(item: Field[Any], config: object) -> bool:
    if item.metadata.get(UNLESS_DEFAULT, False) and getattr(config, item.name) == item.default:
        return False
    return bool(item.metadata.get("affects_result", True))


# -- job ---------------------------------------------------------------------------------------------------------
# A job: the unit that is scheduled, retried and stored. Plain data, so a plan can be printed and saved.


ANY = "any"
"""Stands in names of chains for the seed of work that has none."""
WORKER_LOAD_S = 8.0
"""What a worker takes to its first job, until that was measured."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One stage of a round, or one shard of it.

    Attributes:
        id: Readable and unique in the plan, for example ``addition/tiny/s0/PITA/r1/generate/003``.
        key: Hash of everything that determines the result; names the stored output.
        entry: What a worker runs, ``module:function``.
        payload: The argument of `entry`, plain JSON data.
        inputs: Input name -> keys of the stored outputs it reads, in a fixed order.
        determined_by: What `key` is the hash of, together with `inputs`; so that runs can be compared.
        algo: Algorithm, or ``reference`` for work that every chain of a dataset and model shares.
        dataset: Name of the dataset.
        model: Name of the model.
        reference: Seed of the reference that its chain rests on, or None where there is no such seed: the model is
            not made from one, or the work is the same for all references.
        seed: Seed of the chain, or None where the result does not depend on it.
        round: 0 for the reference, then 1 and up.
        stage: Name of the stage.
        shard: Index of the shard, or None for a stage that is not split.
        samples: How many samples the job handles; the unit of progress.
        seconds: Estimated run time, used for ordering and for the plan's estimate only.
        size_s: What it was estimated to take before anything was timed, in seconds: how much work it is.
        priority: Of jobs that could start, those with the largest do first; see `priorities`.
        affinity: Key of the model it works with; workers that hold that model are preferred.
        devices: How many devices it needs at once.
        memory_mb: Memory that it takes of each device, in MiB, where that is said by hand; None leaves it to what
            is measured.
        weights: Patterns of the names of files in its output that hold weights of models that it has trained; none
            where it trains none, or a reference.
        memory_kind: Names the jobs that take as much memory as this one; "" for one that is like no other.
    """

    id: str
    key: str
    entry: str
    payload: Mapping[str, Any]
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    determined_by: Mapping[str, Any] = field(default_factory=dict)
    algo: str = ""
    dataset: str = ""
    model: str = ""
    reference: int | None = None
    seed: int | None = None
    round: int = 0
    stage: str = ""
    shard: int | None = None
    samples: int = 0
    seconds: float = 1.0
    size_s: float = 0.0
    priority: float = 0.0
    affinity: str = ""
    devices: int = 1
    memory_mb: int | None = None
    memory_kind: str = ""
    weights: tuple[str, ...] = ()

    @property
    def chain(self) -> str:
        """The chain it belongs to, see `chain_name`, which names the reference where its id does."""
        named = self.id.startswith(f"{place_name(self.dataset, self.model, self.reference)}/")
        return chain_name(self.dataset, self.model, self.reference if named else None, self.seed, self.algo)


def place_name(dataset: str, model: str, reference: int | None) -> str:
    """What chains have in common, as ``dataset/model``, or ``dataset/model/ref1`` of one of several references."""
    return f"{dataset}/{model}" if reference is None else f"{dataset}/{model}/ref{reference}"


def chain_name(dataset: str, model: str, reference: int | None, seed: int | None, algo: str) -> str:
    """A chain as ``dataset/model/s0/ALGO``; shared work has no seed of its own.

    Args:
        dataset: Name of the dataset.
        model: Name of the model.
        reference: Seed of the reference, where the model has several; else None.
        seed: Seed of the chain, or None.
        algo: Algorithm.
    """
    return f"{place_name(dataset, model, reference)}/{ANY if seed is None else f's{seed}'}/{algo}"


def duration_name(job: Job) -> str:
    """Under which name the run time of a job is remembered."""
    return duration_kind(job.dataset, job.model, job.algo, job.stage, job.devices)


def duration_kind(dataset: str, model: str, algo: str, stage: str, devices: int) -> str:
    """The same of a job that is still to be made."""
    name = f"{dataset}/{model}/{algo}/{stage}"
    return name if devices == 1 else f"{name} on {devices} devices"


class Plan:
    """Jobs and their edges. Immutable once built.

    Attributes:
        jobs: Job id -> job, in the order in which they were planned.
    """

    def __init__(self, jobs: Iterable[Job], edges: Iterable[tuple[str, str]]) -> None:
        self.jobs: dict[str, Job] = {}
        for job in jobs:
            if job.id in self.jobs:
                raise PlanError(f"two jobs have the id '{job.id}'")
            self.jobs[job.id] = job
        # Lists, as plans have a hundred thousand edges; those of jobs that have none are not made.
        self._readers: dict[str, list[str]] = {}
        self._inputs: dict[str, list[str]] = {}
        for upstream, downstream in edges:
            missing = next((name for name in (upstream, downstream) if name not in self.jobs), None)
            if missing is not None:
                raise PlanError(f"an edge names '{missing}', which is no job")
            self._readers.setdefault(upstream, []).append(downstream)
            self._inputs.setdefault(downstream, []).append(upstream)
        for ids in (*self._readers.values(), *self._inputs.values()):
            if len(ids) != len(distinct := dict.fromkeys(ids)):
                ids[:] = distinct
        self._order = self._sorted()

    def _sorted(self) -> list[Job]:
        """The jobs, each after all that it reads.

        Raises:
            CycleError: There is no such order.
        """
        waits_for = {job_id: len(inputs) for job_id, inputs in self._inputs.items()}
        order = [job for job in self.jobs.values() if job.id not in waits_for]
        for job in order:  # which grows
            for reader in self._readers.get(job.id, ()):
                waits_for[reader] -= 1
                if not waits_for[reader]:
                    order.append(self.jobs[reader])
        if len(order) == len(self.jobs):
            return order
        import networkx as nx

        circle = (job_id for job_id, _ in nx.find_cycle(self.graph))
        raise CycleError(f"these jobs wait for each other: {' -> '.join(circle)}")

    @cached_property
    def graph(self) -> nx.DiGraph[str]:
        """Job ids as nodes, an edge from each job to those that read its output; as networkx has it."""
        import networkx as nx  # which takes long to import, and a run never does

        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(self.jobs)
        graph.add_edges_from(self.edges())
        return graph

    def edges(self) -> Iterator[tuple[str, str]]:
        """Pairs of job ids, one whose output the other reads, in the order of the former."""
        for job_id in self.jobs:
            for reader in self._readers.get(job_id, ()):
                yield job_id, reader

    def longest_paths(
        self, seconds: Mapping[str, float], after_s: Mapping[str, float] = MappingProxyType({})
    ) -> dict[str, float]:
        """Length of the longest path from each job to the end of the plan, itself included.

        Args:
            seconds: Job id -> what it takes.
            after_s: Job id -> what comes after it at least, whoever reads its output.
        """
        paths: dict[str, float] = {}
        for job in reversed(self._order):
            after = max(map(paths.__getitem__, self._readers.get(job.id, ())), default=0.0)
            paths[job.id] = seconds[job.id] + max(after, after_s.get(job.id, 0.0))
        return paths

    def longest_paths_until(self, seconds: Mapping[str, float]) -> dict[str, float]:
        """Length of the longest path that ends with each job, itself included.

        Args:
            seconds: Job id -> what it takes.
        """
        paths: dict[str, float] = {}
        for job in self._order:
            before = max(map(paths.__getitem__, self._inputs.get(job.id, ())), default=0.0)
            paths[job.id] = seconds[job.id] + before
        return paths

    def needs(self, job_ids: Iterable[str]) -> set[str]:
        """Ids of the jobs that some jobs need, themselves included."""
        found: set[str] = set()
        pending = list(job_ids)
        while pending:
            job_id = pending.pop()
            if job_id not in found:
                found.add(job_id)
                pending += self._inputs.get(job_id, ())
        return found

    def up_to(self, job_ids: Iterable[str]) -> Plan:
        """The part of the plan that some jobs need, themselves included."""
        kept = self.needs(job_ids)
        edges = [edge for edge in self.edges() if edge[1] in kept]
        return Plan([job for job in self.jobs.values() if job.id in kept], edges)

    def inputs(self, job_id: str) -> list[str]:
        """Ids of the jobs whose outputs a job reads."""
        return list(self._inputs.get(job_id, ()))

    def readers(self, job_id: str) -> list[str]:
        """Ids of the jobs that read a job's output."""
        return list(self._readers.get(job_id, ()))

    def rounds(self) -> dict[int, list[Job]]:
        """Jobs by round, both in ascending order."""
        grouped: dict[int, list[Job]] = {}
        for job in self.jobs.values():
            grouped.setdefault(job.round, []).append(job)
        return dict(sorted(grouped.items()))

    def to_json(self, stored: Collection[str] = ()) -> dict[str, Any]:
        """The plan as plain data, for ``plan.json``; `pipeline.plan.recorded` writes and reads it.

        Args:
            stored: Ids of the jobs that need not run.
        """
        configs, found = SharedConfigs(), set(stored)
        return {
            "key_format": FORMAT,
            "jobs": [_plain(job, configs) for job in self.jobs.values()],
            "edges": [list(edge) for edge in self.edges()],
            "stored": [job_id for job_id in self.jobs if job_id in found],
            "sections": configs.table,
        }


def _plain(job: Job, configs: SharedConfigs) -> dict[str, Any]:
    determined_by = configs.shorten(job.determined_by)
    payload = configs.shorten(job.payload)
    return {
        **vars(job),
        "inputs": {name: list(keys) for name, keys in job.inputs.items()},
        # Most of a payload is what determines the result; it is written once, under that name.
        "payload": {
            name: value
            for name, value in payload.items()
            if name not in determined_by or determined_by[name] != value
        },
        "determined_by": determined_by,
    }


# -- pending -----------------------------------------------------------------------------------------------------
# What a plan still has to run, given what is stored.


def missing_jobs(
    plan: Plan,
    is_whole: Callable[[str], bool],
    is_made: Callable[[str], bool] | None = None,
    *,
    whole: Iterable[str] = (),
) -> list[str]:
    """Ids of the jobs that must run, in plan order.

    The goals are the jobs that no other reads. A missing job needs its inputs; an input that is stored needs
    nothing, so outputs that only led to what is already there are not asked for. An output whose weights were
    removed is enough for a goal. A job that must run reads what it reads whole, so its maker must run too then.

    Args:
        plan: The plan.
        is_whole: Whether the output of a key is stored whole; asked once for each job that is needed.
        is_made: Whether it is stored, though its weights may have been removed; as `is_whole` if None.
        whole: Ids of goals that must be whole too.
    """
    demanded = set(whole)
    needed: set[str] = set()
    missing: set[str] = set()
    goals = [job_id for job_id in plan.jobs if not plan.readers(job_id)]
    frontier = list(goals)
    made_will_do = set(goals) - demanded if is_made else set()
    while frontier:
        job_id = frontier.pop()
        if job_id in needed:
            continue
        needed.add(job_id)
        is_there = is_made if is_made and job_id in made_will_do else is_whole
        if not is_there(plan.jobs[job_id].key):
            missing.add(job_id)
            frontier += plan.inputs(job_id)
    return [job_id for job_id in plan.jobs if job_id in missing]


# -- durations ---------------------------------------------------------------------------------------------------
# How long jobs took, what that says of jobs of another size, and a plan in few rows. Pure. The size of a job
# is what it was estimated to take before anything was timed (`estimates`): its tokens or samples times what
# one of them costs. So a measurement tells how wrong that estimate is for a kind of job, and one of a small
# job tells little else than what beginning with it takes.


LONGEST_S = 1e7
_OVERHEAD_S = 0.5
"""What a job that took longer than its size spent on beginning and ending, at most, and else whatever its size."""
_TELLING_S = 5.0
"""Size of a job that tells as much of what work costs as is thought of it before."""
_FASTEST = 0.01
"""Least pace that is believed: a job may have found nothing to do."""
_SMALLEST_S = 1e-6
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_S)]


@dataclass(frozen=True)
class Timed:
    """What a job took.

    Attributes:
        size_s: Its size, see above.
        took_s: Seconds, without loading.
    """

    size_s: Seconds
    took_s: Seconds

    def expected_s(self, size_s: float) -> float:
        """What a job of the same kind and another size takes.

        Work beyond what was measured costs what that cost, or the less was measured, what it was estimated to cost
        before. Work that is missing saves its part, of all but the overhead.
        """
        overhead_s = min(max(0.0, self.took_s - self.size_s), _OVERHEAD_S)
        if size_s < self.size_s:
            return overhead_s + (self.took_s - overhead_s) * size_s / self.size_s
        measured = max(_FASTEST, (self.took_s - overhead_s) / max(self.size_s, _SMALLEST_S))
        pace = measured ** (self.size_s / (self.size_s + _TELLING_S))
        return float(self.took_s + pace * (size_s - self.size_s))


@dataclass(frozen=True)
class Durations:
    """What earlier runs measured.

    Attributes:
        jobs: Kind of job -> what a typical one took.
        seconds: Seconds by name, of loading.
    """

    jobs: Mapping[str, Timed] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    def knows(self, name: str) -> bool:
        """Whether a kind of job, or a loading, was timed."""
        return name in self.jobs or name in self.seconds

    def expected_s(self, kind: str, size_s: float) -> float:
        """What a job of a kind and size takes; its size where nothing was measured."""
        return self.jobs[kind].expected_s(size_s) if kind in self.jobs else size_s

    def updated(self, newer: Durations) -> Durations:
        """These, with newer ones in the place of those of the same name."""
        return Durations({**self.jobs, **newer.jobs}, {**self.seconds, **newer.seconds})


def typical(timed: Sequence[Timed]) -> Timed:
    """The one of median pace, since the first job of a kind takes longer, among the large ones."""
    least_s = max(each.size_s for each in timed) / 2
    large = [each for each in timed if each.size_s >= least_s]
    return sorted(large, key=lambda each: each.took_s / max(each.size_s, _SMALLEST_S))[(len(large) - 1) // 2]


# -- summary -----------------------------------------------------------------------------------------------------
# A plan in few rows, for people: jobs by round, chain and stage, and how many are stored already.


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """The jobs of one stage of one round of a chain.

    Attributes:
        round: 0 for the reference.
        chain: ``dataset/model/seed/algorithm``.
        stage: Name of the stage.
        jobs: How many jobs it has.
        missing: How many of them must run.
        samples: Samples over all of its jobs.
        seconds: Estimated seconds of those that must run, one after the other.
        devices: Devices that each of them takes at once.
    """

    round: int
    chain: str
    stage: str
    jobs: int
    missing: int
    samples: int
    seconds: float
    devices: int = 1


def summarize(plan: Plan, missing: Collection[str]) -> list[PlanRow]:
    """Group a plan's jobs, in plan order within each round.

    Args:
        plan: The plan.
        missing: Ids of the jobs that must run.
    """
    waiting = set(missing)
    grouped: dict[tuple[int, str, str], list[str]] = {}
    for number, jobs in plan.rounds().items():
        for job in jobs:
            grouped.setdefault((number, job.chain, job.stage), []).append(job.id)
    return [
        PlanRow(
            round=number,
            chain=chain,
            stage=stage,
            jobs=len(ids),
            missing=sum(job_id in waiting for job_id in ids),
            samples=sum(plan.jobs[job_id].samples for job_id in ids),
            seconds=sum(plan.jobs[job_id].seconds for job_id in ids if job_id in waiting),
            devices=plan.jobs[ids[0]].devices,
        )
        for (number, chain, stage), ids in grouped.items()
    ]


WORKER_LOAD = "load: worker"
"""Under which name it is remembered what a worker takes until its first job can begin: start, imports, a model."""


def load_name(job: Job) -> str:
    """Under which name it is remembered what each later job of a model takes to load."""
    return f"load: {job.model}"


def estimated_load(plan: Plan, missing: Collection[str], workers: int, seconds: Mapping[str, float]) -> float:
    """Seconds that each worker spends on loading.

    Args:
        plan: The plan.
        missing: Ids of the jobs that must run.
        workers: How many there are.
        seconds: Measured, by the names above; a model of which nothing was measured counts nothing.
    """
    if not missing:
        return 0.0
    jobs = [plan.jobs[job_id] for job_id in missing]
    every_s = sum(seconds.get(load_name(job), 0.0) * job.devices for job in jobs)
    return seconds.get(WORKER_LOAD, WORKER_LOAD_S) + every_s / workers


def estimated_makespan(plan: Plan, missing: Collection[str], devices: int) -> float:
    """Seconds that the missing jobs take at best, without loading.

    The longest path, the work per device, or the jobs that cannot run at once since each needs more than half of
    the devices, whichever is more.
    """
    if not missing:
        return 0.0
    waiting = set(missing)
    seconds = {job.id: job.seconds if job.id in waiting else 0.0 for job in plan.jobs.values()}
    work_s = sum(seconds[job.id] * job.devices for job in plan.jobs.values())
    alone_s = sum(seconds[job.id] for job in plan.jobs.values() if 2 * job.devices > devices > 1)
    return max(max(plan.longest_paths(seconds).values()), work_s / devices, alone_s)
