"""How early the first rows of results are to be there, so that a run has something to show before its end. Pure.

By the longest path evaluations come last, as nothing follows them. So the reference's row and the nearest one of
each method count as if more than half of the run came after them: what a row needs, generations and training
included, is then done in time. Whether the run gets longer is tried on paper; fewer are hurried if it does.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from pipeline.plan.graph import Plan
from pipeline.plan.keeping import measures

SOON = 0.4
"""Part of a run after which rows are due; less than half of it, since estimates err."""
LATEST = 0.5
"""A row that cannot be there after this part is not hurried: that would only delay the others, and the end."""
LONGER = 1.01
"""How many times as long a run may take for rows that are there early."""


def paths_for_rows(plan: Plan, seconds: Mapping[str, float], workers: int) -> dict[str, float]:
    """Job id -> seconds of the longest path to the end of the run, where the run follows on first rows.

    Args:
        plan: The plan.
        seconds: Job id -> what it is estimated to take; 0 for one that is there.
        workers: How many carry it out.
    """
    paths, until_s = plan.longest_paths(seconds), plan.longest_paths_until(seconds)
    rows = _nearest_rows(plan, until_s)
    if not rows:
        return paths
    most_s = LONGER * _makespan_s(plan, seconds, paths, workers)
    while rows:
        hurried = plan.longest_paths(seconds, _after_s(plan, seconds, until_s, rows, workers))
        if _makespan_s(plan, seconds, hurried, workers) <= most_s:
            return hurried
        rows.pop()
    return paths


def _nearest_rows(plan: Plan, until_s: Mapping[str, float]) -> list[str]:
    """The row of each method, and of the reference, that could be there first, by when; none of what has one."""
    nearest: dict[str, str] = {}
    for job in sorted(filter(measures, plan.jobs.values()), key=lambda job: until_s[job.id]):
        nearest.setdefault(job.algo, job.id)
    return [row for row in nearest.values() if until_s[row]]


def _after_s(
    plan: Plan, seconds: Mapping[str, float], until_s: Mapping[str, float], rows: Iterable[str], workers: int
) -> dict[str, float]:
    """Row -> seconds of the run that are to follow it, of those that can be there in its first half."""
    work_s = {job.id: seconds[job.id] * job.devices / workers for job in plan.jobs.values()}
    whole_s = max(*until_s.values(), sum(work_s.values()))
    after_s: dict[str, float] = {}
    needed: set[str] = set()
    for row in rows:
        with_it = needed | plan.needs([row])
        earliest_s = max(until_s[row], sum(work_s[job_id] for job_id in with_it))
        if earliest_s <= LATEST * whole_s:
            after_s[row] = whole_s - max(SOON * whole_s, earliest_s)
            needed = with_it
    return after_s


def _makespan_s(plan: Plan, seconds: Mapping[str, float], paths: Mapping[str, float], workers: int) -> float:
    """What a run takes by the estimates, if of the jobs that could start the one of the longest path does."""
    waits_for = {job_id: len(plan.inputs(job_id)) for job_id in plan.jobs}
    ready = [(-paths[job_id], number, job_id) for number, job_id in enumerate(plan.jobs) if not waits_for[job_id]]
    heapq.heapify(ready)
    running: list[tuple[float, str]] = []
    count, idle, now_s = len(plan.jobs), workers, 0.0
    while ready or running:
        while ready and (takes := min(workers, plan.jobs[ready[0][2]].devices)) <= idle:
            *_, job_id = heapq.heappop(ready)
            heapq.heappush(running, (now_s + seconds[job_id], job_id))
            idle -= takes
        now_s, done = heapq.heappop(running)
        idle += min(workers, plan.jobs[done].devices)
        for reader in plan.readers(done):
            waits_for[reader] -= 1
            if not waits_for[reader]:
                count += 1
                heapq.heappush(ready, (-paths[reader], count, reader))
    return now_s
