"""The chains of a request: one algorithm on one dataset, model, reference and seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from pipeline.config.bases import AlgoConfig
from pipeline.config.schema import Config
from pipeline.errors import ConfigError
from pipeline.learning.algos.base import START_TRAIN, Algorithm
from pipeline.learning.algos.policy_config import start_of, starts_of
from pipeline.learning.algos.reference import Preparation, Reference
from pipeline.learning.algos.registry import load_algorithm

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
