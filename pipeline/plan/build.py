"""Build the plan of a configuration: every chain's stages, round by round, with shared work planned once.

    dataset:   prepare -> check, tokenize                    (round 0, for datasets that are read rather than made)
        |
    reference: train -> evaluate shards -> metrics           (round 0, one per dataset, model, reference and seed)
        |
    chain:     generate shards -> score shards -> train -> evaluate shards -> metrics      (rounds 1, 2, ...)

Building is a pure function: it reads class attributes of the algorithms, calls the given functions for priorities
and numbers of rows, reads no file and imports no torch. Keys do not depend on numbers of rows: a shard known to be
empty has no job, but the keys of its readers include its key all the same.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from sys import intern
from typing import Any

from pipeline.config.plain import brief
from pipeline.config.schema import (
    AlgoConfig,
    Config,
    EvaluationPart,
    Keep,
    StageChoice,
    continued_from,
    evaluation_on,
    evaluation_parts,
)
from pipeline.config.tables import point_of
from pipeline.config.user_code import ask, import_object, source_hash
from pipeline.errors import ConfigError, PlanError, defined_at
from pipeline.learning.algos import registry
from pipeline.learning.algos.base import DATASET, METRICS, PROMPTS, START_TRAIN, Read, Stage
from pipeline.learning.algos.policy_config import taken_from
from pipeline.learning.datasets.base import load_dataset
from pipeline.machine import memory
from pipeline.plan.contents import (
    EVALUATE,
    PREPARING,
    REFERENCE,
    Chain,
    Contents,
    JobContents,
    chains,
    check_chains,
    evaluated_prompts,
    last_round,
)
from pipeline.plan.estimates import NOTING_S, guess_reference, guess_seconds, scale_of
from pipeline.plan.graph import Durations, Job, Plan, ResultKeys, duration_kind, place_name, reached

# -- size --------------------------------------------------------------------------------------------------------
# Estimate the size of a plan by arithmetic, so that a plan too large to be useful is refused before it is built.


MOST_JOBS = 1_000_000
MOST_LINKS = 5_000_000
"""Largest number of outputs that jobs read of each other: training on all rounds so far reads about the square of
the rounds."""


def check_size(config: Config) -> None:
    """Refuse a request whose plan would be too large.

    Raises:
        ConfigError: An algorithm cannot be loaded.
        PlanError: The plan is too large; the message says why.
    """
    size, rounds, seeds = config.execution.shard_size, config.rounds_of_training, len(config.experiment.seeds)
    drawn = math.ceil(config.data_collection.prompts_per_round / size)
    shards = {None: 1, "train": drawn, "eval": math.ceil(config.evaluation.num_prompts / size)}
    chains_each = seeds * len(config.trained_on) * sum(len(model.references) for model in config.models.values())
    jobs = links = 0
    for name, algo in config.enabled.items():
        stages = list(registry.planned_stages(registry.load_algorithm(name, algo.class_path), algo, config))
        each = sum(shards[stage.shards] for stage in stages) + len(config.evaluation.on) * (shards["eval"] + 1)
        all_rounds = sum(read.rounds == "so_far" for stage in stages for read in stage.reads)
        jobs += chains_each * rounds * each
        links += chains_each * rounds * (each + all_rounds * drawn * (rounds + 1) // 2)
    if jobs > MOST_JOBS or links > MOST_LINKS:
        raise PlanError(
            f"the plan would have some {jobs:,} jobs, which read {links:,} outputs; {MOST_JOBS:,} and "
            f"{MOST_LINKS:,} are the most. Lower rounds_of_training={rounds}, some of the {seeds:,} "
            "experiment.seeds, data_collection.prompts_per_round, algos or evaluation.num_prompts, or raise "
            f"execution.shard_size={size}"
        )


# -- priorities --------------------------------------------------------------------------------------------------
# Priorities of jobs: the user's function `execution.priority` is called once for each job. Without it, if weights
# are removed once nothing reads them, jobs that delay their removal go first.


def with_priorities(jobs: Iterable[Job], edges: Iterable[tuple[str, str]], config: Config) -> list[Job]:
    """Return jobs with the priorities that ``execution.priority`` gives them.

    Args:
        jobs: Jobs of a plan.
        edges: Pairs of job ids: a job, and one that reads its output.
        config: The request.

    Raises:
        ConfigError: There is no such function, it fails, or its result is not a finite number.
    """
    path = config.execution.priority
    if path is None:
        return list(jobs) if config.execution.keep is Keep.all else _freeing_first(list(jobs), edges)
    owner = f"execution.priority={path}"
    function = import_object(path)
    if not callable(function):
        raise ConfigError(f"{owner}: this is {brief(function)}, and must be a function of a job and the settings")
    given = deepcopy(config)  # a copy, which the function may change
    return [replace(job, priority=_priority(owner, function, job, given)) for job in jobs]


def _freeing_first(jobs: list[Job], edges: Iterable[tuple[str, str]]) -> list[Job]:
    """Return jobs with priority for those that lead to no further weights: they delay the removal of weights.

    By the longest path alone such jobs, mostly evaluations, would come last, and the weights of all rounds would
    be on disk.
    """
    inputs: dict[str, list[str]] = {}
    for upstream, downstream in edges:
        inputs.setdefault(downstream, []).append(upstream)
    leading = reached((job.id for job in jobs if job.weights), lambda job_id: inputs.get(job_id, ()))
    return [replace(job, priority=1.0) if job.id not in leading else job for job in jobs]


def _priority(owner: str, function: Callable[..., Any], job: Job, config: Config) -> float:
    shown = replace(job, payload={}, inputs={}, determined_by={})  # otherwise changes here would change the job
    who = f"{owner}, called with the job {job.id} and the settings{defined_at(function)},"
    number = ask(f"{who} to give a finite number,", lambda: float(function(shown, config)))
    if not math.isfinite(number):
        raise ConfigError(f"{who} gave {number}, no finite number: jobs with larger ones start earlier")
    return number


_LOOKS = 1e5
"""Priority of evaluations that a race waits for."""
_OF_ROWS = (registry.PREPARE, registry.CHECK)
ENTRY = "pipeline.learning.algos.stage_entry:run_stage"


@memory.no_garbage_collection()
def build_plan(
    config: Config,
    durations: Durations | None = None,
    sources: Mapping[str, Mapping[str, Any]] | None = None,
    models: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    weights: Mapping[str, int] | None = None,
    gpu: str | None = None,
    plain_attention: Collection[str] = (),
    rows: Callable[[str, str], Mapping[str, int]] | None = None,
    racing: Mapping[str, int] | None = None,
) -> Plan:
    """Build the plan of a request.

    Args:
        config: The checked request.
        durations: Measurements of earlier runs, by `duration_name`; used only for order and estimates.
        sources: Dataset -> what determines its rows besides its settings; see `plan.models`.
        models: Model -> identity of its content, by role; see `plan.models`.
        weights: Model, or key of a checkpoint as ``algos.sft`` -> number of its weights, where known; used only
            for estimates.
        gpu: Name of the GPUs to run on, None for CPU cores; used only for estimates.
        plain_attention: Models without an alternative to plain attention; see `plan.compatibility`.
        rows: Given a dataset and the key of its preparation ("" if it makes its rows), returns the rows of each
            split as far as known; used for estimates, and to leave out empty shards.
        racing: Chain in a race that goes on -> the first of its rounds that may yet be evaluated on more prompts,
            which has no metrics so far; rounds after it that `experiment.looks` does not name have no evaluation.

    Raises:
        ConfigError: An algorithm cannot be loaded, two datasets are the same, or `execution.priority` is wrong.
        PlanError: A stage reads one that does not exist, or there would be too many jobs.
    """
    check_size(config)
    check_chains(config)
    source_hash.cache_clear()  # in a notebook files may have been edited since the last plan
    contents = JobContents(config, sources or {}, models or {}, plain_attention)
    known_rows = rows or (lambda _name, _key: {})
    builder = _Builder(config, durations or Durations(), contents, weights or {}, gpu, known_rows, racing or {})
    for chain in chains(config):
        if chain.algo == REFERENCE:
            builder.add_reference(chain)
            continue
        stages = registry.planned_stages(chain.kind, chain.config, config, chain.dataset)
        first = config.rounds_of_training if chain.kind.is_fixed else chain.rounds_from
        if chain.config.continues is not None:
            first = max(first, builder.share_rounds(chain) + 1)
        for number in range(first, last_round(config, chain) + 1):
            builder.add_round(chain, number, stages)
    jobs, edges = builder.with_rows()
    jobs = with_priorities(jobs, edges, config)
    if racing:  # what a look needs may end chains
        jobs = [replace(job, priority=job.priority + _LOOKS) if job.id in builder.looks else job for job in jobs]
    plan = Plan(jobs, edges)
    if config.stage is StageChoice.prepare:
        return plan.up_to([job.id for job in plan.jobs.values() if job.algo == PREPARING])
    return plan


def _needed_of_references(
    config: Config, racing: Mapping[str, int]
) -> dict[tuple[str, str, int | None, int], float]:
    """Return dataset, model, reference and seed -> prompts that a chain there is evaluated on at most."""
    needed: dict[tuple[str, str, int | None, int], float] = {}
    if config.experiment.looks:
        for chain in chains(config):
            at, last = (chain.dataset, chain.model, chain.reference, chain.seed), last_round(config, chain)
            if chain.name in racing:
                last = min(last, len(config.experiment.looks.get(chain.name, ())))
            if chain.algo != REFERENCE and last:
                prompts = [evaluated_prompts(config, chain, number) for number in range(1, last + 1)]
                needed[at] = max(needed.get(at, 0), *prompts)
    return needed


@dataclass
class _Builder:
    """Collects jobs; a result that several chains need is planned once, under the name of the first."""

    config: Config
    durations: Durations
    contents: JobContents
    weights: Mapping[str, int]
    gpu: str | None
    rows_of: Callable[[str, str], Mapping[str, int]]
    racing: Mapping[str, int]
    jobs: dict[str, Job] = field(default_factory=dict)
    edges: list[tuple[str, str]] = field(default_factory=list)
    looks: set[str] = field(default_factory=set)
    _empty: set[str] = field(default_factory=set)
    _rows: dict[str, Mapping[str, int]] = field(default_factory=dict)
    _keys: ResultKeys = field(default_factory=ResultKeys)
    _by_key: dict[str, str] = field(default_factory=dict)
    _outputs: dict[tuple[str, str, str, int | None, int, int, str], list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        datasets = {name: load_dataset(section) for name, section in self.config.datasets.items()}
        self._prepared = {name: dataset.prepared for name, dataset in datasets.items()}
        self._scales = {
            (name, model): scale_of(self.config, dataset, self.weights.get(model, 0), self.gpu)
            for name, dataset in datasets.items()
            for model in self.config.models
        }
        self._needed = _needed_of_references(self.config, self.racing)

    def add_reference(self, chain: Chain) -> None:
        """Plan the reference of a chain, and the preparation of a dataset that is read."""
        preparation = replace(chain, algo=PREPARING, kind=registry.Preparation, config=AlgoConfig())
        self._prepare(preparation)
        train, *others = chain.kind.stages
        self.add_stage(chain, 0, train)
        if self._prepared[chain.dataset]:
            # The reference's tokenizer is part of its output.
            self.add_stage(preparation, 0, registry.TOKENIZE)
        for on in self._others(chain):
            self._prepare(replace(preparation, dataset=on))
            if self._prepared[on]:
                self.add_stage(replace(preparation, on=on), 0, registry.TOKENIZE)
        self.add_round(chain, 0, others)

    def add_round(self, chain: Chain, number: int, stages: Iterable[Stage]) -> None:
        """Plan a round of a chain, with its evaluation on every test set."""
        evaluates = self.config.evaluation.on_own or chain.dataset in self.config.evaluation.on
        for stage in stages:
            if (evaluates or stage.name not in (EVALUATE, METRICS.name)) and not self._waits(chain, number, stage):
                self.add_stage(chain, number, stage)
        for on in self._others(chain):
            for stage in stages:
                if stage.name == EVALUATE:
                    self.add_stage(replace(chain, on=on), number, stage)
                elif stage.name == METRICS.name:  # strengths of guidance were tried on the chain's own dataset
                    reads = tuple(read for read in stage.reads if read.stage == EVALUATE)
                    self.add_stage(replace(chain, on=on), number, replace(stage, reads=reads))

    def _waits(self, chain: Chain, number: int, stage: Stage) -> bool:
        """Return whether a stage waits for what a race decides."""
        if chain.algo == REFERENCE:  # its metrics wait for the last chain
            place = chain.name.rpartition("/")[0]
            return stage.name == METRICS.name and any(name.rpartition("/")[0] == place for name in self.racing)
        undecided = self.racing.get(chain.name, math.inf)
        named = len(self.config.experiment.looks.get(chain.name, ()))
        return (stage.name == METRICS.name and number >= undecided) or (
            stage.name == EVALUATE and chain.name in self.racing and number > named
        )

    def share_rounds(self, chain: Chain) -> int:
        """Let a chain have the first rounds of the one that it continues; return the last of these.

        Raises:
            ConfigError: That chain has no such round, or its rounds do not build on each other.
        """
        source, last = continued_from(chain.config)
        of = (chain.model, chain.reference, chain.seed)
        shared = {
            (chain.algo, *address[1:]): job_ids
            for address, job_ids in self._outputs.items()
            if address[0] == source and address[2:5] == of and point_of(address[1])[0] == chain.dataset
            if address[5] <= last
        }
        if chain.kind.is_fixed or all(address[5] < last for address in shared):
            other = replace(chain, algo=source or "").name
            given = f"algos.{chain.algo}.continues={chain.config.continues}"
            raise ConfigError(f"{given}: {other} has no round {last} in this run, or its rounds share nothing")
        self._outputs |= shared
        return last

    def _others(self, chain: Chain) -> list[str]:
        return [name for name in self.config.evaluation.on if name != chain.dataset]

    def _prepare(self, preparation: Chain) -> None:
        """Plan the reading of a dataset, unless it makes its rows, and reckon with its rows from here on."""
        if self._prepared[preparation.dataset]:
            self.add_stage(preparation, 0, registry.PREPARE)
            self.add_stage(preparation, 0, registry.CHECK)
        self._count(preparation)

    def with_rows(self) -> tuple[list[Job], list[tuple[str, str]]]:
        """Return all jobs and edges except those of shards without rows."""
        if not self._empty:
            return list(self.jobs.values()), self.edges
        empty, jobs = {self.jobs[job_id].key for job_id in self._empty}, []
        for job in self.jobs.values():
            if job.id not in self._empty:
                inputs = {name: tuple(key for key in of if key not in empty) for name, of in job.inputs.items()}
                keyed = {name: of for name, of in job.inputs.items() if of != inputs[name]}
                jobs.append(replace(job, inputs=inputs, keyed=keyed))
        return jobs, [edge for edge in self.edges if self._empty.isdisjoint(edge)]

    def _count(self, chain: Chain) -> None:
        """Use the known numbers of rows of a chain's dataset from here on."""
        name = chain.dataset
        if name in self._rows:
            return
        address = (PREPARING, name, chain.model, chain.reference, chain.seed, 0, registry.PREPARE.name)
        key = "".join(self.jobs[prepared].key for prepared in self._outputs.get(address, ()))
        self._rows[name] = self.rows_of(name, key)
        if train := self._rows[name].get("train"):
            for at in [at for at in self._scales if at[0] == name]:
                self._scales[at] = replace(self._scales[at], prompts=min(train, self._scales[at].prompts))

    def _drawn(self, chain: Chain, stage: Stage, samples: int, rows: tuple[int, int]) -> int:
        """Return the number of samples of a shard, given the rows as far as known."""
        split = "train" if stage.shards == "train" else self.config.evaluation.split
        there = self._rows.get(chain.data, {}).get(split)
        if there is None or not samples:
            return samples
        return samples // (rows[1] - rows[0]) * max(0, min(rows[1], there) - rows[0])

    def add_stage(self, chain: Chain, number: int, stage: Stage) -> None:
        """Plan every shard of one stage of one round of a chain."""
        read = {spec.name: self._read(chain, number, stage, spec) for spec in stage.reads}
        read |= self._prepared_inputs(chain, stage)
        read = {name: ids for name, ids in read.items() if ids}
        alike = {spec.name for spec in stage.reads if spec.rounds == "shard"}
        address = (chain.algo, chain.place, chain.model, chain.reference, chain.seed, number, stage.name)
        self._outputs[address] = [
            self._add(
                chain,
                number,
                stage,
                shard,
                rows,
                {name: [ids[shard or 0]] if name in alike else ids for name, ids in read.items()},
                part,
            )
            for shard, rows, part in self._shards(chain, number, stage)
        ]
        if stage.name == EVALUATE and chain.on is None and self.racing.get(chain.name) == number:
            self.looks |= {*self._outputs[address]}

    def _prepared_inputs(self, chain: Chain, stage: Stage) -> dict[str, list[str]]:
        """Return what a stage reads of the preparation: rows if it sees the dataset, prompts if it decodes."""
        if not self._prepared[chain.data] or "dataset" not in stage.config or stage in _OF_ROWS:
            return {}
        names = {DATASET: registry.PREPARE}
        if "generation" in stage.config:
            names[PROMPTS] = registry.TOKENIZE
        if stage.judges:
            names["checked"] = registry.CHECK
        of = (chain.model, chain.reference, chain.seed, 0)
        return {
            name: self._outputs[PREPARING, chain.data if source in _OF_ROWS else chain.place, *of, source.name]
            for name, source in names.items()
        }

    def _shards(
        self, chain: Chain, number: int, stage: Stage
    ) -> Iterator[tuple[int | None, tuple[int, int], EvaluationPart | None]]:
        """Yield number and prompts of each shard of a stage, and what it draws of an evaluation."""
        size, shard = self.config.execution.shard_size, 0
        if stage.shards is None:
            yield None, (0, 0), None
        elif stage.shards == "train":
            total = self.config.data_collection.prompts_per_round
            yield from (
                (at, (start, min(total, start + size)), None) for at, start in enumerate(range(0, total, size))
            )
        else:
            # What is chosen by a sweep, and so what is evaluated, stays as an evaluation is extended.
            parts = evaluation_parts(evaluation_on(self.config, chain.data))
            most = self._prompts(chain, number) if stage.name == EVALUATE else math.inf
            for part in parts if stage.name == EVALUATE else parts[:1]:
                stop = int(min(part.prompts[1], most))
                for start in range(part.prompts[0], stop, size):
                    yield shard, (start, min(stop, start + size)), part
                    shard += 1

    def _prompts(self, chain: Chain, number: int) -> float:
        """Return how many prompts a round is evaluated on at most: the reference on as many as any chain needs."""
        if chain.on is not None:
            return math.inf
        if chain.algo == REFERENCE:
            return self._needed.get((chain.dataset, chain.model, chain.reference, chain.seed), math.inf)
        return evaluated_prompts(self.config, chain, number)

    def _read(self, chain: Chain, number: int, stage: Stage, spec: Read) -> list[str]:
        algo, rounds = chain.algo, range(number, number + 1)
        own = {each.name for each in chain.kind.stages}
        planned = {each.name for each in registry.planned_stages(chain.kind, chain.config, self.config)}
        if spec.algo == "self" and spec.stage in own - planned:
            return []
        if other := taken_from(chain.config).get(spec.algo):
            last = last_round(self.config, replace(chain, algo=other, on=None))
            algo, rounds = other, range(last, last + 1)
        elif spec.algo != "self":
            algo, rounds = spec.algo, range(1)
        elif spec.rounds == "previous":
            rounds = range(number if chain.kind.is_fixed else max(chain.rounds_from, number - 1), number)
        elif spec.rounds == "so_far":
            rounds = range(chain.rounds_from, number + 1)
        dataset = chain.place if spec.stage == EVALUATE else chain.dataset  # it was trained on that alone
        if algo == PREPARING:
            dataset = chain.data
        found = []
        for earlier in rounds:
            address = (algo, dataset, chain.model, chain.reference, chain.seed, earlier, spec.stage)
            if address not in self._outputs:
                raise _no_such_stage(chain, stage, spec)
            found += self._outputs[address]
        if stage.name == METRICS.name and spec.stage == EVALUATE:  # others may have been asked more prompts
            most = self._prompts(chain, number)
            return [job_id for job_id in found if self.jobs[job_id].determined_by["rows"][0] < most]
        return found

    def _add(
        self,
        chain: Chain,
        number: int,
        stage: Stage,
        shard: int | None,
        rows: tuple[int, int],
        read: Mapping[str, list[str]],
        part: EvaluationPart | None,
    ) -> str:
        inputs = {name: tuple(self.jobs[job_id].key for job_id in ids) for name, ids in read.items()}
        made_of = self.contents.of(chain, number, stage, rows, part)
        covered = {name: value for name, value in made_of.determined_by.items() if name != "config"}
        key = self._keys.key({**covered, "inputs": inputs}, made_of.determined_by["config"])
        if key in self._by_key:
            known = self.jobs[self._by_key[key]].dataset
            if stage.name == METRICS.name and known != chain.place:
                of, on = point_of(known)
                raise ConfigError(
                    f"datasets.{on or of} and datasets.{chain.data} are the same, their sampling too. Leave one "
                    "out"
                )
            return self._by_key[key]
        samples = self._drawn(chain, stage, made_of.samples, rows)
        size_s = self._guess(chain, number, stage, made_of, samples)
        kind = duration_kind(chain.place, chain.model, chain.algo, stage.name, made_of.shared.devices)
        job = Job(
            id=_job_id(chain, number, stage, shard),
            key=key,
            entry=ENTRY,
            payload=made_of.payload,
            inputs=inputs,
            determined_by=made_of.determined_by,
            algo=chain.algo,
            dataset=chain.place,
            model=chain.model,
            reference=chain.reference if _rests_on_reference(stage) else None,
            seed=chain.seed if stage.seeded else None,
            round=number,
            stage=stage.name,
            shard=shard,
            samples=samples,
            seconds=round(self.durations.expected_s(kind, size_s), 6),
            size_s=round(size_s, 6),
            affinity=_affinity(stage, inputs),
            devices=made_of.shared.devices,
            memory_mb=made_of.shared.memory_mb,
            # That a job fits is worth more than an estimate, so all settings count. Thousands have the same.
            memory_kind=intern(f"{kind} {made_of.shared.digest}"),
            weights=stage.weights if stage.saves else (),
        )
        self.jobs[job.id] = job
        self._by_key[key] = job.id
        if shard and made_of.samples and not samples:
            self._empty.add(job.id)  # except the first one, as the readers of a stage need an input
        self.edges += [(upstream, job.id) for ids in read.values() for upstream in ids]
        return job.id

    def _guess(self, chain: Chain, number: int, stage: Stage, made_of: Contents, samples: int) -> float:
        if made_of.samples and not samples:
            return NOTING_S
        scale = self._scales[chain.data, chain.model]
        if chain.algo == REFERENCE and stage.scales:
            return guess_reference(stage, scale, self.config.models[chain.model], made_of.shared.devices)
        if weights := self.weights.get(f"algos.{chain.algo}"):  # of a checkpoint
            scale = replace(scale, weights=weights)
        algo = None if chain.algo in (REFERENCE, PREPARING) else chain.config
        aggregated = getattr(chain.config, "aggregate", True) and any(
            read.rounds == "so_far" for read in stage.reads
        )
        rounds = number - chain.rounds_from + 1 if aggregated else 1
        return guess_seconds(stage, samples, scale, algo, rounds=rounds, devices=made_of.shared.devices)


def _job_id(chain: Chain, number: int, stage: Stage, shard: int | None) -> str:
    named = chain.named_reference if _rests_on_reference(stage) else None
    parts = [place_name(chain.place, chain.model, named)]
    if stage.seeded:
        parts.append(f"s{chain.seed}")
    parts.append(chain.algo)
    if chain.algo not in (REFERENCE, PREPARING):
        parts.append(f"r{number}")
    parts.append(stage.name)
    if shard is not None:
        parts.append(f"{shard:03d}")
    return "/".join(parts)


def _rests_on_reference(stage: Stage) -> bool:
    """Return whether the work of a stage depends on the reference: all stages do but those that read rows."""
    return stage not in _OF_ROWS


def _affinity(stage: Stage, inputs: Mapping[str, tuple[str, ...]]) -> str:
    """Return the key of the model that a worker should have loaded: the most specific model that the job reads."""
    if not stage.loads_models:
        return ""
    for name in ("train", "train@previous", START_TRAIN.name, "reference.train"):
        if name in inputs:
            return inputs[name][0]
    return ""


def _no_such_stage(chain: Chain, stage: Stage, spec: Read) -> PlanError:
    return PlanError(
        f"stage '{stage.name}' of {chain.algo} reads '{spec.name}', which no earlier stage provides; "
        f"its stages are, in order: {', '.join(s.name for s in chain.kind.stages)}"
    )
