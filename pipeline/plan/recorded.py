"""Read and write ``plan.json``, a run's record of its plan: enough to follow every job and to explain its key."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from pipeline.config.schema import Keep
from pipeline.errors import PlanError
from pipeline.foreign import ForeignDataError, converted, parse_json
from pipeline.plan.graph import Job, Plan, reached

LIMIT = 4 << 30
"""Largest size of a ``plan.json`` in bytes: about three million jobs."""


@dataclass(frozen=True, kw_only=True)
class Become:
    """What a run has become by a request, as `Origin` and ``config.yaml`` say it, which are written later.

    Attributes:
        command: Words of the command that repeats it.
        settings: The settings among them.
        config: Text of its configuration.
    """

    command: list[str]
    settings: list[str]
    config: str


@dataclass(frozen=True, kw_only=True)
class RecordedPlan:
    """Jobs, edges and the jobs already stored when the run began.

    Attributes:
        jobs: Job id -> job, in planning order. Their `determined_by` and `payload` have a digest under ``config``,
            see `config`; a payload lacks the data that `determined_by` has as well.
        edges: Pairs of job ids: a job, and one that reads its output.
        stored: Ids of the jobs that need not run.
        sections: Digest -> sections of the configuration.
        key_format: The format of keys in that version of the code, or None if it was not recorded.
        keep: Which trained weights the run keeps, or None if not recorded, which means all.
        become: What the run has become by the last request; None if it was not changed.
    """

    jobs: dict[str, Job]
    edges: list[tuple[str, str]]
    stored: frozenset[str] = frozenset()
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    key_format: int | None = None
    keep: Keep | None = None
    become: Become | None = None

    @cached_property
    def by_key(self) -> dict[str, str]:
        """Key -> id of the job that makes it."""
        return {job.key: job.id for job in self.jobs.values()}

    @cached_property
    def inputs(self) -> dict[str, list[str]]:
        """Job id -> ids of the jobs whose outputs it reads."""
        inputs: dict[str, list[str]] = {job_id: [] for job_id in self.jobs}
        for upstream, downstream in self.edges:
            inputs[downstream].append(upstream)
        return inputs

    def config(self, job_id: str) -> Mapping[str, Any]:
        """Return the sections of the configuration that a job's key covers; empty if they were not recorded."""
        digest = self.jobs[job_id].determined_by.get("config", "")
        return self.sections.get(digest, {}) if isinstance(digest, str) else {}


class _WithId(msgspec.Struct):
    id: str


class _Named(msgspec.Struct):
    """Jobs as a plan has them, in a list."""

    jobs: list[_WithId]


def plan_text(
    plan: Plan, stored: Collection[str] = (), keep: Keep = Keep.all, become: Become | None = None
) -> str:
    """Return the text of ``plan.json``: one job or edge per line, so that it is small and can be searched by line.

    Args:
        plan: The plan.
        stored: Ids of the jobs that need not run.
        keep: Which trained weights the run keeps.
        become: What the run has become by a request; None if it was not changed.
    """
    parts, more = [], {"become": asdict(become)} if become else {}
    for name, value in {**plan.to_json(stored), "keep": keep.name, **more}.items():
        if isinstance(value, list) and value:
            parts.append(f"{_compact(name)}:[\n" + ",\n".join(map(_compact, value)) + "\n]")
        else:
            parts.append(f"{_compact(name)}:{_compact(value)}")
    return "{" + ",\n".join(parts) + "}\n"


def parse_plan(text: str | bytes) -> RecordedPlan:
    """Parse a ``plan.json``; data of older or newer versions are ignored or empty.

    Raises:
        PlanError: The text is not a plan; says why, and the caller which file it is.
    """
    try:
        return recorded(parse_json(text, infinite=True))  # a configuration may have eta=inf
    except ForeignDataError as error:
        raise PlanError(str(error)) from error


def recorded(data: Any) -> RecordedPlan:
    """Convert plain data, such as the result of `Plan.to_json`, to a recorded plan.

    Raises:
        PlanError: The data are not a plan.
    """
    try:
        converted(data, _Named)
        plan = converted({**data, "jobs": {job["id"]: job for job in data["jobs"]}}, RecordedPlan)
    except ForeignDataError as error:
        raise PlanError(f"it is not a plan: {error}") from error
    if unknown := [job_id for edge in plan.edges for job_id in edge if job_id not in plan.jobs]:
        raise PlanError(f"it is not a plan: it has an edge of {unknown[0]!r}, which is none of its jobs")
    return plan


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


# -- key diff ----------------------------------------------------------------------------------------------------
# Explain why a job's key changed: compare two plans, and follow inputs that differ to the root.


_MISSING = object()
_SECTIONS = {"algo": "algos", "dataset": "datasets", "model": "models"}


@dataclass(frozen=True)
class Change:
    """One change among the data that determine a key.

    Attributes:
        what: A key of the configuration, dotted as on the command line, or a description of something else.
        old: Old value, in words.
        new: New value, in words.
        follows: Whether it only follows from the number of prompts and shards, and so is much the same in every
            shard.
    """

    what: str
    old: str
    new: str
    follows: bool = False

    def __str__(self) -> str:
        return f"{self.what}: {self.old} -> {self.new}"


def causes(old: RecordedPlan, new: RecordedPlan, job_id: str) -> dict[str, list[Change]]:
    """Return everything that changed a job's key: its own changes first, then those of jobs that it depends on.

    A change that affects several of these jobs is reported once: for the job itself if it is one of them, else for
    the first in the plan.

    Args:
        old: The earlier plan, which has the job.
        new: The plan with the job in question.
        job_id: Id of the job.

    Returns:
        Job id -> its changes; empty if both keys are equal, or if the plans do not record what determines them.
    """
    if old.jobs[job_id].key == new.jobs[job_id].key:
        return {}
    changed_keys = {at for at in new.jobs if at in old.jobs and old.jobs[at].key != new.jobs[at].key}
    differ = reached([job_id], lambda at: changed_keys.intersection(new.inputs[at]))
    reported: set[tuple[str, ...]] = set()
    changed = {}
    for at in [job_id, *(at for at in new.jobs if at in differ and at != job_id)]:
        job, changes = new.jobs[at], {}
        for change in own_changes(old, new, at):
            what = (change.what, job.algo, job.stage) if change.follows else (change.what, change.old, change.new)
            changes[what] = change
        if untold := {what: change for what, change in changes.items() if what not in reported}:
            changed[at] = list(untold.values())
            reported |= untold.keys()
    return changed


def own_changes(old: RecordedPlan, new: RecordedPlan, job_id: str) -> list[Change]:
    """Return the changes in a job itself, not in its inputs."""
    before, after = _facts(old, job_id), _facts(new, job_id)
    whats = [what for what in dict.fromkeys([*before, *after]) if before.get(what) != after.get(what)]
    if not (old.jobs[job_id].determined_by and new.jobs[job_id].determined_by):
        whats = []  # one of the plans does not record it
    sections = tuple(f"{what.removeprefix(_SECTION)}." for what in whats if what.startswith(_SECTION))
    changes = []
    for what in whats:
        was, now = before.get(what, _MISSING), after.get(what, _MISSING)
        follows = what == _ROWS or what.startswith(_READS)
        show = _jobs if what.startswith(_READS) else _rows if what == _ROWS else shown
        if not what.startswith(sections):
            changes.append(Change(what, show(was), show(now), follows))
    return changes


_SECTION, _READS, _ROWS = "the section ", "what it reads as ", "its rows"


def _facts(plan: RecordedPlan, job_id: str) -> dict[str, Any]:
    """Return all data that determine the key of a job, by their names for users."""
    job, config = plan.jobs[job_id], plan.config(job_id)
    named = {"version": f"the version of {job.algo}'s code", "class_path": f"algos.{job.algo}.class_path"}
    named |= {"seed": "the seed", "rows": _ROWS}
    facts: dict[str, Any] = {"the format of stored files": plan.key_format}
    facts |= {what: job.determined_by[name] for name, what in named.items() if name in job.determined_by}
    facts |= {f"the source of {path}": digest for path, digest in (job.determined_by.get("code") or {}).items()}
    others = job.determined_by.keys() - {*named, "code", "config"}
    facts |= {name: job.determined_by[name] for name in job.determined_by if name in others}
    for part, version in config.get("version", {}).items():
        shipped = "" if part.startswith(("class ", "package ")) else "shipped "
        facts[f"the version of the {shipped}{part}"] = version
    for section, value in config.items():
        if section != "version":
            name = f"{_SECTIONS[section]}.{getattr(job, section)}" if section in _SECTIONS else section
            facts |= {f"{_SECTION}{name}": "read", **dict(_leaves(name, value))}
    for name, keys in job.inputs.items():
        facts[f"{_READS}'{name}'"] = [plan.by_key.get(key, key) for key in keys]
    return facts


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inside in value.items():
            yield from _leaves(f"{path}.{name}", inside)
    else:
        yield path, value


def _jobs(job_ids: Any) -> str:
    if not isinstance(job_ids, list) or not job_ids:
        return "nothing"
    return str(job_ids[0]) + (f" and {len(job_ids) - 1} more" if len(job_ids) > 1 else "")


def _rows(value: Any) -> str:
    return f"{value[0]} to {value[1] - 1}" if isinstance(value, list | tuple) and len(value) == 2 else shown(value)


def shown(value: object) -> str:
    """Format a value of the configuration as on the command line."""
    if value is _MISSING:
        return "(not there)"
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
