"""A plan as a run has recorded it in ``plan.json``: enough to say where every job stands and what made its key."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from pipeline.errors import PlanError
from pipeline.plan.graph import Plan
from pipeline.plan.job import Job

_FIELDS = frozenset(item.name for item in fields(Job))


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
    """

    jobs: Mapping[str, Job]
    edges: list[tuple[str, str]]
    stored: frozenset[str]
    sections: Mapping[str, Mapping[str, Any]]
    key_format: int | None

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
        return self.sections.get(self.jobs[job_id].determined_by.get("config", ""), {})


def plan_text(plan: Plan, stored: Collection[str] = ()) -> str:
    """The text of ``plan.json``: one job or edge a line, so that it is small and can still be searched by line.

    Args:
        plan: The plan.
        stored: Ids of the jobs that need not run.
    """
    parts = []
    for name, value in plan.to_json(stored).items():
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
        return recorded(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlanError(f"this is no plan.json: {type(error).__name__}: {error}") from error


def recorded(data: Mapping[str, Any]) -> RecordedPlan:
    """The same from plain data, such as `Plan.to_json` gives."""
    jobs = [_job(entry) for entry in data["jobs"]]
    return RecordedPlan(
        jobs={job.id: job for job in jobs},
        edges=[(upstream, downstream) for upstream, downstream in data["edges"]],
        stored=frozenset(data.get("stored", ())),
        sections=data.get("sections", {}),
        key_format=data.get("key_format"),
    )


def _job(entry: Mapping[str, Any]) -> Job:
    known = {name: value for name, value in entry.items() if name in _FIELDS}
    known["inputs"] = {name: tuple(keys) for name, keys in entry.get("inputs", {}).items()}
    return Job(**known)


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
