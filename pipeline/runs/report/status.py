"""Where runs stand, as seen from another terminal: all experiments in one table, or one run in detail."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rich.console import Console, RenderableType
from rich.filesize import decimal
from rich.text import Text

from pipeline.config.schema import Backend
from pipeline.engine.run_folder import RunFolder
from pipeline.outputs.manifest import REMOVED
from pipeline.runs.loaded import LoadedRun, last_line, log_path, lost_outputs, removed_by, removed_weights
from pipeline.runs.origin import slurm_in_words
from pipeline.runs.progress import Progress
from pipeline.runs.report.format import (
    brief_device,
    count,
    done_in_words,
    duration,
    jobs,
    logs_command,
    shown_path,
)
from pipeline.runs.report.screen import (
    chain_lines,
    chains_of,
    first,
    how_far,
    jobs_done,
    said_of,
    share_lines,
    waited_for,
    whole_grids,
)
from pipeline.runs.run_view import AttemptView, JobView, RunView, failures
from pipeline.terminal.columns import Column, FittedTable
from pipeline.terminal.console import say_styled
from pipeline.terminal.streams import printable

# -- moved -------------------------------------------------------------------------------------------------------
# Where a run ran, and how many bytes moved for it, in words; "" for what there is nothing to say of.


def place_in_words(run: LoadedRun) -> str:
    """As in ``Ray, 24 workers on 3 nodes``; "" for a run without Ray, whose workers are on one machine."""
    execution = run.config.get("execution")
    if not isinstance(execution, dict) or execution.get("backend") != Backend.ray.value or not run.view.workers:
        return ""
    nodes = count(len(run.view.nodes), "node") if run.view.nodes else "one machine"
    return f"Ray, {count(len(run.view.workers), 'worker')} on {nodes}"


def origins(view: RunView) -> list[str]:
    """How many outputs that no job of the run made are from where, as ``11 stored before`` and ``5 fetched``."""
    stored = view.counts().stored
    fetched = min(stored, view.shared.get("fetched", 0))
    parts = {"stored before": stored - fetched, "fetched": fetched}
    return [f"{number:,} {what}" for what, number in parts.items() if number]


def moved_in_words(run: LoadedRun) -> list[str]:
    """Lines on where a run ran and what moved for it."""
    shared = shared_in_words(run.view.shared)
    said = (
        place_in_words(run),
        shared and f"shared store: {shared}",
    )
    return [line for line in said if line]


def shared_in_words(traffic: Mapping[str, int]) -> str:
    """As in ``16 outputs fetched (1.2 GB), 40 uploaded (3.4 GB), 2 to go``."""
    parts = []
    if number := traffic.get("fetched", 0):
        parts.append(f"{count(number, 'output')} fetched ({decimal(traffic['fetched_bytes'])})")
    if number := traffic.get("uploaded", 0):
        what = f"{number:,}" if parts else count(number, "output")
        parts.append(f"{what} uploaded ({decimal(traffic['uploaded_bytes'])})")
    if number := traffic.get("left", 0):
        parts.append(f"{number:,} to go")
    return ", ".join(parts)


MAX_LISTED = 10
_LEAST_NAME = 12
_LEAST_JOB = 28
_LEAST_DEVICE = 8
_LEAST_SAID = 34
_PARTS_SAID = 2
_COLORS: Mapping[str, str] = {
    "done": "green",
    "running": "bold",
    "failed": "bold red",
    "killed": "bold red",
    "halted": "bold red",
}


@dataclass(frozen=True, kw_only=True)
class Glance:
    """The newest run of an experiment in one row.

    Attributes:
        name: The experiment.
        run: Timestamp of the run, or "" where it cannot be read.
        state: The run in one word, see `RunView.state`.
        started: Wall-clock seconds, or None.
        elapsed_s: Seconds that it took so far.
        jobs: How many it has.
        done: How many of them are there, stored ones included.
        failed: How many failed.
        blocked: How many a failed one blocks.
        stored: How many of those that are there were stored before the run began.
        problem: Why the run cannot be read, or "".
    """

    name: str
    run: str = ""
    state: str = "unreadable"
    started: float | None = None
    elapsed_s: float = 0.0
    jobs: int = 0
    done: int = 0
    failed: int = 0
    blocked: int = 0
    stored: int = 0
    problem: str = ""


def glance_at(run: LoadedRun, now: float) -> Glance:
    """One row of the overview."""
    counts, runs = run.view.counts(), run.engine_runs()
    return Glance(
        name=run.name,
        run=run.stamp,
        state=run.view.state(runs),
        started=run.view.started,
        elapsed_s=round(run.view.elapsed_s(now, runs), 3),
        jobs=counts.total,
        done=counts.there,
        failed=counts.failed,
        blocked=counts.blocked,
        stored=counts.stored,
    )


def overview_table(rows: Iterable[Glance]) -> FittedTable:
    """The newest run of every experiment, the one that began last on top."""
    table = FittedTable(
        [
            Column(heading="experiment", least=_LEAST_NAME),
            Column(heading="newest run", rank=5),
            Column(heading="state", rank=1),
            Column(heading="done", right=True, rank=2),
            Column(heading="failed", right=True, rank=3),
            Column(heading="time", right=True, rank=4),
        ],
        lines=False,
    )
    for row in sorted(rows, key=lambda row: (row.run, row.name), reverse=True):
        table.add_row(
            row.name,
            row.run,
            Text(row.state, style=_COLORS.get(row.state, "")),
            f"{row.done:,}/{row.jobs:,}",
            Text(str(row.failed), style="bold red") if row.failed else "",
            _time(row),
        )
    return table


def _time(row: Glance) -> str:
    if row.started is None:
        return ""
    return "nothing ran" if row.state == "done" and row.stored == row.jobs else duration(row.elapsed_s)


# -- one run ---------------------------------------------------------------------------------------------------


def print_run(run: LoadedRun, now: float, console: Console) -> None:
    """Print one run. Only tables are fitted to the terminal: ids and paths below them stay whole, to be copied."""
    for part in run_page(run, now, console.width):
        if isinstance(part, Text):
            say_styled(console, part)
        else:
            console.print(part)


def run_page(run: LoadedRun, now: float, width: int) -> list[RenderableType]:
    """One run: a headline, chains x rounds, what runs, and what went wrong.

    Args:
        run: The run.
        now: Wall-clock seconds.
        width: Columns of the terminal.
    """
    view, engine = run.view, run.engine_runs()
    parts: list[RenderableType] = [run_headline(run, now, engine)]
    for grid in whole_grids(view.cells, width):
        parts += ["", grid]
    running = view.having("running")
    if running:
        stale = "" if engine else " (when the engine was last heard of)"
        parts += ["", running_table(run.folder, running, now if engine else view.last, stale)]
    lines = [
        *_of_slurm(run),
        *_moved(run),
        *_failed(run),
        *_blocked(view),
        *_waiting(view),
        *_quarantined(view),
        *_retries(view),
        *_removed(run),
        *_lost(run),
    ]
    lines += list(_unreadable(run))
    return parts + [Text(printable(text), style=style) for text, style in lines]


def run_headline(run: LoadedRun, now: float, engine: bool | None) -> Text:
    """What it is, how it stands, and what to do where that is not well."""
    view, counts = run.view, run.view.counts()
    state = view.state(engine)
    text = Text()
    text.append(f"{run.name} ", style="bold")
    text.append(f"{run.stamp}: ")
    text.append(state, style=_COLORS.get(state, ""))
    if left := view.uploads_left:
        text.append(f", {count(left, 'upload')} left")
    if view.interrupted:
        text.append(f" by {view.interrupted}")
    if view.halted:
        text.append(f" ({view.halted})")
    if state == "done" and counts.stored == counts.total:
        text.append(", nothing ran: every output was stored, or came from another run or machine")
    elif view.started is not None:
        text.append(f", {duration(view.elapsed_s(now, engine))}")
    told = run.progress
    parts = how_far(counts, told) if told else []
    there = ", ".join(origins(view))
    parts.append(jobs_done(counts) + (f" ({there})" if there else ""))
    rest = {"running": counts.running, "to come": counts.left, "failed": counts.failed, "blocked": counts.blocked}
    parts += [f"{number:,} {what}" for what, number in rest.items() if number]
    text.append("\n" + ", ".join(parts))
    for line in said_of(told):
        text.append(f"\n{printable(line)}", style="yellow")
    hint = {
        "killed": "The engine is gone without having ended the run; the same command goes on from here.",
        "interrupted": "The same command goes on from here.",
        "halted": "Mend that, then run the same command.",
        "not started": "It ended before its first job; see its log.",
        "unknown": "Its engine is on another machine, or this file system has no locks: it may still run.",
    }.get(state)
    if hint:
        text.append(f"\n{hint}", style="bold")
    return text


def running_table(folder: RunFolder, running: Sequence[JobView], now: float, stale: str = "") -> FittedTable:
    """What runs, where, how far it is, and what its log said last."""
    said = [_in_brief(last_line(folder, job.id, job.attempts[-1])) for job in running]
    done = [done_in_words(job.attempts[-1]) for job in running]
    again = any(job.attempts[-1].number > 1 for job in running)
    columns = [
        Column(heading="job", least=_LEAST_JOB),
        Column(heading="worker", right=True, rank=3),
        Column(heading="device", rank=6, least=_LEAST_DEVICE),
        Column(heading="time", right=True, rank=1),
    ]
    if again:  # the first goes without saying, and names of jobs need the room
        columns.insert(3, Column(heading="attempt", right=True, rank=5))
    if any(done):
        columns.append(Column(heading="done", right=True, rank=2))
    if any(said):
        columns.append(Column(heading="last said", rank=4, least=_LEAST_SAID))
    table = FittedTable(columns, title=f"running{stale}", lines=False)
    for job, part, line in zip(running, done, said, strict=True):
        attempt = job.attempts[-1]
        cells = (
            str(attempt.worker),
            brief_device(attempt.device),
            *([str(attempt.number)] if again else []),
            duration(attempt.elapsed_s(now)),
        )
        table.add_row(job.id, *cells, *([part] if any(done) else []), *([line] if any(said) else []))
    return table


def _in_brief(line: str) -> str:
    """As much as has room beside a job: of a training its step and loss."""
    return ", ".join(line.split(", ")[:_PARTS_SAID])


Lines = Iterator[tuple[str, str]]
"""Text and its style."""


def _of_slurm(run: LoadedRun) -> Lines:
    if told := slurm_in_words(run.origin.slurm):
        yield f"\n{told}", ""


def _moved(run: LoadedRun) -> Lines:
    for number, text in enumerate(moved_in_words(run)):
        yield text if number else f"\n{text}", ""


def _failed(run: LoadedRun) -> Lines:
    found = list(failures(run.view))
    if found:
        yield f"\nfailed: {jobs(len(found))}", "bold red"
    for job, attempt in found[:MAX_LISTED]:
        kind = f" ({job.kind}, {count(len(job.attempts), 'attempt')})" if job.kind else ""
        yield f"  {job.id}{kind}", ""
        yield f"    {job.reason}", "red"
        log = log_path(run.folder, job.id, attempt)
        if log is not None:
            yield f"    log: {shown_path(log)}", ""
            yield f"    read it: `{logs_command(run.folder.path.parent.parent, run.name, job.id)}`", ""
    yield from _more(len(found), "    ")


def _blocked(view: RunView) -> Lines:
    found = view.blocked_by()
    if found:
        yield f"\nblocked: {jobs(sum(map(len, found.values())))}", "bold red"
    for cause, blocked in list(found.items())[:MAX_LISTED]:
        shown = blocked[0] if len(blocked) == 1 else f"{jobs(len(blocked))}, from {blocked[0]} to {blocked[-1]}"
        yield f"  by {cause}:", ""
        yield f"    {shown}", ""
    yield from _more(len(found), "    ")


def _waiting(view: RunView) -> Lines:
    found = [(job, text) for job in view.having("pending") if (text := why_it_waits(job))]
    if found:
        yield "\nwaiting", "bold"
    for job, text in found[:MAX_LISTED]:
        yield f"  {job.id}: {text}", ""
    yield from _more(len(found), "  ")


def why_it_waits(job: JobView) -> str:
    """Why a job that is to come does not run yet, or ""."""
    last = job.attempts[-1] if job.attempts else None
    if last is not None and last.outcome == "failed" and last.retry:
        return f"attempt {last.number} failed ({last.kind}), another one follows: {last.reason}"
    if job.waits:
        return job.waits
    if job.stopped:
        return "it was stopped and goes on in the next run"
    if not job.reopened:
        return ""
    reason = job.reopened[-1]
    return f"made again, {'as' if reason == REMOVED else 'its stored output is damaged:'} {reason}"


def _quarantined(view: RunView) -> Lines:
    if view.quarantined:
        yield "\ndevices that are used no more", "bold red"
    for place in view.quarantined:
        after = f", after {', '.join(place.jobs[:3])}" if place.jobs else ""
        yield f"  worker {place.worker} ({place.device}): {place.reason}{after}", ""


def _retries(view: RunView) -> Lines:
    if view.retries:
        kinds = ", ".join(f"{number} {kind}" for kind, number in view.retries.most_common())
        yield f"\nretries so far: {view.retries.total()} ({kinds})", ""


def _removed(run: LoadedRun) -> Lines:
    found = removed_weights(run)
    if found:
        by = ", ".join(removed_by(run))
        yield f"\nmade, and their weights removed{by and f' ({by})'}", "bold"
    yield from _listed(found)


def _lost(run: LoadedRun) -> Lines:
    found = lost_outputs(run)
    if found:
        yield "\nmade, and in the store no more; `python -m pipeline export` makes them again", "bold"
    yield from _listed(found)


def _listed(found: Mapping[str, Sequence[int]]) -> Lines:
    for chain, rounds in list(found.items())[:MAX_LISTED]:
        yield f"  {chain}: {'round' if len(rounds) == 1 else 'rounds'} {', '.join(map(str, rounds))}", ""
    yield from _more(len(found), "  ")


def _unreadable(run: LoadedRun) -> Lines:
    if run.unreadable:
        yield (
            f"\n{count(run.unreadable, 'line')} of journal.jsonl cannot be read; what they told is missing here",
            "bold",
        )


def _more(found: int, indent: str) -> Lines:
    if found > MAX_LISTED:
        yield f"{indent}and {found - MAX_LISTED} more; --json lists all", ""


# -- status json -------------------------------------------------------------------------------------------------
# Where a run stands, for other programs: all of it as plain data, nothing cut off.


def run_json(run: LoadedRun, now: float) -> dict[str, Any]:
    """One run as plain data, nothing cut off."""
    view, engine = run.view, run.engine_runs()
    counts = view.counts()
    return {
        **asdict(glance_at(run, now)),
        "folder": str(run.folder.path),
        "started_at": None
        if view.started is None
        else datetime.fromtimestamp(view.started).astimezone().isoformat(),
        "interrupted": view.interrupted or None,
        "halted": view.halted or None,
        "pid": view.pid,
        "host": view.host,
        "slurm": dict(run.origin.slurm) or None,
        "nodes": sorted(view.nodes),
        "shared_store": dict(view.shared) or None,
        "progress": _progress_json(run.progress),
        "shared_store_away": (run.progress.shared_store if run.progress else "") or None,
        "counts": {**asdict(counts), "pending": counts.left},
        "cells": [
            {"chain": chain, "round": number, **asdict(cell)} for (chain, number), cell in view.cells.items()
        ],
        "running_jobs": [
            _attempt_json(job, job.attempts[-1], now if engine else view.last) for job in view.having("running")
        ],
        "failed_jobs": [
            {
                "job": job.id,
                "kind": job.kind,
                "reason": job.reason,
                "attempts": len(job.attempts),
                "log": str(log) if (log := log_path(run.folder, job.id, attempt)) else None,
            }
            for job, attempt in failures(view)
        ],
        "blocked_jobs": view.blocked_by(),
        "waiting_jobs": {job.id: text for job in view.having("pending") if (text := why_it_waits(job))},
        "quarantined": [asdict(place) for place in view.quarantined],
        "retries": dict(view.retries),
        "unreadable_lines": run.unreadable,
        "weights_removed": removed_weights(run),
        "outputs_lost": lost_outputs(run),
    }


def _attempt_json(job: JobView, attempt: AttemptView, now: float) -> dict[str, Any]:
    return {
        "job": job.id,
        "attempt": attempt.number,
        "worker": attempt.worker,
        "device": attempt.device,
        "elapsed_s": round(attempt.elapsed_s(now), 3),
        "loading": attempt.loading,
        "done": attempt.done,
        "total": attempt.total,
        "tokens": attempt.tokens,
        "numbers": dict(attempt.numbers),
    }


def _progress_json(progress: Progress | None) -> dict[str, float | None] | None:
    if progress is None:
        return None
    names = ("part", "remaining_s", "samples_per_s", "tokens_per_s")
    amounts = {name: getattr(progress, name) for name in names}
    return {name: None if amount is None else round(amount, 4) for name, amount in amounts.items()}


# -- watched -----------------------------------------------------------------------------------------------------
# What `status --watch` shows: one run as far as a terminal has room, or what is new of all experiments.


_MOST_FAILURES = 3
_ABOVE = 3
"""Lines that are neither a row nor a sentence: headings of two tables, and that of the cursor."""
_RULER = Console(file=io.StringIO(), color_system=None)


def watched_run(run: LoadedRun, now: float, width: int, height: int) -> list[RenderableType]:
    """One run for a terminal of that size: how far it is, chains, what runs, what moved, what failed last."""
    engine = run.engine_runs()
    top = _wrapped(run_headline(run, now, engine), width)
    bottom = _below(run, engine, width, height - _ABOVE - len(top))
    chains, running = chains_of(run.view.cells), run.view.having("running") if engine else []
    room = height - _ABOVE - len(top) - len(bottom)
    for_chains, for_jobs = share_lines(room, len(chains), len(running))
    parts: list[RenderableType] = [*top]
    if for_chains:
        parts += chain_lines(run.view.cells, chains, for_chains)
    if for_jobs:
        shown, more = first(running, for_jobs, lambda _: 0)
        parts.append(running_table(run.folder, shown, now))
        if more:
            parts.append(Text(f"and {more} more", no_wrap=True, overflow="ellipsis"))
    return [*parts, *bottom]


def _below(run: LoadedRun, engine: bool | None, width: int, room: int) -> list[Text]:
    """What is said below the tables: whole where that leaves room for them, else less of it, or the beginnings."""
    waits = waited_for(run.view) if engine else ""
    failed = [f"failed: {job.id}: {job.reason}" for job, _ in list(failures(run.view))[-_MOST_FAILURES:]]
    said = [
        *(Text(printable(line)) for line in moved_in_words(run)),
        *([Text(printable(waits), "yellow")] if waits else []),
        *(Text(printable(line), "red") for line in failed),
    ]
    whole = [line for text in said for line in _wrapped(text, width)]
    if len(whole) <= room // 2:
        return whole
    for text in said:
        text.no_wrap, text.overflow = True, "ellipsis"
    needed = len(failed) + bool(waits)
    return said[max(0, len(said) - max(needed, room // 2)) :]


def _wrapped(text: Text, width: int) -> list[Text]:
    """Lines of a terminal of so many columns, broken between words."""
    return list(text.wrap(_RULER, width))


class News:
    """What is new of all experiments, a line for each that has changed."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def of(self, rows: Iterable[Glance]) -> Iterator[str]:
        """Those that are not as they were the last time."""
        for row in rows:
            text = row.problem or f"{row.state}, {row.done:,}/{jobs(row.jobs)} done"
            text += f", {row.failed} failed" if row.failed else ""
            if self._last.get(row.name) != text:
                self._last[row.name] = text
                yield f"{row.name} {row.run}: {text}"
