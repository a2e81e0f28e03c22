"""A plan as a run has recorded it in ``plan.json``: enough to say where every job stands and what made its key."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from pipeline.config.schema import Keep
from pipeline.errors import PlanError
from pipeline.foreign import ForeignDataError, converted, parse_json
from pipeline.plan.graph import Plan
from pipeline.plan.job import Job

LIMIT = 4 << 30
"""Bytes that a ``plan.json`` has at most: about three million jobs."""


@dataclass(frozen=True, kw_only=True)
class RecordedPlan:
    """Jobs, edges and what was stored when the run began.

    Attributes:
        jobs: Job id -> job, in the order in which they were planned. Their `determined_by` and `payload` have a
            digest under ``config``, see `config`; a payload lacks what `determined_by` says as well.
        edges: Pairs of job ids: one whose output the other reads.
        stored: Ids of the jobs that need not run.
        sections: Digest -> sections of the configuration.
        key_format: The format of keys that the code had, or None where that was not recorded.
        keep: Which trained weights the run keeps, or None where that was not recorded: all of them.
    """

    jobs: Mapping[str, Job]
    edges: list[tuple[str, str]]
    stored: frozenset[str]
    sections: Mapping[str, Mapping[str, Any]]
    key_format: int | None
    keep: Keep | None = None

    @cached_property
    def by_key(self) -> dict[str, str]:
        """Key -> id of the job that makes it."""
        return {job.key: job.id for job in self.jobs.values()}

    @cached_property
    def inputs(self) -> dict[str, list[str]]:
        """Job id -> ids of the jobs whose outputs it reads."""
        found: dict[str, list[str]] = {job_id: [] for job_id in self.jobs}
        for upstream, downstream in self.edges:
            found[downstream].append(upstream)
        return found

    def config(self, job_id: str) -> Mapping[str, Any]:
        """The sections of the configuration that a job's key covers; empty where they were not recorded."""
        digest = self.jobs[job_id].determined_by.get("config", "")
        return self.sections.get(digest, {}) if isinstance(digest, str) else {}


def plan_text(plan: Plan, stored: Collection[str] = (), keep: Keep = Keep.all) -> str:
    """The text of ``plan.json``: one job or edge a line, so that it is small and can still be searched by line.

    Args:
        plan: The plan.
        stored: Ids of the jobs that need not run.
        keep: Which trained weights the run keeps.
    """
    parts = []
    for name, value in {**plan.to_json(stored), "keep": keep.name}.items():
        if isinstance(value, list) and value:
            parts.append(f"{_compact(name)}:[\n" + ",\n".join(map(_compact, value)) + "\n]")
        else:
            parts.append(f"{_compact(name)}:{_compact(value)}")
    return "{" + ",\n".join(parts) + "}\n"


def parse_plan(text: str | bytes) -> RecordedPlan:
    """Read a ``plan.json``; what an older or newer version of it has more or less is left out or empty.

    Raises:
        PlanError: It is no plan.
    """
    try:
        return recorded(parse_json(text, infinite=True))  # a configuration may have eta=inf
    except ForeignDataError as error:
        raise PlanError(f"this is no plan.json: {error}") from error


def recorded(data: Mapping[str, Any]) -> RecordedPlan:
    """The same from plain data, such as `Plan.to_json` gives.

    Raises:
        PlanError: It is no plan.
    """
    try:
        found = converted(data, _PlanFile)
    except ForeignDataError as error:
        raise PlanError(f"this is no plan.json: {error}") from error
    jobs = {job.id: job for job in found.jobs}
    for edge in found.edges:
        if unknown := [job_id for job_id in edge if job_id not in jobs]:
            raise PlanError(f"this is no plan.json: it has an edge of {unknown[0]!r}, which is none of its jobs")
    return RecordedPlan(
        jobs=jobs,
        edges=found.edges,
        stored=frozenset(found.stored),
        sections=found.sections,
        key_format=found.key_format,
        keep=None if found.keep is None else Keep[found.keep],
    )


@dataclass(frozen=True, kw_only=True)
class _PlanFile:
    jobs: list[Job]
    edges: list[tuple[str, str]]
    stored: list[str] = field(default_factory=list)
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    key_format: int | None = None
    keep: Literal["all", "last", "best", "results"] | None = None


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
