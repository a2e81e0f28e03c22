"""What a plan still has to run, given what is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pipeline.plan.graph import Plan


def missing_jobs(
    plan: Plan,
    is_whole: Callable[[str], bool],
    is_made: Callable[[str], bool] | None = None,
    *,
    whole: Iterable[str] = (),
) -> list[str]:
    """Ids of the jobs that must run, in plan order.

    The goals are the jobs that no other reads. A missing job needs its inputs; an input that is stored needs
    nothing, so outputs that only led to what is already there are not asked for. An output whose weights were
    removed is enough for a goal. A job that must run reads what it reads whole, so its maker must run too then.

    Args:
        plan: The plan.
        is_whole: Whether the output of a key is stored whole; asked once for each job that is needed.
        is_made: Whether it is stored, though its weights may have been removed; as `is_whole` if None.
        whole: Ids of goals that must be whole too.
    """
    demanded = set(whole)
    needed: set[str] = set()
    missing: set[str] = set()
    goals = [job_id for job_id in plan.jobs if not plan.readers(job_id)]
    frontier = list(goals)
    made_will_do = set(goals) - demanded if is_made else set()
    while frontier:
        job_id = frontier.pop()
        if job_id in needed:
            continue
        needed.add(job_id)
        is_there = is_made if is_made and job_id in made_will_do else is_whole
        if not is_there(plan.jobs[job_id].key):
            missing.add(job_id)
            frontier += plan.inputs(job_id)
    return [job_id for job_id in plan.jobs if job_id in missing]
