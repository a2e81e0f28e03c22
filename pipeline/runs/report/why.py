"""Why a job is where it is, and why it ran again or would run again, in sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.engine.store.store import NOT_STORED, REMOVED, Store
from pipeline.outputs.manifest import why_removed
from pipeline.plan.graph import Plan
from pipeline.plan.pending import missing_jobs
from pipeline.plan.recorded import Cause, RecordedPlan, causes, recorded
from pipeline.runs.job_logs import log_path
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.report.format import count, duration, jobs, shown_path
from pipeline.runs.run_view import AttemptView, JobView

MAX_LISTED = 8

Lines = Iterator[str]


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A job of a run at one moment."""

    run: LoadedRun
    job: JobView
    engine: bool | None
    now: float

    @property
    def key(self) -> str:
        return self.run.plan.jobs[self.job.id].key


def explain_job(run: LoadedRun, job_id: str, earlier: LoadedRun | None, now: float) -> list[str]:
    """Where a job of a run stands, what became of its attempts, and why it had to run.

    Args:
        run: The run.
        job_id: One of its jobs.
        earlier: A run to compare with, which has the job too; None where there is none.
        now: Wall-clock seconds.
    """
    asked = _Asked(run=run, job=run.view.jobs[job_id], engine=run.engine_runs(), now=now)
    lines = [f"{job_id} in run {run.stamp} of {run.name}:", *_indented(_standing(asked))]
    lines += _indented(_attempts(asked))
    lines += _indented(_quarantined(asked))
    lines += ["", *_history(asked, earlier)]
    return lines


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
    new, job = recorded(plan.to_json()), plan.jobs[job_id]
    lines = list(_would_run(store, plan, job_id, shared))
    if job_id not in run.plan.jobs:
        return [*lines, f"Run {run.stamp} has no such job to compare with."]
    if run.plan.jobs[job_id].key == job.key:
        return [
            *lines,
            f"Nothing that determines it differs from run {run.stamp}: it has the same key {job.key[:12]}.",
        ]
    return [*lines, f"It is another job than in run {run.stamp}, because", *_because(run, new, job_id)]


# -- where it stands -------------------------------------------------------------------------------------------


def _standing(asked: _Asked) -> Lines:
    job = asked.job
    match job.status:
        case "stored" if job.found_stored:
            yield "It is stored: another run finished it while this one was under way."
        case "stored":
            yield "It did not run: its output was stored, or everything that reads it was, when the run began."
        case "done":
            last = job.attempts[-1]
            where = f"attempt {last.number} on worker {last.worker}{_on(last)}"
            yield f"It is done: {where} took {_took(last, asked.now)}."
        case "running":
            yield from _running(asked)
        case "failed":
            kind = f" ({job.kind})" if job.kind else ""
            yield f"It failed after {count(len(job.attempts), 'attempt')}{kind}: {job.reason}"
        case "blocked":
            yield from _blocked(asked)
        case _:
            yield from _pending(asked)
    for reason in job.reopened:
        yield f"It was made again in this run, because its stored output is damaged: {reason}"


def _running(asked: _Asked) -> Lines:
    last = asked.job.attempts[-1]
    where = f"attempt {last.number} on worker {last.worker}{_on(last)}"
    if asked.engine:
        yield f"It is running: {where}, for {duration(last.elapsed_s(asked.now))}."
    elif asked.engine is None:
        yield f"It was running at the last word of the engine: {where}."
    else:
        yield f"It was running when the engine was killed: {where}. The same command runs it again."


def _blocked(asked: _Asked) -> Lines:
    run, cause = asked.run, asked.run.view.jobs.get(asked.job.root_cause)
    if cause is None:
        yield "It is blocked: a job that it reads has failed."
        return
    between = _between(run.plan, cause.id, asked.job.id)
    yield f"It is blocked by {cause.id}, which failed: {cause.reason}"
    if between:
        yield f"  which comes here through {' -> '.join(between)}"
    log = log_path(run.folder, cause.id, cause.attempts[-1] if cause.attempts else None)
    if log is not None:
        yield f"  log: {shown_path(log)}"


def _between(plan: RecordedPlan, cause: str, job_id: str) -> list[str]:
    """Jobs on one way from a failed job to one that it blocks, both left out."""
    came_from, frontier = {job_id: ""}, [job_id]
    for at in frontier:
        if at == cause:
            break
        for upstream in plan.inputs[at]:
            if upstream not in came_from:
                came_from[upstream] = at
                frontier.append(upstream)
    way, at = [], came_from.get(cause, "")
    while at and at != job_id:
        way.append(at)
        at = came_from[at]
    return way


def _pending(asked: _Asked) -> Lines:
    job, view = asked.job, asked.run.view
    state = view.state(asked.engine)
    last = job.attempts[-1] if job.attempts else None
    failed = last if last is not None and last.outcome == "failed" else None
    if job.stopped:
        yield "It was stopped with the run; the next one goes on with it, from its checkpoint if it left one."
    if state != "running":
        if not job.stopped:
            yield f"It has not been done: the run is over ({state}). The same command goes on with it."
        return
    if failed is not None:
        left = failed.wait_s - (asked.now - (failed.ended or asked.now))
        when = f", in {duration(left)} at the earliest" if left > 0 else ""
        yield f"It will be tried again{when}: attempt {failed.number} failed ({failed.kind}): {failed.reason}"
    missing = [name for name in asked.run.plan.inputs[job.id] if view.jobs[name].status not in ("done", "stored")]
    if job.waits:
        yield f"It waits: {job.waits}"
    if missing:
        total = len(asked.run.plan.inputs[job.id])
        yield f"It waits for {len(missing)} of the {jobs(total)} that it reads:"
        for name in missing[:MAX_LISTED]:
            yield f"  {name} ({view.jobs[name].status})"
        yield from _more(len(missing), "  ")
    elif not job.waits and failed is None:
        yield from _ready(asked)


def _ready(asked: _Asked) -> Lines:
    earlier = [job for job in asked.run.view.jobs.values() if job.round < asked.job.round and not job.settled]
    barrier = (asked.run.config.get("execution") or {}).get("barrier")
    if earlier and barrier == "round":
        yield (
            f"What it reads is there. It waits for {jobs(len(earlier))} of earlier rounds "
            "(execution.barrier=round)."
        )
        return
    busy = len(asked.run.view.having("running"))
    yield f"What it reads is there. It waits for a free worker; {count(busy, 'job')} run now."


def _attempts(asked: _Asked) -> Lines:
    attempts = asked.job.attempts
    if attempts:
        yield "Attempts:"
    for attempt in attempts:
        kind = f" ({attempt.kind})" if attempt.kind else ""
        took = f" after {_took(attempt, asked.now)}" if attempt.started is not None else ""
        if attempt.outcome == "running" and asked.engine is False:
            took = " when the engine was killed"
        reason = f": {attempt.reason}" if attempt.reason else ""
        yield f"  {attempt.number} on worker {attempt.worker}{_on(attempt)}: {attempt.outcome}{kind}{took}{reason}"
        log = log_path(asked.run.folder, asked.job.id, attempt)
        if log is not None:
            yield f"    log: {shown_path(log)}"


def _quarantined(asked: _Asked) -> Lines:
    used = {attempt.worker for attempt in asked.job.attempts}
    for place in asked.run.view.quarantined:
        if asked.job.id in place.jobs or place.worker in used:
            yield f"Worker {place.worker} ({place.device}) is used no more: {place.reason}"


# -- why it ran ------------------------------------------------------------------------------------------------


def _history(asked: _Asked, earlier: LoadedRun | None) -> Lines:
    ran = asked.job.status != "stored"
    aside = asked.run.store.last_set_aside(asked.key)
    if earlier is None:
        yield f"There is no earlier run of {asked.run.name} with this job to compare with."
        if aside is not None:
            yield f"An output of the same key was found damaged before; it is kept as {shown_path(aside)}."
    elif earlier.plan.jobs[asked.job.id].key != asked.key:
        yield (f"It {'had to run' if ran else 'is another job'}, compared with run {earlier.stamp}, because")
        yield from _because(earlier, asked.run.plan, asked.job.id)
    elif not ran:
        yield f"Nothing changed since run {earlier.stamp}: it has the same key {asked.key[:12]}."
    else:
        yield from _same_key(asked, earlier, aside)
    yield from _next_time(asked)


def _same_key(asked: _Asked, earlier: LoadedRun, aside: Path | None) -> Lines:
    before = earlier.view.jobs[asked.job.id]
    yield f"Nothing that determines it changed since run {earlier.stamp}: it has the same key {asked.key[:12]}."
    if aside is not None:
        yield f"It had to run again because its stored output was damaged; it is kept as {shown_path(aside)}."
    elif before.status in ("done", "stored"):
        yield "It had to run again because its output was not in the store any more."
    else:
        how = _ended(earlier.state)
        yield f"It had to run because that run did not finish it: it was {before.status}, and the run {how}."


def _next_time(asked: _Asked) -> Lines:
    if asked.job.status not in ("done", "stored"):
        return
    plan, store = asked.run.plan, asked.run.store
    problem = store.problem(asked.key, checksums=False)
    if problem is None:
        yield "Its output is in the store: the same command would not run it again."
        return
    what = "is not in the store" if problem == NOT_STORED else f"cannot be used any more ({problem})"
    if problem == REMOVED:
        keep = why_removed(asked.key, store.path(asked.key)) or "execution.keep"
        what = f"was made, and its weights were removed since, as {keep} asked; all else of it is in the store"
    if asked.job.id in _missing(store, Plan(plan.jobs.values(), plan.edges)):
        yield f"Its output {what}: the same command would run it again."
    else:
        yield f"Its output {what}, but nothing that is missing reads it: the same command would not run it again."


def _missing(store: Store, plan: Plan, shared: Collection[str] = ()) -> list[str]:
    problems: dict[str, str | None] = {}

    def is_there(key: str, *good: str | None) -> bool:
        if key not in problems:
            problems[key] = store.problem(key, checksums=False)
        return problems[key] in good or key in shared

    return missing_jobs(plan, lambda key: is_there(key, None), lambda key: is_there(key, None, REMOVED))


def _ended(state: str) -> str:
    return {
        "interrupted": "was interrupted",
        "killed": "was killed",
        "halted": "was ended early",
        "running": "is still under way",
    }.get(state, f"ended as '{state}'")


def _would_run(store: Store, plan: Plan, job_id: str, shared: Collection[str]) -> Lines:
    job = plan.jobs[job_id]
    problem = store.problem(job.key, checksums=False)
    missing = _missing(store, plan, shared)
    if problem is not None and job.key in shared:
        yield f"{job_id} would not run: its output is in the shared store, and fetched where it is needed."
    elif problem == REMOVED:
        would, which = (
            ("would", "a job that must run reads") if job_id in missing else ("would not", "nothing needs")
        )
        yield f"{job_id} {would} run: it was made, and {which} its weights, which execution.keep had removed."
    elif problem is None:
        yield f"{job_id} would not run: its output is stored ({shown_path(store.path(job.key))})."
    elif job_id not in missing:
        yield f"{job_id} would not run: it is not stored, but nothing that must run reads it."
    elif problem == NOT_STORED:
        yield f"{job_id} would run: nothing is stored under its key {job.key[:12]}."
    else:
        yield f"{job_id} would run: what is stored under its key {job.key[:12]} cannot be used ({problem})."


def _because(old: LoadedRun, new: RecordedPlan, job_id: str) -> Lines:
    found = causes(old.plan, new, job_id)
    if not found:
        if all(plan.jobs[job_id].determined_by for plan in (old.plan, new)):
            yield "  its key differs; nothing that plan.json records of it does."
        else:
            yield f"  its key differs; run {old.stamp} is of a version that did not record what keys are made of."
    for cause in found[:MAX_LISTED]:
        yield from _cause(cause)
    yield from _more(len(found), "  ", "jobs that changed")


def _cause(cause: Cause) -> Lines:
    shown = [str(change) for change in cause.changes[:MAX_LISTED]]
    shown += _more(len(cause.changes), "", "changes")
    if len(cause.path) == 1:
        yield from (f"  {text}" for text in shown)
        return
    between = cause.path[1:-1]
    if not between:
        way = ""
    elif len(between) <= 3:
        way = f" (which comes here through {' -> '.join(between)})"
    else:
        way = f" (which comes here through {between[0]} -> ... -> {between[-1]})"
    if len(shown) == 1:
        yield f"  {cause.path[0]} changed: {shown[0]}{way}"
        return
    yield f"  {cause.path[0]} changed{way}:"
    yield from (f"    {text}" for text in shown)


def _on(attempt: AttemptView) -> str:
    return f" ({attempt.device})" if attempt.device else ""


def _took(attempt: AttemptView, now: float) -> str:
    return duration(attempt.run_s or attempt.elapsed_s(now))


def _more(found: int, indent: str, what: str = "") -> Lines:
    if found > MAX_LISTED:
        yield f"{indent}and {found - MAX_LISTED} more{what and ' ' + what}"


def _indented(lines: Iterator[str] | Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]
