"""What a dry run prints: the plan, what of it is stored, and what nobody can know before it runs."""

from __future__ import annotations

from collections.abc import Collection

from rich.console import Console

from pipeline.commands.request import Request, Stored
from pipeline.engine.store.measured import read_durations
from pipeline.learning.algos.prepare import PREPARE
from pipeline.plan.build import duration_name
from pipeline.plan.chains import PREPARATION, REFERENCE
from pipeline.plan.models import is_local
from pipeline.plan.summary import WORKER_LOAD, estimated_load, estimated_makespan, summarize
from pipeline.runs.report.format import duration, jobs
from pipeline.runs.report.plan import plan_table
from pipeline.terminal.console import say


def print_plan(request: Request, stored: Stored, console: Console) -> None:
    """Print the plan per round, with what is stored and what the rest would take."""
    plan, missing = request.plan, stored.missing
    console.print(plan_table(summarize(plan, missing)))
    workers = request.layout.workers
    total = len(plan.jobs)
    timed = read_durations(request.store.root)
    estimate = duration(estimated_makespan(plan, missing, workers) + estimated_load(plan, missing, workers, timed))
    if WORKER_LOAD not in timed or any(duration_name(plan.jobs[job_id]) not in timed for job_id in missing):
        estimate += " (a rough guess, until the first run)"
    say(
        console,
        f"{jobs(total)}: {total - len(missing)} stored, {len(missing)} to run on "
        f"{workers} {'worker' if workers == 1 else 'workers'}"
        + (f", about {estimate}" if missing else "")
        + ". Nothing was started.",
    )
    if unseen := _not_looked_at(request, missing):
        say(console, f"Not looked at before the run: {', '.join(unseen)}.")


def _not_looked_at(request: Request, missing: Collection[str]) -> list[str]:
    """What may still turn out to be wrong or not to be had, since only a job reads it."""
    config, jobs_left = request.config, [request.plan.jobs[job_id] for job_id in missing]
    rows = {job.dataset for job in jobs_left if job.algo == PREPARATION and job.stage == PREPARE.name}
    hub = {
        f"{model.path} on the hub"
        for name, model in config.models.items()
        if model.path and not model.is_trained and not is_local(model.path)
        if any(job.model == name and job.algo == REFERENCE for job in jobs_left)
    }
    return [*(f"the rows of {name}" for name in sorted(rows)), *sorted(hub)]
