"""From a configuration to a plan: every chain's stages, round by round, shared work planned once.

    dataset:   prepare -> tokenize                           (round 0, for datasets that are read rather than made)
        |
    reference: train -> evaluate shards -> metrics           (round 0, one per dataset, model, reference and seed)
        |
    chain:     generate shards -> train -> evaluate shards -> metrics      (rounds 1, 2, ...)

A pure function: it reads class attributes of the algorithms, asks a function of the user's own for priorities if
there is one, touches no file and imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pipeline.config.bases import AlgoConfig
from pipeline.config.plain import schema_path, to_plain
from pipeline.config.ranks import devices_per_training, spread
from pipeline.config.schema import Config, StageChoice
from pipeline.errors import PlanError
from pipeline.learning.algos.base import DATASET, PROMPTS, Read, Stage
from pipeline.learning.algos.prepare import PREPARE, TOKENIZE, Preparation
from pipeline.learning.algos.registry import planned_stages
from pipeline.learning.datasets.registry import load_dataset
from pipeline.plan.chains import PREPARATION, REFERENCE, Chain, chains
from pipeline.plan.durations import Durations
from pipeline.plan.estimates import guess_reference, guess_seconds, scale_of
from pipeline.plan.graph import Plan
from pipeline.plan.job import Job, duration_name, place_name
from pipeline.plan.keys import determining, result_key
from pipeline.plan.priorities import with_priorities
from pipeline.plan.size import check_size
from pipeline.plan.source_code import class_source, dataset_source
from pipeline.plan.versions import shipped_versions

ENTRY = "pipeline.learning.algos.stage_entry:run_stage"


def build_plan(
    config: Config,
    durations: Durations | None = None,
    sources: Mapping[str, Mapping[str, Any]] | None = None,
    models: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    weights: Mapping[str, int] | None = None,
    gpu: str | None = None,
) -> Plan:
    """Plan a request.

    Args:
        config: The checked request.
        durations: What earlier runs measured, by `duration_name`; used for ordering and estimates only.
        sources: Dataset -> what its rows follow from besides its settings; see `runs.sources`.
        models: Model -> what identifies its content, by role; see `plan.models`.
        weights: Model -> how many weights it has, where that is known; for estimates only.
        gpu: Name of the GPUs that it is to run on, None for CPU cores; for estimates only.

    Raises:
        ConfigError: An algorithm cannot be loaded, or `execution.priority` cannot be used.
        PlanError: A stage reads one that does not exist, or there would be too many jobs.
    """
    check_size(config)
    builder = _Builder(config, durations or Durations(), sources or {}, models or {}, weights or {}, gpu=gpu)
    for chain in chains(config):
        if chain.algo == REFERENCE:
            builder.add_reference(chain)
            continue
        for number in range(chain.rounds_from, config.rounds_of_training + 1):
            for stage in planned_stages(chain.kind, config):
                builder.add_stage(chain, number, stage)
    plan = Plan(with_priorities(builder.jobs.values(), config), builder.edges)
    if config.stage is StageChoice.prepare:
        return plan.up_to([job.id for job in plan.jobs.values() if job.algo == PREPARATION])
    return plan


def _memory_kind(job: Job, digest: str) -> str:
    """Under which name its memory is: that it fits is worth more than an estimate, so all settings count."""
    return f"{duration_name(job)} {digest}"


class _Builder:
    """Collects jobs; a result that several chains need is planned once, under the name it met first."""

    def __init__(
        self,
        config: Config,
        durations: Durations,
        sources: Mapping[str, Mapping[str, Any]],
        models: Mapping[str, Mapping[str, Any]],
        weights: Mapping[str, int],
        *,
        gpu: str | None,
    ) -> None:
        self.config = config
        self.durations = durations
        self.sources = sources
        self.models = models
        datasets = {name: load_dataset(section) for name, section in config.datasets.items()}
        self._prepared = {name: dataset.prepared for name, dataset in datasets.items()}
        self._scales = {
            (name, model): scale_of(config, dataset, weights.get(model, 0), gpu)
            for name, dataset in datasets.items()
            for model in config.models
        }
        self.jobs: dict[str, Job] = {}
        self.edges: list[tuple[str, str]] = []
        self._by_key: dict[str, str] = {}
        self._outputs: dict[tuple[str, str, str, int | None, int, int, str], list[str]] = {}
        self._digests: dict[tuple[str, str, str, str], str] = {}
        self._configs: dict[tuple[str, str, str, int | None, str], tuple[dict[str, Any], dict[str, Any]]] = {}
        self._plains: dict[int, tuple[object, dict[str, Any]]] = {}

    def add_reference(self, chain: Chain) -> None:
        """Plan the reference, and around it the preparation of a dataset that is read."""
        preparation = replace(chain, algo=PREPARATION, kind=Preparation, config=AlgoConfig())
        if self._prepared[chain.dataset]:
            self.add_stage(preparation, 0, PREPARE)
        for stage in chain.kind.stages:
            self.add_stage(chain, 0, stage)
            if self._prepared[chain.dataset] and stage.name == "train":
                # The reference's tokenizer is part of its output.
                self.add_stage(preparation, 0, TOKENIZE)

    def add_stage(self, chain: Chain, number: int, stage: Stage) -> None:
        """Plan every shard of one stage of one round of a chain."""
        read = {spec.name: self._read(chain, number, stage, spec) for spec in stage.reads}
        read |= self._prepared_inputs(chain, stage)
        read = {name: ids for name, ids in read.items() if ids}
        address = (chain.algo, chain.dataset, chain.model, chain.reference, chain.seed, number, stage.name)
        self._outputs[address] = [
            self._add(chain, number, stage, shard, rows, read) for shard, rows in self._shards(stage)
        ]

    def _prepared_inputs(self, chain: Chain, stage: Stage) -> dict[str, list[str]]:
        """What a stage gets of the preparation: rows where it sees the dataset, prompts where it decodes."""
        if not self._prepared[chain.dataset] or "dataset" not in stage.config or stage == PREPARE:
            return {}
        names = {DATASET: PREPARE} | ({PROMPTS: TOKENIZE} if "generation" in stage.config else {})
        return {
            name: self._outputs[
                PREPARATION, chain.dataset, chain.model, chain.reference, chain.seed, 0, source.name
            ]
            for name, source in names.items()
        }

    def _shards(self, stage: Stage) -> Iterator[tuple[int | None, tuple[int, int]]]:
        if stage.shards is None:
            yield None, (0, 0)
            return
        training = stage.shards == "train"
        total = self.config.data_collection.prompts_per_round if training else self.config.evaluation.num_prompts
        size = self.config.execution.shard_size
        for shard in range(math.ceil(total / size)):
            yield shard, (shard * size, min(total, (shard + 1) * size))

    def _read(self, chain: Chain, number: int, stage: Stage, spec: Read) -> list[str]:
        algo, rounds = chain.algo, range(number, number + 1)
        own = {each.name for each in chain.kind.stages}
        if spec.algo == "self" and spec.stage in own - {s.name for s in planned_stages(chain.kind, self.config)}:
            return []
        if spec.algo != "self":
            algo, rounds = spec.algo, range(1)
        elif spec.rounds == "previous":
            rounds = range(max(chain.rounds_from, number - 1), number)
        elif spec.rounds == "so_far":
            rounds = range(chain.rounds_from, number + 1)
        found = []
        for earlier in rounds:
            address = (algo, chain.dataset, chain.model, chain.reference, chain.seed, earlier, spec.stage)
            if address not in self._outputs:
                raise _no_such_stage(chain, stage, spec)
            found += self._outputs[address]
        return found

    def _add(
        self,
        chain: Chain,
        number: int,
        stage: Stage,
        shard: int | None,
        rows: tuple[int, int],
        read: Mapping[str, list[str]],
    ) -> str:
        inputs = {name: tuple(self.jobs[job_id].key for job_id in ids) for name, ids in read.items()}
        payload = self._what_it_is(chain, number, stage, rows)
        known, given = self._config(chain, stage)
        determined_by = {**payload, "version": chain.kind.version, "config": known}
        devices = self._devices(chain, stage)
        together: dict[str, Any] = {}
        if devices > 1:
            together = {"devices": devices, "spread": spread(self.config)}
            determined_by |= together
            together["master_port"] = self.config.distributed.master_port
        if stage == PREPARE:
            determined_by["source"] = dict(self.sources.get(chain.dataset, {}))
        key = result_key({**determined_by, "inputs": inputs})
        if key in self._by_key:
            return self._by_key[key]
        job = Job(
            id=_job_id(chain, number, stage, shard),
            key=key,
            entry=ENTRY,
            payload={
                **payload,
                **together,
                "config": given,
                **self._how_it_runs(),
                "samples": self._samples(stage, rows),
            },
            inputs=inputs,
            determined_by=determined_by,
            algo=chain.algo,
            dataset=chain.dataset,
            model=chain.model,
            reference=chain.reference if _rests_on_reference(stage) else None,
            seed=chain.seed if stage.seeded else None,
            round=number,
            stage=stage.name,
            shard=shard,
            samples=self._samples(stage, rows),
            affinity=_affinity(stage, inputs),
            devices=devices,
            memory_mb=self._memory_mb(chain, stage),
        )
        kind = _memory_kind(job, self._digest(chain, stage, known, together))
        self.jobs[job.id] = replace(self._timed(job, chain, stage), memory_kind=kind)
        self._by_key[key] = job.id
        self.edges += [(upstream, job.id) for ids in read.values() for upstream in ids]
        return job.id

    def _what_it_is(self, chain: Chain, number: int, stage: Stage, rows: tuple[int, int]) -> dict[str, Any]:
        """What of a job's payload its key covers, besides the sections of the configuration."""
        payload: dict[str, Any] = {
            "algo": chain.algo,
            "class_path": chain.config.class_path,
            "seed": chain.seed if stage.seeded else 0,
            "round": number,
            "stage": stage.name,
            "rows": list(rows),
        }
        if own := self._own_code(chain, stage):
            payload["code"] = own
        return payload

    def _how_it_runs(self) -> dict[str, Any]:
        """What of a job's payload changes nothing of what comes out."""
        return {
            "models_in_memory": self.config.execution.models_in_memory,
            "checkpoint_every_steps": self.config.training.checkpoint_every_steps,
            "checkpoint_every_minutes": self.config.training.checkpoint_every_minutes,
        }

    def _memory_mb(self, chain: Chain, stage: Stage) -> int | None:
        """What the user says of a job's memory."""
        if "algo" in stage.config and chain.config.memory_mb is not None:
            return chain.config.memory_mb
        if "training" in stage.config:
            return self.config.training.memory_mb
        return self.config.generation.memory_mb if "generation" in stage.config else None

    def _digest(self, chain: Chain, stage: Stage, known: Mapping[str, Any], together: Mapping[str, Any]) -> str:
        """A short name for the settings on which the memory of a job may depend, whichever its reference is."""
        address = (chain.algo, chain.dataset, chain.model, stage.name)
        if address not in self._digests:
            self._digests[address] = result_key({"config": known, "spread": together.get("spread")})[:12]
        return self._digests[address]

    def _devices(self, chain: Chain, stage: Stage) -> int:
        # The reference of a model that is not trained here only notes where that model is.
        trains = chain.algo != REFERENCE or self.config.models[chain.model].is_trained
        return max(stage.devices, devices_per_training(self.config)) if stage.scales and trains else stage.devices

    def _config(self, chain: Chain, stage: Stage) -> tuple[dict[str, Any], dict[str, Any]]:
        """The sections that a stage declares: what of them its key covers, and as its worker gets them.

        Made once for all jobs that share them, since thousands of shards do.
        """
        address = (chain.algo, chain.dataset, chain.model, chain.reference, stage.name)
        if address not in self._configs:
            sections = self._sections(chain, stage)
            known = {name: determining(section) for name, section in sections.items()}
            if "model" in known:
                known["model"] |= self._identity(chain)
            shown = self.config.datasets[chain.dataset], self.config.models[chain.model]
            if versions := shipped_versions(chain.kind, stage, *shown, self.config.generation):
                known["version"] = versions
            self._configs[address] = (
                known,
                {name: self._plain(section) for name, section in sections.items()},
            )
        return self._configs[address]

    def _plain(self, section: object) -> dict[str, Any]:
        """A section as workers get it; kept with the section, so that no other has its number meanwhile."""
        if id(section) not in self._plains:
            self._plains[id(section)] = section, {"_schema_": schema_path(section), **to_plain(section)}
        return self._plains[id(section)][1]

    def _own_code(self, chain: Chain, stage: Stage) -> dict[str, str | None]:
        """Hashes of the user's own code that a stage runs."""
        own = class_source(chain.config.class_path)
        return own | (dataset_source(self.config.datasets[chain.dataset]) if "dataset" in stage.config else {})

    def _identity(self, chain: Chain) -> dict[str, Any]:
        """What identifies the content of a model; to the work that all chains share value models do not matter."""
        found = dict(self.models.get(chain.model, {}))
        if chain.algo in (REFERENCE, PREPARATION):
            found.pop("value", None)
        return {"content": found} if found else {}

    def _sections(self, chain: Chain, stage: Stage) -> dict[str, object]:
        own = {
            "algo": chain.config,
            "dataset": self.config.datasets[chain.dataset],
            "model": self.config.models[chain.model].with_reference(chain.reference),
        }
        return {name: own[name] if name in own else getattr(self.config, name) for name in stage.config}

    def _samples(self, stage: Stage, rows: tuple[int, int]) -> int:
        each = {
            "train": self.config.data_collection.samples_per_example,
            "eval": self.config.evaluation.num_samples,
        }
        return (rows[1] - rows[0]) * each[stage.shards] if stage.shards else 0

    def _timed(self, job: Job, chain: Chain, stage: Stage) -> Job:
        size_s = self._guess(job, chain, stage)
        seconds = self.durations.expected_s(duration_name(job), size_s, job.samples)
        return replace(job, seconds=round(seconds, 6), size_s=round(size_s, 6))

    def _guess(self, job: Job, chain: Chain, stage: Stage) -> float:
        scale = self._scales[job.dataset, job.model]
        if chain.algo == REFERENCE and stage.scales:
            return guess_reference(stage, scale, self.config.models[chain.model], job.devices)
        algo = None if chain.algo in (REFERENCE, PREPARATION) else chain.config
        aggregated = getattr(chain.config, "aggregate", True) and any(
            read.rounds == "so_far" for read in stage.reads
        )
        rounds = job.round - chain.rounds_from + 1 if aggregated else 1
        return guess_seconds(stage, job.samples, scale, algo, rounds=rounds, devices=job.devices)


def _job_id(chain: Chain, number: int, stage: Stage, shard: int | None) -> str:
    named = chain.named_reference if _rests_on_reference(stage) else None
    parts = [place_name(chain.dataset, chain.model, named)]
    if stage.seeded:
        parts.append(f"s{chain.seed}")
    parts.append(chain.algo)
    if chain.algo not in (REFERENCE, PREPARATION):
        parts.append(f"r{number}")
    parts.append(stage.name)
    if shard is not None:
        parts.append(f"{shard:03d}")
    return "/".join(parts)


def _rests_on_reference(stage: Stage) -> bool:
    """Whether the work of a stage follows from the reference: all but the reading of rows does."""
    return stage != PREPARE


def _affinity(stage: Stage, inputs: Mapping[str, tuple[str, ...]]) -> str:
    """The model that a job would rather find loaded: the most specific of those it reads."""
    if not stage.loads_models:
        return ""
    for name in ("train", "train@previous", "reference.train"):
        if name in inputs:
            return inputs[name][0]
    return ""


def _no_such_stage(chain: Chain, stage: Stage, spec: Read) -> PlanError:
    return PlanError(
        f"stage '{stage.name}' of {chain.algo} reads '{spec.name}', which no earlier stage provides; "
        f"its stages are, in order: {', '.join(s.name for s in chain.kind.stages)}"
    )
