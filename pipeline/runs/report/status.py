"""Show the state of runs from another terminal: all in one table, one in detail, and why a job is there."""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from pipeline.config.schema import Backend
from pipeline.engine.scheduler.run import SPENT
from pipeline.outputs.manifest import REMOVED, why_removed
from pipeline.plan.recorded import causes
from pipeline.runs import race
from pipeline.runs.loaded import LoadedRun, log_path, lost_outputs, removed_by, removed_weights
from pipeline.runs.origin import slurm_in_words
from pipeline.runs.report.format import count, duration, logs_command, shown_path
from pipeline.runs.report.screen import chains_of, grid, how_far, jobs_done, notices, screen, worker_table
from pipeline.runs.run_view import RACE, JobView, RunView
from pipeline.terminal.columns import Column, FittedTable, Told, told_table
from pipeline.terminal.console import say_styled
from pipeline.terminal.streams import printable

MAX_LISTED = 10
_COLORS: Mapping[str, str] = {
    "done": "green",
    "running": "bold",
    "failed": "bold red",
    "killed": "bold red",
    "halted": "bold red",
}
_HINTS = {
    "killed": "The engine is gone without having ended the run; the same command goes on from here.",
    "interrupted": "The same command goes on from here.",
    "halted": "Mend that, then run the same command.",
    "not started": "It ended before its first job; see its log.",
    "unknown": "Its engine is on another machine, or this file system has no locks: it may still run.",
}
_LOST = "made, and in the store no more; `python -m pipeline export` makes them again"
_RULER = Console(file=io.StringIO(), color_system=None)


# -- where a run ran, and what moved for it --------------------------------------------------------------------


def is_on_ray(run: LoadedRun) -> bool:
    """Return whether Ray places the workers of a run."""
    return bool(run.setting("execution.backend") == Backend.ray.value)


def place_in_words(run: LoadedRun) -> str:
    """Return text such as ``Ray, 24 workers on 3 nodes``; "" without Ray, on one machine."""
    if not is_on_ray(run) or not run.view.started_workers:
        return ""
    nodes = count(len(run.view.nodes), "node") if run.view.nodes else "one machine"
    return f"Ray, {count(len(run.view.started_workers), 'worker')} on {nodes}"


def origins(view: RunView) -> list[str]:
    """Return how many outputs no job of the run made, as ``11 stored before``; empty for none."""
    return [f"{stored:,} stored before"] if (stored := view.counts().stored) else []


# -- all experiments -------------------------------------------------------------------------------------------


def glance_at(run: LoadedRun, now: float) -> dict[str, Any]:
    """Return a run in one row as plain data; `done` counts all outputs, `stored` those from before the run."""
    view, counts, runs = run.view, run.view.counts(), run.engine_runs()
    return {
        "name": run.name,
        "run": run.stamp,
        "state": view.state(runs),
        "started": view.started,
        "elapsed_s": round(view.elapsed_s(now, runs), 3),
        "jobs": counts.total,
        "done": counts.there,
        **{name: getattr(counts, name) for name in ("failed", "blocked", "stored")},
        "problem": "",
    }


def overview_table(rows: Iterable[Mapping[str, Any]]) -> FittedTable:
    """Return the newest run of every experiment, latest first; if a run cannot be read, only its name."""

    def took(row: Mapping[str, Any]) -> str:
        if row.get("started") is None:
            return ""
        ran = row["state"] != "done" or row["stored"] < row["jobs"]
        return duration(row["elapsed_s"]) if ran else "nothing ran"

    columns: list[Told] = [
        (Column(heading="experiment", least=12), lambda row: row["name"]),
        (Column(heading="newest run", rank=5), lambda row: row.get("run", "")),
        (Column(heading="state", rank=1), lambda row: Text(row["state"], style=_COLORS.get(row["state"], ""))),
        (Column(heading="done", right=True, rank=2), lambda row: f"{row.get('done', 0):,}/{row.get('jobs', 0):,}"),
        (Column(heading="failed", right=True, rank=3), lambda row: Text(str(row.get("failed") or ""), "bold red")),
        (Column(heading="time", right=True, rank=4), took),
    ]
    newest = sorted(rows, key=lambda row: (row.get("run", ""), row["name"]), reverse=True)
    return told_table(columns, [newest], lines=False)


# -- one run ---------------------------------------------------------------------------------------------------


def print_run(run: LoadedRun, now: float, console: Console) -> None:
    """Print one run: a headline, chains x rounds, what runs, and what went wrong.

    Only tables are fitted to the terminal: ids and paths below them stay whole, to be copied.
    """
    view, engine = run.view, run.engine_runs()
    say_styled(console, run_headline(run, now, engine))
    console.print()
    console.print(grid(view.cells, chains_of(view.cells)))
    if busy := [worker for worker in view.workers.values() if worker.job_id]:
        title = "running" if engine else "running (when the engine was last heard of)"
        console.print()
        console.print(worker_table(view, busy, now if engine else view.last, live=False, title=title))
    for heading, style, lines in _below_tables(run):
        say_styled(console, Text(f"\n{printable(heading)}", style=style))
        for line in lines[:MAX_LISTED]:
            say_styled(console, Text(printable(line)))
        if len(lines) > MAX_LISTED:
            say_styled(console, Text(f"  and {len(lines) - MAX_LISTED} more; --json lists all"))


def watched_run(run: LoadedRun, now: float, width: int, height: int) -> list[RenderableType]:
    """Return the view of one run for a terminal: progress, chains, running jobs, recent events, last failure."""
    view, engine = run.view, run.engine_runs()
    notes = [(line, "") for line in [place_in_words(run)] if line]
    notes += [(line, "yellow") for line in notices(view, None) if engine]
    notes += [(f"failed: {job.id}: {job.reason}", "red") for job, _ in view.failures()[-3:]]
    top = list(run_headline(run, now, engine).wrap(_RULER, max(1, width)))
    lines = [Text(printable(line), style) for line, style in notes]
    busy = [worker for worker in view.workers.values() if engine and (worker.job_id or worker.status == "waiting")]
    return screen(view, now, top, lines, height - 1, busy)


def run_headline(run: LoadedRun, now: float, engine: bool | None) -> Text:
    """Return its name and state, and what to do if it is not well."""
    view, counts = run.view, run.view.counts()
    state = view.state(engine)
    text = Text.assemble((f"{run.name} ", "bold"), f"{run.stamp}: ", (state, _COLORS.get(state, "")))
    text.append(f" by {view.interrupted}" if view.interrupted else f" ({view.halted})" if view.halted else "")
    if state == "done" and counts.stored == counts.total:
        text.append(", nothing ran: every output was stored, or came from another run or machine")
    elif view.started is not None:
        text.append(f", {duration(view.elapsed_s(now, engine))}")
    there, saved = ", ".join(origins(view)), run.progress
    parts = [*(how_far(counts, saved) if saved else []), jobs_done(counts) + (f" ({there})" if there else "")]
    rest = {"running": counts.running, "to come": counts.left, "failed": counts.failed, "blocked": counts.blocked}
    text.append("\n" + ", ".join(parts + [f"{number:,} {what}" for what, number in rest.items() if number]))
    if saved and saved.shared_store:
        text.append(f"\n{printable(saved.shared_store)}", style="yellow")
    hint = "interrupted" if view.halted.startswith(SPENT) else state
    if hint in _HINTS:
        text.append(f"\n{_HINTS[hint]}", style="bold")
    return text


def _below_tables(run: LoadedRun) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield a heading with its style and the lines below it, for each section with content."""
    view, folder = run.view, run.folder
    failed = []
    for job, attempt in view.failures():
        kind = f" ({job.kind}, {count(len(job.attempts), 'attempt')})" if job.kind else ""
        read = f"\n    log: {shown_path(log)}" if (log := log_path(folder, job.id, attempt)) else ""
        read += f"\n    read it: `{logs_command(folder.path.parent.parent, run.name, job.id)}`" if read else ""
        failed.append(f"  {job.id}{kind}\n    {job.reason}{read}")
    blocked = view.blocked_by()
    of_blocked = [
        f"  by {cause}: " + (own[0] if len(own) == 1 else f"{count(len(own), 'job')}, from {own[0]} to {own[-1]}")
        for cause, own in blocked.items()
    ]
    waiting = [f"  {job.id}: {text}" for job in view.having("pending") if (text := why_it_waits(job))]
    places = [
        f"  worker {device.worker} ({device.device}): {', after '.join([device.reason, *device.jobs[:1]])}"
        for device in view.quarantined
    ]
    back = [
        f"  worker {worker.index}{worker.device and f' ({worker.device})'}: "
        f"{'once its job is over' if worker.pid else 'done'}"
        for worker in view.workers.values()
        if worker.leaves
    ]
    waits = [f"  worker {index}" for index in _waiting(run)]
    removed, lost, by = removed_weights(run), lost_outputs(run), ", ".join(removed_by(run))
    kinds = ", ".join(f"{number} {kind}" for kind, number in view.retries.most_common())
    unreadable = f"{count(run.unreadable, 'line')} of journal.jsonl cannot be read; what they told is missing here"
    standing = race.read_standing(folder)
    of_race = [f"  {line}" for line in race.outcome(standing)] if standing else []
    asked = [f"  {answer}" for answer in view.answers if answer.by != RACE]  # a race would ask more than is listed
    parts: list[tuple[str, str, Sequence[str]]] = [
        (slurm_in_words(run.origin.slurm), "", ()),
        (place_in_words(run), "", ()),
        (f"failed: {count(len(failed), 'job')}" if failed else "", "bold red", failed),
        (f"blocked: {count(sum(map(len, blocked.values())), 'job')}" if blocked else "", "bold red", of_blocked),
        ("waiting" if waiting else "", "bold", waiting),
        (race.headline(standing) if standing else "", "bold", of_race),
        ("asked while it ran" if asked else "", "bold", asked),
        ("devices that are given back" if back else "", "bold", back),
        ("devices that wait for room on the Ray cluster" if waits else "", "bold", waits),
        ("devices that are used no more" if places else "", "bold red", places),
        (f"retries so far: {view.retries.total()} ({kinds})" if kinds else "", "", ()),
        (f"made, and their weights removed{by and f' ({by})'}" if removed else "", "bold", _listed(removed)),
        (_LOST if lost else "", "bold", _listed(lost)),
        (unreadable if run.unreadable else "", "bold", ()),
    ]
    return (part for part in parts if part[0])


def _waiting(run: LoadedRun) -> list[int]:
    """Return the workers that wait for a place on a cluster."""
    is_over = run.engine_runs() is False
    return [at for at, worker in run.view.workers.items() if worker.status == "waiting" and not is_over]


def why_it_waits(job: JobView) -> str:
    """Say why a pending job does not run yet, or ""."""
    last = job.attempts[-1] if job.attempts else None
    if last is not None and last.outcome == "failed" and last.retry:
        return f"attempt {last.number} failed ({last.kind}), another one follows: {last.reason}"
    if job.waits or job.stopped:
        return job.waits or "it was stopped and goes on in the next run"
    if not job.reopened:
        return ""
    reason = job.reopened[-1]
    return f"made again, {'as' if reason == REMOVED else 'its stored output is damaged:'} {reason}"


def _listed(by_chain: Mapping[str, Sequence[int]]) -> list[str]:
    return [f"  {chain}: round{'s'[: len(own) - 1]} {', '.join(map(str, own))}" for chain, own in by_chain.items()]


def run_json(run: LoadedRun, now: float) -> dict[str, Any]:
    """Return one run as plain data for other programs, nothing truncated."""
    view, counts, progress = run.view, run.view.counts(), run.progress
    then = now if run.engine_runs() else view.last
    began = None if view.started is None else datetime.fromtimestamp(view.started).astimezone().isoformat()
    amounts = {name: getattr(progress, name, None) for name in _AMOUNTS}
    of_attempt = ("worker", "device", "loading", "done", "total", "tokens")
    return {
        **glance_at(run, now),
        "folder": str(run.folder.path),
        "started_at": began,
        "interrupted": view.interrupted or None,
        "halted": view.halted or None,
        "pid": view.pid,
        "host": view.host,
        "slurm": dict(run.origin.slurm) or None,
        "nodes": sorted(view.nodes),
        "progress": {name: amount and round(amount, 4) for name, amount in amounts.items()} if progress else None,
        "shared_store_away": (progress.shared_store if progress else "") or None,
        "counts": {**asdict(counts), "pending": counts.left},
        "cells": [
            {"chain": chain, "round": number, **asdict(cell)} for (chain, number), cell in view.cells.items()
        ],
        "running_jobs": [
            {"job": job.id, "attempt": last.number, "elapsed_s": round(last.elapsed_s(then), 3)}
            | {name: getattr(last, name) for name in of_attempt}
            | {"numbers": dict(last.numbers)}
            for job in view.having("running")
            for last in job.attempts[-1:]
        ],
        "failed_jobs": [
            {"job": job.id, "kind": job.kind, "reason": job.reason, "attempts": len(job.attempts)}
            | {"log": str(log) if (log := log_path(run.folder, job.id, attempt)) else None}
            for job, attempt in view.failures()
        ],
        "blocked_jobs": view.blocked_by(),
        "waiting_jobs": {job.id: text for job in view.having("pending") if (text := why_it_waits(job))},
        "quarantined": [asdict(aside) for aside in view.quarantined],
        "given_back": [
            {"worker": worker.index, "device": worker.device, "done": not worker.pid}
            for worker in view.workers.values()
            if worker.leaves
        ],
        "waiting_devices": [{"worker": index} for index in _waiting(run)],
        "answers": [asdict(answer) for answer in view.answers],
        "race": asdict(standing) if (standing := race.read_standing(run.folder)) else None,
        "retries": dict(view.retries),
        "unreadable_lines": run.unreadable,
        "weights_removed": removed_weights(run),
        "outputs_lost": lost_outputs(run),
    }


_AMOUNTS = ("part", "remaining_s", "samples_per_s", "tokens_per_s")


# -- why ---------------------------------------------------------------------------------------------------------
# Why a job is where it is, and why it ran, in sentences.


_MOST = 8
Lines = Iterator[str]


def explain_job(run: LoadedRun, job_id: str, earlier: LoadedRun | None, now: float) -> list[str]:
    """Say where a job of a run stands, what became of its attempts, and why it had to run.

    Args:
        run: The run.
        job_id: One of its jobs.
        earlier: A run to compare with, which has the job too; None where there is none.
        now: Wall-clock seconds.
    """
    job, engine = run.view.jobs[job_id], run.engine_runs()
    lines = [*_standing(run, job, engine), *_attempts(run, job, engine, now)]
    used = {attempt.worker for attempt in job.attempts}
    lines += [
        f"Worker {aside.worker} ({aside.device}) is used no more: {aside.reason}"
        for aside in run.view.quarantined
        if job.id in aside.jobs or aside.worker in used
    ]
    headline = f"{job_id} in run {run.stamp} of {run.name}:"
    return [headline, *(f"  {line}" for line in lines), "", *_history(run, job, earlier)]


# -- where it stands -------------------------------------------------------------------------------------------


def _standing(run: LoadedRun, job: JobView, engine: bool | None) -> Lines:
    cause, attempts = run.view.jobs.get(job.root_cause), count(len(job.attempts), "attempt")
    why = {
        "stored": "its output was there when the run began, or all that reads it was",
        "running": "" if engine else "when the engine was last heard of; the same command runs it again",
        "failed": f"after {attempts}{_in_brackets(job.kind)}: {job.reason}",
        "blocked": f"a job that it reads has failed{(cause and f', {cause.id}: {cause.reason}') or ''}",
    }
    text = "another run finished it while this one was under way" if job.found_stored else why.get(job.status, "")
    yield f"It is {job.status}{text and f': {text}'}"
    yield from _waits(run, job, engine) if job.status == "pending" else ()
    for reason in job.reopened:
        yield f"It was made again in this run, because its stored output is damaged: {reason}"


def _waits(run: LoadedRun, job: JobView, engine: bool | None) -> Lines:
    if (state := run.view.state(engine)) != "running":
        saved = run.store.checkpoints(run.plan.jobs[job.id].key).is_dir()
        how = ", from its checkpoint" if saved else ", anew, as it left no checkpoint" if job.stopped else ""
        yield f"The run is over ({state}). The same command goes on with it{how}."
        return
    if reason := why_it_waits(job):
        yield f"It waits: {reason}"
    inputs, views = run.plan.inputs[job.id], run.view.jobs
    if missing := [name for name in inputs if views[name].status not in ("done", "stored")]:
        yield f"It waits for {len(missing)} of the {count(len(inputs), 'job')} that it reads:"
        yield from _first([f"  {name} ({views[name].status})" for name in missing], "")
    elif not reason:
        waits = f"a free worker; {count(len(run.view.having('running')), 'job')} run now"
        earlier = [other for other in views.values() if other.round < job.round and not other.settled]
        if earlier and run.setting("execution.barrier") == "round":
            waits = f"{count(len(earlier), 'job')} of earlier rounds (execution.barrier=round)"
        yield f"What it reads is there. It waits for {waits}."


def _attempts(run: LoadedRun, job: JobView, engine: bool | None, now: float) -> Lines:
    for attempt in job.attempts:
        was_killed = attempt.outcome == "running" and engine is False
        outcome = "running when the engine was killed" if was_killed else attempt.outcome
        where = f"attempt {attempt.number} on worker {attempt.worker}{_in_brackets(attempt.device)}"
        took = f", {duration(attempt.run_s or attempt.elapsed_s(now))}" if attempt.started is not None else ""
        yield f"{where}: {outcome}{_in_brackets(attempt.kind)}{took}{attempt.reason and f': {attempt.reason}'}"
        if log := log_path(run.folder, job.id, attempt):
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
        yield from _compared(earlier, run, job.id)
        before = earlier.view.jobs[job.id].status
        if ran and not aside and earlier.plan.jobs[job.id].key == key:
            gone = "its output was not in the store any more"
            yield f"It ran since {gone if before in ('done', 'stored') else f'that run left it {before}'}."
    problem = run.store.problem(key, checksums=False) if job.status in ("done", "stored") else None
    if problem == REMOVED:
        remover = why_removed(key, run.store.path(key)) or "execution.keep"
        yield f"Its weights were removed since, as {remover} asked."
    elif problem is not None:
        yield f"Its output cannot be used any more: {problem}."


def _compared(old: LoadedRun, new: LoadedRun, job_id: str) -> Lines:
    """Return how a job differs from that of an earlier run."""
    if (key := new.plan.jobs[job_id].key) == old.plan.jobs[job_id].key:
        yield f"Nothing that determines it changed since run {old.stamp}: it has the same key {key[:12]}."
        return
    yield f"It is another job than in run {old.stamp}, because"
    changed = causes(old.plan, new.plan, job_id)
    if not changed:
        yield "  its key differs; nothing that plan.json records of it does."
    for at, changes in list(changed.items())[:_MOST]:
        yield from [] if at == job_id else [f"  {at} changed:"]
        yield from _first([str(change) for change in changes], "  " if at == job_id else "    ")
    if len(changed) > _MOST:
        yield f"  and {len(changed) - _MOST} more jobs that changed"


def _first(lines: Sequence[str], indent: str) -> Lines:
    yield from (f"{indent}{line}" for line in lines[:_MOST])
    if len(lines) > _MOST:
        yield f"{indent}and {len(lines) - _MOST} more"
