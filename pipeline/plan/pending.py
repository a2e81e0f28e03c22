"""What a plan still has to run, given what is stored."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.plan.graph import Plan


def missing_jobs(plan: Plan, is_stored: Callable[[str], bool]) -> list[str]:
    """Ids of the jobs that must run, in plan order.

    The goals are the jobs that no other reads. A missing job needs its inputs; an input that is stored needs
    nothing, so outputs that only led to what is already there are not asked for.

    Args:
        plan: The plan.
        is_stored: Whether the output of a key is stored; asked once for each job that is needed.
    """
    needed: set[str] = set()
    missing: set[str] = set()
    frontier = [job_id for job_id in plan.jobs if not plan.readers(job_id)]
    while frontier:
        job_id = frontier.pop()
        if job_id in needed:
            continue
        needed.add(job_id)
        if not is_stored(plan.jobs[job_id].key):
            missing.add(job_id)
            frontier += plan.inputs(job_id)
    return [job_id for job_id in plan.jobs if job_id in missing]
