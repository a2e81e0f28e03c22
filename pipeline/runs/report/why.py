"""Why a job is where it is, and why it ran again or would run again, in sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pipeline.engine.store.store import NOT_STORED, REMOVED, Store
from pipeline.outputs.manifest import why_removed
from pipeline.plan.graph import Plan, missing_jobs
from pipeline.plan.recorded import RecordedPlan, causes, recorded
from pipeline.runs.loaded import LoadedRun, log_path
from pipeline.runs.report.format import count, duration, jobs, shown_path
from pipeline.runs.report.status import why_it_waits
from pipeline.runs.run_view import JobView

MAX_LISTED = 8

Lines = Iterator[str]


def explain_job(run: LoadedRun, job_id: str, earlier: LoadedRun | None, now: float) -> list[str]:
    """Where a job of a run stands, what became of its attempts, and why it had to run.

    Args:
        run: The run.
        job_id: One of its jobs.
        earlier: A run to compare with, which has the job too; None where there is none.
        now: Wall-clock seconds.
    """
    job, engine = run.view.jobs[job_id], run.engine_runs()
    told = [*_standing(run, job, engine), *_attempts(run, job, engine, now)]
    used = {attempt.worker for attempt in job.attempts}
    told += [
        f"Worker {place.worker} ({place.device}) is used no more: {place.reason}"
        for place in run.view.quarantined
        if job.id in place.jobs or place.worker in used
    ]
    headline = f"{job_id} in run {run.stamp} of {run.name}:"
    return [headline, *(f"  {line}" for line in told), "", *_history(run, job, earlier)]


def explain_request(
    run: LoadedRun, plan: Plan, job_id: str, store: Store, shared: Collection[str] = ()
) -> list[str]:
    """Whether a request that was not started would run a job, and why.

    Args:
        run: The newest run of the experiment, to compare with.
        plan: What is planned now.
        job_id: One of its jobs.
        store: Where the request would look for outputs.
        shared: The keys of what it would fetch from a store that other machines share.
    """
    would, why = _would_run(store, plan, job_id, shared)
    line = f"{job_id} would {'' if would else 'not '}run: {why}."
    if job_id not in run.plan.jobs:
        return [line, f"Run {run.stamp} has no such job to compare with."]
    return [line, *_compared(run, recorded(plan.to_json()), job_id)]


# -- where it stands -------------------------------------------------------------------------------------------


def _standing(run: LoadedRun, job: JobView, engine: bool | None) -> Lines:
    cause, attempts = run.view.jobs.get(job.root_cause), count(len(job.attempts), "attempt")
    told = {
        "stored": "its output was there when the run began, or all that reads it was",
        "running": "" if engine else "when the engine was last heard of; the same command runs it again",
        "failed": f"after {attempts}{_in_brackets(job.kind)}: {job.reason}",
        "blocked": f"a job that it reads has failed{(cause and f', {cause.id}: {cause.reason}') or ''}",
    }
    said = "another run finished it while this one was under way" if job.found_stored else told.get(job.status, "")
    yield f"It is {job.status}{said and f': {said}'}"
    yield from _waits(run, job, engine) if job.status == "pending" else ()
    for reason in job.reopened:
        yield f"It was made again in this run, because its stored output is damaged: {reason}"


def _waits(run: LoadedRun, job: JobView, engine: bool | None) -> Lines:
    if (state := run.view.state(engine)) != "running":
        saved = run.store.checkpoints(run.plan.jobs[job.id].key).is_dir()
        how = ", from its checkpoint" if saved else ", anew, as it left no checkpoint" if job.stopped else ""
        yield f"The run is over ({state}). The same command goes on with it{how}."
        return
    if said := why_it_waits(job):
        yield f"It waits: {said}"
    inputs, views = run.plan.inputs[job.id], run.view.jobs
    if missing := [name for name in inputs if views[name].status not in ("done", "stored")]:
        yield f"It waits for {len(missing)} of the {jobs(len(inputs))} that it reads:"
        yield from _first([f"  {name} ({views[name].status})" for name in missing], "")
    elif not said:
        earlier = [one for one in views.values() if one.round < job.round and not one.settled]
        waits = f"a free worker; {count(len(run.view.having('running')), 'job')} run now"
        if earlier and (run.config.get("execution") or {}).get("barrier") == "round":
            waits = f"{jobs(len(earlier))} of earlier rounds (execution.barrier=round)"
        yield f"What it reads is there. It waits for {waits}."


def _attempts(run: LoadedRun, job: JobView, engine: bool | None, now: float) -> Lines:
    for one in job.attempts:
        outcome = (
            "running when the engine was killed" if one.outcome == "running" and engine is False else one.outcome
        )
        where = f"attempt {one.number} on worker {one.worker}{_in_brackets(one.device)}"
        took = f", {duration(one.run_s or one.elapsed_s(now))}" if one.started is not None else ""
        yield f"{where}: {outcome}{_in_brackets(one.kind)}{took}{one.reason and f': {one.reason}'}"
        if log := log_path(run.folder, job.id, one):
            yield f"  log: {shown_path(log)}"


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


# -- why it ran ------------------------------------------------------------------------------------------------


def _history(run: LoadedRun, job: JobView, earlier: LoadedRun | None) -> Lines:
    key, ran = run.plan.jobs[job.id].key, job.status != "stored"
    if aside := run.store.last_set_aside(key):
        yield f"Its stored output was damaged; it is kept as {shown_path(aside)}."
    if earlier is None:
        yield f"There is no earlier run of {run.name} with this job to compare with."
    else:
        yield from _compared(earlier, run.plan, job.id)
        before = earlier.view.jobs[job.id].status
        if ran and not aside and earlier.plan.jobs[job.id].key == key:
            gone = "its output was not in the store any more"
            yield f"It ran since {gone if before in ('done', 'stored') else f'that run left it {before}'}."
    if job.status in ("done", "stored"):
        would, why = _would_run(run.store, Plan(run.plan.jobs.values(), run.plan.edges), job.id)
        yield f"The same command would {'' if would else 'not '}run it again: {why}."


def _compared(old: LoadedRun, new: RecordedPlan, job_id: str) -> Lines:
    """What of a job is not as in an earlier run."""
    if (key := new.jobs[job_id].key) == old.plan.jobs[job_id].key:
        yield f"Nothing that determines it changed since run {old.stamp}: it has the same key {key[:12]}."
        return
    yield f"It is another job than in run {old.stamp}, because"
    found = causes(old.plan, new, job_id)
    if not found:
        yield "  its key differs; nothing that plan.json records of it does."
    for at, changes in list(found.items())[:MAX_LISTED]:
        yield from [] if at == job_id else [f"  {at} changed:"]
        yield from _first([str(change) for change in changes], "  " if at == job_id else "    ")
    if len(found) > MAX_LISTED:
        yield f"  and {len(found) - MAX_LISTED} more jobs that changed"


def _would_run(store: Store, plan: Plan, job_id: str, shared: Collection[str] = ()) -> tuple[bool, str]:
    """Whether a command would run a job of its plan, and why, as its output stands now."""
    problems: dict[str, str | None] = {}

    def is_there(key: str, *good: str | None) -> bool:
        if key not in problems:
            problems[key] = store.problem(key, checksums=False)
        return problems[key] in good or key in shared

    key = plan.jobs[job_id].key
    problem = store.problem(key, checksums=False)
    if problem is None:
        return False, f"its output is stored ({shown_path(store.path(key))})"
    if key in shared:
        return False, "its output is in the shared store, and fetched where it is needed"
    if problem == REMOVED:
        what = f"its weights were removed, as {why_removed(key, store.path(key)) or 'execution.keep'} asked"
    elif problem == NOT_STORED:
        what = f"nothing is stored under its key {key[:12]}"
    else:
        what = f"what is stored under its key {key[:12]} cannot be used ({problem})"
    missing = missing_jobs(plan, lambda key: is_there(key, None), lambda key: is_there(key, None, REMOVED))
    would = job_id in missing
    left = ", but a checkpoint is there that it goes on from" if store.checkpoints(key).is_dir() else ""
    return would, f"{what}{left}" if would else f"{what}, and nothing that must run reads it"


def _first(lines: Sequence[str], indent: str) -> Lines:
    yield from (f"{indent}{line}" for line in lines[:MAX_LISTED])
    if len(lines) > MAX_LISTED:
        yield f"{indent}and {len(lines) - MAX_LISTED} more"
