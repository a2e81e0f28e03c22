"""What a run makes of a store that other machines share: jobs whose outputs are on their way here. Pure rules.

No worker is given such a job. Should its output turn out not to be there, or not to be any good, it is a job as
any other, and what it reads is had first (`dispatch`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

from pipeline.engine.scheduler.run import OnDisk, ReleaseClaim, Run
from pipeline.engine.scheduler.state import JobStatus


def expect(run: Run, job_ids: Iterable[str]) -> None:
    """Have jobs wait for their outputs."""
    for job_id in job_ids:
        run.state.wait(job_id)
        run.delayed[job_id] = math.inf


def go_on(run: Run, job_id: str, on_disk: OnDisk) -> None:
    """The shared store has answered about a job that may wait for that, or for a worker to ask it again."""
    waited = run.delayed.pop(job_id, None) is not None
    if run.state.jobs[job_id].status not in (JobStatus.pending, JobStatus.ready):
        return
    if not on_disk.stored:
        if not waited:
            return
        run.state.retry(job_id)
        return
    run.do(ReleaseClaim(job_id))
    run.say(f"{job_id}: it was fetched from the shared store", logging.INFO)
    run.record("JobFoundStored", job=job_id)
    run.state.found(job_id)
