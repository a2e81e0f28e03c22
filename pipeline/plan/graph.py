"""The plan: a DAG of jobs with their keys and inputs, which can be printed, drawn and saved."""

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
# Keys: what determines a result, and its hash.


FORMAT = 1
"""Increased when the meaning of stored files changes, which invalidates every older result."""


_CONFIG = "config"
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def result_key(determined_by: Mapping[str, Any]) -> str:
    """Hash plain data into a key: 40 hexadecimal digits of the SHA-256 of its canonical JSON."""
    return _hashed(_canonical({"format": FORMAT, **determined_by}))


class ResultKeys:
    """Makes the keys of many jobs, see `result_key`; data shared by thousands of jobs are encoded once."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[object, str]] = {}

    def key(self, determined_by: Mapping[str, Any], config: object) -> str:
        """Return the key of plain data and a configuration.

        Jobs that share the configuration pass the same object.
        """
        parts = {"format": FORMAT, **determined_by}
        before = _canonical({name: value for name, value in parts.items() if name < _CONFIG})
        after = _canonical({name: value for name, value in parts.items() if name > _CONFIG})  # the format at least
        opened = before[:-1] + ("," if len(before) > 2 else "")
        return _hashed(f'{opened}"{_CONFIG}":{self._text(config)},{after[1:]}')

    def _text(self, config: object) -> str:
        # Keep the object itself, so that its `id` is not reused meanwhile.
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
        """Replace the sections under ``config`` by a digest."""
        if _CONFIG not in data:
            return dict(data)
        config = data[_CONFIG]  # the planner gives jobs of one stage the same object
        if id(config) not in self._digests:
            self._digests[id(config)] = config, _hashed(_canonical(config), 16)
            self.table[self._digests[id(config)][1]] = config
        return {**data, _CONFIG: self._digests[id(config)][1]}


def determining(config: object) -> Any:
    """Return the part of a configuration that can change a result, as plain data.

    Fields with the metadata ``affects_result: False`` (worker counts, loader processes, ...) are left out, so that
    changing them reuses stored results. Options (`config.schema.option`) at their defaults are left out too.
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
# A job: the unit of scheduling, retry and storage. It is plain data, so a plan can be printed and saved.


ANY = "any"
"""Replaces the seed in names of chains of work that has no seed."""
WORKER_LOAD_S = 8.0
"""Seconds until a worker can begin its first job, if not measured."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One stage of a round, or one shard of it.

    Attributes:
        id: Readable and unique in the plan, for example ``addition/tiny/s0/PITA/r1/generate/003``.
        key: Hash of everything that determines the result; name of the stored output.
        entry: Function that a worker runs, ``module:function``.
        payload: The argument of `entry`, plain JSON data.
        inputs: Input name -> keys of the stored outputs it reads, in a fixed order.
        determined_by: Data that `key` is the hash of, together with `inputs`; recorded so that runs can be
            compared.
        keyed: Inputs that `key` covers with shards that have no job, as they are known to have no rows: input name
            -> the keys in `inputs` and of these shards, in order.
        algo: Algorithm, or ``reference`` for work that every chain of a dataset and model shares.
        dataset: Name of the dataset.
        model: Name of the model.
        reference: Seed of the reference of its chain; None if the model is not trained from one, or the work is
            the same for all references.
        seed: Seed of the chain, or None where the result does not depend on it.
        round: 0 for the reference, then 1 and up.
        stage: Name of the stage.
        shard: Index of the shard, or None for a stage that is not split.
        samples: Number of samples the job handles; the unit of progress.
        seconds: Estimated run time; used only for order and for the plan's estimate.
        size_s: Run time in seconds estimated before anything was timed: a measure of the amount of work.
        priority: Among jobs that could start, the largest goes first; see `priorities`.
        affinity: Key of its model; workers that hold that model are preferred.
        devices: Number of devices that it needs at once.
        memory_mb: Memory in MiB that it takes of each device, if set by the user; None uses measurements.
        weights: Name patterns of files in its output with weights that it has trained; empty if it trains none, or
            a reference.
        memory_kind: Same for all jobs that take as much memory as this one; "" for a job like no other.
    """

    id: str
    key: str
    entry: str
    payload: Mapping[str, Any]
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    determined_by: Mapping[str, Any] = field(default_factory=dict)
    keyed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
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
        """Chain of the job by `chain_name`; names the reference if the job's id does."""
        named = self.id.startswith(f"{place_name(self.dataset, self.model, self.reference)}/")
        return chain_name(self.dataset, self.model, self.reference if named else None, self.seed, self.algo)


def place_name(dataset: str, model: str, reference: int | None) -> str:
    """Return the common part of chain names: ``dataset/model``, or ``dataset/model/ref1`` of several."""
    return f"{dataset}/{model}" if reference is None else f"{dataset}/{model}/ref{reference}"


def chain_name(dataset: str, model: str, reference: int | None, seed: int | None, algo: str) -> str:
    """Return the name of a chain, ``dataset/model/s0/ALGO``; shared work has no seed of its own.

    Args:
        dataset: Name of the dataset.
        model: Name of the model.
        reference: Seed of the reference if the model has several; else None.
        seed: Seed of the chain, or None.
        algo: Algorithm.
    """
    return f"{place_name(dataset, model, reference)}/{ANY if seed is None else f's{seed}'}/{algo}"


def duration_name(job: Job) -> str:
    """Return the name under which the run time of a job is recorded."""
    return duration_kind(job.dataset, job.model, job.algo, job.stage, job.devices)


def duration_kind(dataset: str, model: str, algo: str, stage: str, devices: int) -> str:
    """Return the same name for a job that is still to be made."""
    name = f"{dataset}/{model}/{algo}/{stage}"
    return name if devices == 1 else f"{name} on {devices} devices"


def reached(start: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
    """Return the ids that some ids lead to, including themselves.

    Args:
        start: The ids.
        following: Returns the ids that one leads to at once.
    """
    found, pending = set[str](), list(start)
    while pending:
        if (one := pending.pop()) not in found:
            found.add(one)
            pending += following(one)
    return found


class Plan:
    """Jobs and their edges. Immutable once built.

    Attributes:
        jobs: Job id -> job, in planning order.
    """

    def __init__(self, jobs: Iterable[Job], edges: Iterable[tuple[str, str]]) -> None:
        self.jobs: dict[str, Job] = {}
        for job in jobs:
            if job.id in self.jobs:
                raise PlanError(f"two jobs have the id '{job.id}'")
            self.jobs[job.id] = job
        # Lists, as plans have a hundred thousand edges; jobs without edges have none.
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
        """Return the jobs, each after all jobs that it reads.

        Raises:
            CycleError: The jobs read each other in a cycle.
        """
        waits_for = {job_id: len(inputs) for job_id, inputs in self._inputs.items()}
        order = [job for job in self.jobs.values() if job.id not in waits_for]
        for job in order:  # which grows meanwhile
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
        """The plan for networkx: job ids as nodes, and an edge from each job to those that read its output."""
        import networkx as nx  # slow to import, and never needed in a run

        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(self.jobs)
        graph.add_edges_from(self.edges())
        return graph

    def edges(self) -> Iterator[tuple[str, str]]:
        """Yield pairs of job ids, a job and one that reads its output, in the order of the former."""
        for job_id in self.jobs:
            for reader in self._readers.get(job_id, ()):
                yield job_id, reader

    def longest_paths(
        self, seconds: Mapping[str, float], after_s: Mapping[str, float] = MappingProxyType({})
    ) -> dict[str, float]:
        """Return the length of the longest path from each job to the end of the plan, including the job.

        Args:
            seconds: Job id -> its seconds.
            after_s: Job id -> the least seconds that follow it, whatever reads its output.
        """
        paths: dict[str, float] = {}
        for job in reversed(self._order):
            after = max(map(paths.__getitem__, self._readers.get(job.id, ())), default=0.0)
            paths[job.id] = seconds[job.id] + max(after, after_s.get(job.id, 0.0))
        return paths

    def longest_paths_until(self, seconds: Mapping[str, float]) -> dict[str, float]:
        """Return the length of the longest path that ends with each job, including the job.

        Args:
            seconds: Job id -> its seconds.
        """
        paths: dict[str, float] = {}
        for job in self._order:
            before = max(map(paths.__getitem__, self._inputs.get(job.id, ())), default=0.0)
            paths[job.id] = seconds[job.id] + before
        return paths

    def needs(self, job_ids: Iterable[str]) -> set[str]:
        """Return the ids of the jobs that some jobs need, including themselves."""
        return reached(job_ids, lambda job_id: self._inputs.get(job_id, ()))

    def up_to(self, job_ids: Iterable[str]) -> Plan:
        """Return the part of the plan that some jobs need, including themselves."""
        kept = self.needs(job_ids)
        edges = [edge for edge in self.edges() if edge[1] in kept]
        return Plan([job for job in self.jobs.values() if job.id in kept], edges)

    def inputs(self, job_id: str) -> list[str]:
        """Return the ids of the jobs whose outputs a job reads."""
        return list(self._inputs.get(job_id, ()))

    def readers(self, job_id: str) -> list[str]:
        """Return the ids of the jobs that read a job's output."""
        return list(self._readers.get(job_id, ()))

    def to_json(self, stored: Collection[str] = ()) -> dict[str, Any]:
        """Return the plan as plain data, for ``plan.json``; `pipeline.plan.recorded` writes and reads it.

        Args:
            stored: Ids of the jobs that need not run.
        """
        configs, there = SharedConfigs(), set(stored)
        return {
            "key_format": FORMAT,
            "jobs": [_plain(job, configs) for job in self.jobs.values()],
            "edges": [list(edge) for edge in self.edges()],
            "stored": [job_id for job_id in self.jobs if job_id in there],
            "sections": configs.table,
        }


def _plain(job: Job, configs: SharedConfigs) -> dict[str, Any]:
    determined_by = configs.shorten(job.determined_by)
    payload = configs.shorten(job.payload)
    return {
        **vars(job),
        "inputs": {name: list(keys) for name, keys in job.inputs.items()},
        # Most of a payload is also in `determined_by`, and is written only there.
        "payload": {
            name: value
            for name, value in payload.items()
            if name not in determined_by or determined_by[name] != value
        },
        "determined_by": determined_by,
        "keyed": {name: list(keys) for name, keys in job.keyed.items()},
    }


# -- pending -----------------------------------------------------------------------------------------------------
# Jobs that a plan still has to run, given the stored outputs.


def missing_jobs(
    plan: Plan,
    is_whole: Callable[[str], bool],
    is_made: Callable[[str], bool] | None = None,
    *,
    whole: Iterable[str] = (),
) -> list[str]:
    """Return the ids of the jobs that must run, in plan order.

    The goals are the jobs that no other job reads. A missing job needs its inputs. A stored input needs nothing,
    so outputs that are only used by stored ones are not looked up. For a goal, an output whose weights were
    removed is good enough. As an input of a job that must run it is not, so the job that makes it must run too.

    Args:
        plan: The plan.
        is_whole: Returns whether the output of a key is stored whole; called once for each needed job.
        is_made: Returns whether it is stored, possibly without its weights; `is_whole` if None.
        whole: Ids of goals that must be whole as well.
    """
    goals = [job_id for job_id in plan.jobs if not plan.readers(job_id)]
    made_will_do = set(goals).difference(whole)
    missing: set[str] = set()

    def needed_by(job_id: str) -> list[str]:
        is_there = is_made if is_made and job_id in made_will_do else is_whole
        if is_there(plan.jobs[job_id].key):
            return []
        missing.add(job_id)
        return plan.inputs(job_id)

    reached(goals, needed_by)
    return [job_id for job_id in plan.jobs if job_id in missing]


# -- durations ---------------------------------------------------------------------------------------------------
# Durations of jobs, what they say about jobs of another size, and a plan in few rows. Pure functions. The size of
# a job is its run time estimated before anything was timed (`estimates`): its tokens or samples times the cost of
# one. So a measurement corrects the estimate for a kind of job. The measurement of a small job tells little except
# the overhead of starting.


LONGEST_S = 1e7
_OVERHEAD_S = 0.5
"""Most seconds of overhead (starting and ending) of a job that took longer than its size; independent of size."""
_TELLING_S = 5.0
"""Size of a job whose measurement counts as much as the prior estimate."""
_FASTEST = 0.01
"""Smallest believable ratio of time to size: a job may have found nothing to do."""
_SMALLEST_S = 1e-6
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_S)]


@dataclass(frozen=True)
class Timed:
    """A measured job.

    Attributes:
        size_s: Its size, as defined above.
        took_s: Seconds, without loading.
        flops: FLOPs, which grow with the size.
    """

    size_s: Seconds
    took_s: Seconds
    flops: Annotated[float, Meta(ge=0)] = 0.0

    def expected_s(self, size_s: float) -> float:
        """Predict the seconds of a job of the same kind and another size.

        Additional work costs as much as the measured work; if little was measured, the prior estimate counts more.
        Less work takes proportionally less time, except for the overhead.
        """
        overhead_s = min(max(0.0, self.took_s - self.size_s), _OVERHEAD_S)
        if size_s < self.size_s:
            return overhead_s + (self.took_s - overhead_s) * size_s / self.size_s
        measured = max(_FASTEST, (self.took_s - overhead_s) / max(self.size_s, _SMALLEST_S))
        pace = measured ** (self.size_s / (self.size_s + _TELLING_S))
        return float(self.took_s + pace * (size_s - self.size_s))


@dataclass(frozen=True)
class Durations:
    """Measurements of earlier runs.

    Attributes:
        jobs: Kind of job -> a typical measurement.
        seconds: Seconds of loading by name.
    """

    jobs: Mapping[str, Timed] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    def expected_s(self, kind: str, size_s: float) -> float:
        """Predict the seconds of a job of a kind and size; its size if nothing was measured."""
        return self.jobs[kind].expected_s(size_s) if kind in self.jobs else size_s

    def expected_flops(self, kind: str, size_s: float) -> float:
        """Predict the FLOPs of a job of a measured kind, and of a size."""
        return self.jobs[kind].flops * size_s / max(self.jobs[kind].size_s, _SMALLEST_S)


def typical(timed: Sequence[Timed]) -> Timed:
    """Return the measurement of median pace among the large jobs; the first job of a kind takes longer."""
    least_s = max(job.size_s for job in timed) / 2
    large = [job for job in timed if job.size_s >= least_s]
    return sorted(large, key=lambda job: job.took_s / max(job.size_s, _SMALLEST_S))[(len(large) - 1) // 2]


# -- summary -----------------------------------------------------------------------------------------------------
# A plan summarised for people: jobs by round, chain and stage, and how many are stored already.


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """The jobs of one stage of one round of a chain.

    Attributes:
        round: 0 for the reference.
        chain: ``dataset/model/seed/algorithm``.
        stage: Name of the stage.
        jobs: Number of jobs.
        missing: Number of jobs that must run.
        samples: Samples over all of its jobs.
        seconds: Estimated seconds of the jobs that must run, one after the other; None if not all were timed.
        devices: Devices that each job takes at once.
    """

    round: int
    chain: str
    stage: str
    jobs: int
    missing: int
    samples: int
    seconds: float | None
    devices: int = 1


def summarize(plan: Plan, missing: Collection[str], timed: Collection[str]) -> list[PlanRow]:
    """Summarise a plan's jobs, in plan order within each round.

    Args:
        plan: The plan.
        missing: Ids of the jobs that must run.
        timed: Ids of those among them whose kind was timed.
    """
    waiting, known = set(missing), set(timed)
    grouped: dict[tuple[int, str, str], list[str]] = {}
    for job in sorted(plan.jobs.values(), key=lambda job: job.round):
        grouped.setdefault((job.round, job.chain, job.stage), []).append(job.id)
    return [
        PlanRow(
            round=number,
            chain=chain,
            stage=stage,
            jobs=len(ids),
            missing=sum(job_id in waiting for job_id in ids),
            samples=sum(plan.jobs[job_id].samples for job_id in ids),
            seconds=sum(plan.jobs[job_id].seconds for job_id in ids if job_id in waiting)
            if known.issuperset(waiting.intersection(ids))
            else None,
            devices=plan.jobs[ids[0]].devices,
        )
        for (number, chain, stage), ids in grouped.items()
    ]


WORKER_LOAD = "load: worker"
"""Name under which the seconds until a worker's first job are recorded: start, imports and a model."""


def load_name(job: Job) -> str:
    """Return the name under which the seconds to load the model of a later job are recorded."""
    return f"load: {job.model}"


def estimated_load(plan: Plan, missing: Collection[str], workers: int, seconds: Mapping[str, float]) -> float:
    """Estimate the seconds that each worker spends on loading.

    Args:
        plan: The plan.
        missing: Ids of the jobs that must run.
        workers: Number of workers.
        seconds: Measured seconds by the names above; unmeasured models count as 0.
    """
    if not missing:
        return 0.0
    jobs = [plan.jobs[job_id] for job_id in missing]
    every_s = sum(seconds.get(load_name(job), 0.0) * job.devices for job in jobs)
    return seconds.get(WORKER_LOAD, WORKER_LOAD_S) + every_s / workers


def estimated_makespan(plan: Plan, missing: Collection[str], devices: int) -> float:
    """Estimate the seconds that the missing jobs take at best, without loading.

    It is the largest of three bounds: the longest path, the work per device, and the jobs that each need more than
    half of the devices, since no two of them run at once.
    """
    if not missing:
        return 0.0
    waiting = set(missing)
    seconds = {job.id: job.seconds if job.id in waiting else 0.0 for job in plan.jobs.values()}
    work_s = sum(seconds[job.id] * job.devices for job in plan.jobs.values())
    alone_s = sum(seconds[job.id] for job in plan.jobs.values() if 2 * job.devices > devices > 1)
    return max(max(plan.longest_paths(seconds).values()), work_s / devices, alone_s)
