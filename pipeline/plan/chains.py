"""The chains of a request: one algorithm on one dataset, model, reference and seed; how large its plan is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from pipeline.config.schema import AlgoConfig, Config
from pipeline.errors import ConfigError, PlanError
from pipeline.learning.algos.base import START_TRAIN, Algorithm, Stage
from pipeline.learning.algos.policy_config import start_of, starts_of
from pipeline.learning.algos.reference import Preparation, Reference
from pipeline.learning.algos.registry import load_algorithm, planned_stages

REFERENCE = Reference.name
PREPARATION = Preparation.name


@dataclass(frozen=True, kw_only=True)
class Chain:
    """One algorithm on one dataset, model, reference and seed; the reference is a chain of round 0 alone.

    Attributes:
        reference: Seed of the reference, or None where the model is not made from one.
        named_reference: The same where the model has several, so that names must tell them apart; else None.
    """

    algo: str
    dataset: str
    model: str
    reference: int | None
    named_reference: int | None
    seed: int
    kind: type[Algorithm]
    config: AlgoConfig

    @property
    def rounds_from(self) -> int:
        """The round it starts with."""
        return 0 if self.algo in (REFERENCE, PREPARATION) else 1


def chains(config: Config) -> Iterator[Chain]:
    """Every chain of a request, each reference of a dataset, model and seed before the chains that read it.

    So is every chain before those that begin with its policy.

    Raises:
        ConfigError: An algorithm cannot be loaded, or does not read what it is to begin with.
    """
    enabled = [
        (name, load_algorithm(name, algo.class_path), algo) for name, algo in config.algos.items() if algo.enabled
    ]
    for name, kind, algo in enabled:
        if start_of(algo) and not any(START_TRAIN in stage.reads for stage in kind.stages_with(algo)):
            raise ConfigError(
                f"algos.{name}.start={start_of(algo)}: no stage of {kind.__name__} reads it. Add START_TRAIN "
                "to the reads of those that begin with a policy"
            )
    enabled.sort(key=lambda each: len(starts_of(each[2], config.algos)))
    for dataset, (model, section) in product(config.datasets, config.models.items()):
        several = len(section.references) > 1
        for reference, seed in product(section.references, config.experiment.seeds):
            for name, kind, algo in [(REFERENCE, Reference, AlgoConfig()), *enabled]:
                yield Chain(
                    algo=name,
                    dataset=dataset,
                    model=model,
                    reference=reference,
                    named_reference=reference if several else None,
                    seed=seed,
                    kind=kind,
                    config=algo,
                )


# -- size --------------------------------------------------------------------------------------------------------
# How large a plan would be, by arithmetic alone: one that nobody could wait for is refused before it is
# built.


MOST_JOBS = 1_000_000
MOST_LINKS = 5_000_000
"""Outputs that jobs read of each other: training on all rounds so far takes about the square of the rounds."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """What the size of a plan follows from.

    Attributes:
        pairs: Datasets times models, each reference of a model counted.
        seeds: How many.
        rounds: How many.
        train_prompts: Of a round.
        eval_prompts: Of an evaluation.
        shard_size: Prompts of a job.
        algos: The stages of each algorithm.
    """

    pairs: int
    seeds: int
    rounds: int
    train_prompts: int
    eval_prompts: int
    shard_size: int
    algos: tuple[tuple[Stage, ...], ...]

    @property
    def jobs(self) -> int:
        """Jobs at most; those that turn out to be the same are counted once each."""
        shared = len(Preparation.stages) + sum(
            self._shards(stage) * (self.seeds if stage.seeded else 1) for stage in Reference.stages
        )
        own = sum(self._shards(stage) for stages in self.algos for stage in stages)
        return self.pairs * (shared + self.seeds * self.rounds * own)

    @property
    def links(self) -> int:
        """Outputs that the jobs of algorithms read, of each other and of the reference."""
        shared = {stage.name: stage for stage in Reference.stages}
        found = 0
        for stages in self.algos:
            by_name = {stage.name: stage for stage in stages}
            for stage in stages:
                for read in stage.reads:
                    source = (by_name if read.algo == "self" else shared).get(read.stage)
                    times = self.rounds * (self.rounds + 1) // 2 if read.rounds == "so_far" else self.rounds
                    each = 1 if source is None or read.rounds == "shard" else self._shards(source)
                    found += self._shards(stage) * times * each
        return self.pairs * self.seeds * found

    @property
    def fits(self) -> bool:
        """Whether a plan of this extent is made."""
        return self.jobs <= MOST_JOBS and self.links <= MOST_LINKS

    def _shards(self, stage: Stage) -> int:
        prompts = {"train": self.train_prompts, "eval": self.eval_prompts}
        return 1 if stage.shards is None else math.ceil(prompts[stage.shards] / self.shard_size)


def extent_of(config: Config) -> Extent:
    """The extent of a request's plan.

    Raises:
        ConfigError: An algorithm cannot be loaded.
    """
    enabled = {name: algo for name, algo in config.algos.items() if algo.enabled}
    return Extent(
        pairs=len(config.datasets) * sum(len(model.references) for model in config.models.values()),
        seeds=len(config.experiment.seeds),
        rounds=config.rounds_of_training,
        train_prompts=config.data_collection.prompts_per_round,
        eval_prompts=config.evaluation.num_prompts,
        shard_size=config.execution.shard_size,
        algos=tuple(
            tuple(planned_stages(load_algorithm(name, algo.class_path), algo, config))
            for name, algo in enabled.items()
        ),
    )


def check_size(config: Config) -> None:
    """Refuse a request whose plan would be too large.

    Raises:
        ConfigError: An algorithm cannot be loaded.
        PlanError: It is too large; says which setting makes it so, and what would fit.
    """
    extent = extent_of(config)
    if extent.fits:
        return
    if extent.jobs > MOST_JOBS:
        too_many = f"the plan would have {extent.jobs:,} jobs, and {MOST_JOBS:,} are the most"
    else:
        too_many = f"its jobs would read {extent.links:,} outputs of each other, and {MOST_LINKS:,} are the most"
    raise PlanError(
        f"{too_many}. There are {extent.pairs:,} pairs of dataset and reference, {len(extent.algos)} algorithms, "
        f"{extent.seeds:,} experiment.seeds, rounds_of_training={extent.rounds}, "
        f"data_collection.prompts_per_round={extent.train_prompts}, evaluation.num_prompts={extent.eval_prompts}, "
        f"execution.shard_size={extent.shard_size}: lower some of them, or raise the last"
    )
