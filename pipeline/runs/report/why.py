"""Why a job is where it is, and why it ran again or would run again, in sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pipeline.engine.store.store import NOT_STORED, REMOVED, Store
from pipeline.outputs.manifest import why_removed
from pipeline.plan.graph import Plan, missing_jobs
from pipeline.plan.recorded import Cause, RecordedPlan, causes, recorded
from pipeline.runs.loaded import LoadedRun, log_path
from pipeline.runs.report.format import count, duration, jobs, shown_path
from pipeline.runs.run_view import AttemptView, JobView

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
    told = [*_standing(run, job, engine, now), *_attempts(run, job, engine, now)]
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
    key = plan.jobs[job_id].key
    if run.plan.jobs[job_id].key == key:
        return [line, f"Nothing that determines it differs from run {run.stamp}: it has the same key {key[:12]}."]
    because = _because(run, recorded(plan.to_json()), job_id)
    return [line, f"It is another job than in run {run.stamp}, because", *because]


# -- where it stands -------------------------------------------------------------------------------------------


def _standing(run: LoadedRun, job: JobView, engine: bool | None, now: float) -> Lines:
    last = job.attempts[-1] if job.attempts else None
    match job.status:
        case "stored" if job.found_stored:
            yield "It is stored: another run finished it while this one was under way."
        case "stored":
            yield "It did not run: its output was stored, or everything that reads it was, when the run began."
        case "done" if last:
            yield f"It is done: {_where(last)} took {_took(last, now)}."
        case "running" if last and engine:
            yield f"It is running: {_where(last)}, for {_took(last, now)}."
        case "running" if last:
            when = "at the last word of the engine" if engine is None else "when the engine was killed"
            yield f"It was running {when}: {_where(last)}. The same command runs it again."
        case "failed":
            yield f"It failed after {count(len(job.attempts), 'attempt')}{_in_brackets(job.kind)}: {job.reason}"
        case "blocked" if cause := run.view.jobs.get(job.root_cause):
            yield f"It is blocked by {cause.id}, which failed: {cause.reason}"
            if log := log_path(run.folder, cause.id, cause.attempts[-1] if cause.attempts else None):
                yield f"  log: {shown_path(log)}"
        case "blocked":
            yield "It is blocked: a job that it reads has failed."
        case _:
            yield from _pending(run, job, engine, now)
    for reason in job.reopened:
        yield f"It was made again in this run, because its stored output is damaged: {reason}"


def _pending(run: LoadedRun, job: JobView, engine: bool | None, now: float) -> Lines:
    if job.stopped:
        saved = run.store.checkpoints(run.plan.jobs[job.id].key).is_dir()
        how = "goes on from its checkpoint" if saved else "begins it anew, as it left no checkpoint"
        yield f"It was stopped with the run; the next one {how}."
    if (state := run.view.state(engine)) != "running":
        if not job.stopped:
            yield f"It has not been done: the run is over ({state}). The same command goes on with it."
        return
    failed = job.attempts[-1] if job.attempts and job.attempts[-1].outcome == "failed" else None
    if failed is not None:
        left = failed.wait_s - (now - (failed.ended or now))
        when = f", in {duration(left)} at the earliest" if left > 0 else ""
        yield f"It will be tried again{when}: attempt {failed.number} failed ({failed.kind}): {failed.reason}"
    if job.waits:
        yield f"It waits: {job.waits}"
    inputs, views = run.plan.inputs[job.id], run.view.jobs
    if missing := [name for name in inputs if views[name].status not in ("done", "stored")]:
        yield f"It waits for {len(missing)} of the {jobs(len(inputs))} that it reads:"
        yield from _first([f"  {name} ({views[name].status})" for name in missing])
    elif not job.waits and failed is None:
        earlier = [one for one in views.values() if one.round < job.round and not one.settled]
        if earlier and (run.config.get("execution") or {}).get("barrier") == "round":
            waits = f"{jobs(len(earlier))} of earlier rounds (execution.barrier=round)."
        else:
            waits = f"a free worker; {count(len(run.view.having('running')), 'job')} run now."
        yield f"What it reads is there. It waits for {waits}"


def _attempts(run: LoadedRun, job: JobView, engine: bool | None, now: float) -> Lines:
    if job.attempts:
        yield "Attempts:"
    for one in job.attempts:
        took = f" after {_took(one, now)}" if one.started is not None else ""
        if one.outcome == "running" and engine is False:
            took = " when the engine was killed"
        where = f"{one.number} on worker {one.worker}{_in_brackets(one.device)}"
        yield f"  {where}: {one.outcome}{_in_brackets(one.kind)}{took}{one.reason and f': {one.reason}'}"
        if log := log_path(run.folder, job.id, one):
            yield f"    log: {shown_path(log)}"


def _where(attempt: AttemptView) -> str:
    return f"attempt {attempt.number} on worker {attempt.worker}{_in_brackets(attempt.device)}"


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def _took(attempt: AttemptView, now: float) -> str:
    return duration(attempt.run_s or attempt.elapsed_s(now))


# -- why it ran ------------------------------------------------------------------------------------------------


def _history(run: LoadedRun, job: JobView, earlier: LoadedRun | None) -> Lines:
    key, ran = run.plan.jobs[job.id].key, job.status != "stored"
    aside = run.store.last_set_aside(key)
    damaged = f"stored output was damaged; it is kept as {shown_path(aside)}." if aside else ""
    if earlier is None:
        yield f"There is no earlier run of {run.name} with this job to compare with."
        if damaged:
            yield f"Its {damaged}"
    elif earlier.plan.jobs[job.id].key != key:
        yield f"It {'had to run' if ran else 'is another job'}, compared with run {earlier.stamp}, because"
        yield from _because(earlier, run.plan, job.id)
    else:
        yield f"Nothing changed since run {earlier.stamp}: it has the same key {key[:12]}."
        before = earlier.view.jobs[job.id]
        if ran and damaged:
            yield f"It had to run again because its {damaged}"
        elif ran and before.status in ("done", "stored"):
            yield "It had to run again because its output was not in the store any more."
        elif ran:
            yield f"That run did not finish it: it was {before.status}, and the run is {earlier.state}."
    if job.status in ("done", "stored"):
        would, why = _would_run(run.store, Plan(run.plan.jobs.values(), run.plan.edges), job.id)
        yield f"The same command would {'' if would else 'not '}run it again: {why}."


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


def _because(old: LoadedRun, new: RecordedPlan, job_id: str) -> Lines:
    found = causes(old.plan, new, job_id)
    if not found:
        yield "  its key differs; nothing that plan.json records of it does."
    for cause in found[:MAX_LISTED]:
        yield from _cause(cause)
    if len(found) > MAX_LISTED:
        yield f"  and {len(found) - MAX_LISTED} more jobs that changed"


def _cause(cause: Cause) -> Lines:
    shown = list(_first([str(change) for change in cause.changes]))
    if len(cause.path) == 1:
        yield from (f"  {text}" for text in shown)
        return
    between = cause.path[1:-1]
    through = between if len(between) <= 3 else [between[0], "...", between[-1]]
    way = f" (which comes here through {' -> '.join(through)})" if between else ""
    if len(shown) == 1:
        yield f"  {cause.path[0]} changed: {shown[0]}{way}"
        return
    yield f"  {cause.path[0]} changed{way}:"
    yield from (f"    {text}" for text in shown)


def _first(lines: Sequence[str]) -> Lines:
    yield from lines[:MAX_LISTED]
    if len(lines) > MAX_LISTED:
        yield f"  and {len(lines) - MAX_LISTED} more"
