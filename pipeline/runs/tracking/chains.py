"""What of a plan becomes a run of a tracker: every chain with its settings, under a name and an id that stay."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.plan.graph import Job
from pipeline.plan.recorded import RecordedPlan

_ID = 16
_NAMES = ("name", "class_path", "_schema_")
"""Of a section, besides its settings."""


@dataclass(frozen=True, kw_only=True)
class TrackedChain:
    """A chain as trackers know it.

    Attributes:
        id: Of the chain with these settings: the same in every run of the experiment, however many rounds it asks
            for; another where a setting that can change a result is another.
        name: ``ALGO/dataset/model/s0``, for people.
        experiment: What it is part of.
        settings: What its results depend on, as ``algo.eta``; plain values.
        jobs: Its jobs, in the order of the plan.
    """

    id: str
    name: str
    experiment: str
    settings: Mapping[str, str | float | bool]
    jobs: tuple[Job, ...]


def tracked_chains(plan: RecordedPlan, experiment: str) -> list[TrackedChain]:
    """The chains of a plan, in its order; references are chains too."""
    jobs: dict[str, list[Job]] = {}
    for job in plan.jobs.values():
        jobs.setdefault(job.chain, []).append(job)
    return [
        TrackedChain(
            id=_id(experiment, chain, found),
            name=_name(chain, found[0].algo),
            experiment=experiment,
            settings=_settings(plan, found),
            jobs=tuple(found),
        )
        for chain, found in jobs.items()
    ]


def _id(experiment: str, chain: str, jobs: list[Job]) -> str:
    """Of what the first round rests on: its keys cover every setting, and further rounds change none of them."""
    first = min(job.round for job in jobs)
    keys = sorted(job.key for job in jobs if job.round == first)
    return hashlib.sha256(json.dumps([experiment, chain, keys]).encode()).hexdigest()[:_ID]


def _name(chain: str, algo: str) -> str:
    """The algorithm first, so that trackers group by it; what all seeds share has none."""
    return f"{algo}/{chain.removesuffix(f'/{algo}').removesuffix('/any')}"


def _settings(plan: RecordedPlan, jobs: list[Job]) -> dict[str, str | float | bool]:
    sections: dict[str, object] = {}
    for job in jobs:
        if job.shard in (None, 0):
            sections |= plan.config(job.id)
    first = jobs[0]
    place = {name: getattr(first, name) for name in ("algo", "dataset", "model", "reference", "seed")}
    return dict(sorted(_flat({"chain": place, **sections}, "")))


def _flat(value: object, name: str) -> Iterator[tuple[str, str | float | bool]]:
    match value:
        case Mapping():
            for inner, part in value.items():
                if inner not in _NAMES:
                    yield from _flat(part, f"{name}.{inner}" if name else str(inner))
        case float() if not math.isfinite(value):
            yield name, str(value)  # JSON has no number for it
        case bool() | int() | float() | str():
            yield name, value
        case None:
            pass
        case _:
            yield name, json.dumps(value)
