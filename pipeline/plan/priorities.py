"""Priorities of jobs: what `execution.priority`, a function of the user's own, gives for each, asked once.

Where there is none and weights are removed once nothing reads them, what stands in the way of that goes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from numbers import Real
from typing import Any

from pipeline.config.place import defined_at
from pipeline.config.schema import Config, Keep
from pipeline.config.user_code import ask, import_object
from pipeline.config.values import brief
from pipeline.errors import ConfigError
from pipeline.plan.graph import Job


def with_priorities(jobs: Iterable[Job], edges: Iterable[tuple[str, str]], config: Config) -> list[Job]:
    """Jobs with the priorities that ``execution.priority`` gives them.

    Args:
        jobs: Those of a plan.
        edges: Pairs of ids of them, one whose output the other reads.
        config: The request.

    Raises:
        ConfigError: There is no such function, or it fails, or gives what is no finite number.
    """
    path = config.execution.priority
    if path is None:
        return list(jobs) if config.execution.keep is Keep.all else _freeing_first(list(jobs), edges)
    owner = f"execution.priority={path}"
    function = import_object(path)
    if not callable(function):
        raise ConfigError(f"{owner}: this is {brief(function)}, and must be a function of a job and the settings")
    given = deepcopy(config)  # what the function may change is its own
    return [replace(job, priority=_priority(owner, function, job, given)) for job in jobs]


def _freeing_first(jobs: list[Job], edges: Iterable[tuple[str, str]]) -> list[Job]:
    """The same, those first that lead to no further weights: they hold on to what could go, or say which is best.

    By the longest path such jobs come last, as evaluations do, so that the weights of all rounds would be there.
    """
    inputs: dict[str, list[str]] = {}
    for upstream, downstream in edges:
        inputs.setdefault(downstream, []).append(upstream)
    leading, frontier = set[str](), [job.id for job in jobs if job.weights]
    while frontier:
        job_id = frontier.pop()
        if job_id not in leading:
            leading.add(job_id)
            frontier += inputs.get(job_id, ())
    return [replace(job, priority=1.0) if job.id not in leading else job for job in jobs]


def _priority(owner: str, function: Callable[..., Any], job: Job, config: Config) -> float:
    shown = replace(job, payload={}, inputs={}, determined_by={})  # as it could change the job by these
    value = ask(f"{owner}, called with the job {job.id} and the settings,", lambda: function(shown, config))
    number = ask(f"{owner}: what it gave for the job {job.id}", lambda: _finite(value))
    if number is None:
        raise ConfigError(
            f"{owner} gave {brief(value)} for the job {job.id}, but must give a finite number: jobs with larger "
            f"ones start earlier{defined_at(function)}"
        )
    return number


def _finite(value: Any) -> float | None:
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
