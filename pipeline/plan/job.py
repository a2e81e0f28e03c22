"""A job: the unit that is scheduled, retried and stored. Plain data, so a plan can be printed and saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
    return f"{place_name(dataset, model, reference)}/{seed_name(seed)}/{algo}"


def seed_name(seed: int | None) -> str:
    """A seed in the name of a chain."""
    return ANY if seed is None else f"s{seed}"


def duration_name(job: Job) -> str:
    """Under which name the run time of a job is remembered."""
    return duration_kind(job.dataset, job.model, job.algo, job.stage, job.devices)


def duration_kind(dataset: str, model: str, algo: str, stage: str, devices: int) -> str:
    """The same of a job that is still to be made."""
    name = f"{dataset}/{model}/{algo}/{stage}"
    return name if devices == 1 else f"{name} on {devices} devices"
