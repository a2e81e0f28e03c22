"""What a dry run shows: the plan, what of it is stored, and what nobody can know before it runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from pipeline.commands.disk_room import print_need
from pipeline.commands.request import Request, Stored
from pipeline.engine.run_folder import PLAN_SVG
from pipeline.files import write_whole
from pipeline.learning.models.families import with_weights
from pipeline.machine import garbage
from pipeline.plan.chains import REFERENCE
from pipeline.plan.graph import duration_name
from pipeline.plan.models import is_local
from pipeline.plan.rewards import in_local_files
from pipeline.plan.summary import WORKER_LOAD, PlanRow, estimated_load, estimated_makespan, summarize
from pipeline.runs.report.format import count, duration, jobs
from pipeline.runs.report.plan import plan_svg, plan_table
from pipeline.terminal.console import say

MOST_ROWS = 300
"""Of the table of a plan: where there would be more, seeds are counted rather than listed."""


@garbage.kept()
def print_plan(request: Request, stored: Stored, console: Console) -> None:
    """Print the plan per round, with what is stored and what the rest would take; and draw it."""
    rows = summarize(request.plan, stored.missing, MOST_ROWS)
    console.print(plan_table(rows))
    if work := what_rows_add_up_to(rows, request.layout.workers):
        say(console, work, "italic")
    for line in fewer_rows(request.rows, request.config.data_collection.prompts_per_round):
        say(console, line)
    say(console, f"{in_short(request, stored)}. Nothing was started.")
    config = request.config
    picture = Path(config.output_dir) / config.experiment.name / PLAN_SVG
    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
        draw_plan(request, stored, picture)
        say(console, "The same as a picture:", copy=str(picture))
    except OSError as error:
        say(console, f"warning: {picture} could not be written: {error.strerror or error}", "bold")
    print_need(request, stored, console)
    missing = stored.missing
    if unseen := _not_looked_at(request, missing):
        say(console, f"Not looked at before the run: {', '.join(unseen)}.")


def in_short(request: Request, stored: Stored) -> str:
    """How many jobs there are, are stored, and are to run, and about how long that takes."""
    plan, missing, workers = request.plan, stored.missing, request.layout.workers
    text = f"{jobs(len(plan.jobs))}: {len(plan.jobs) - len(missing):,} stored{_removed(request, stored)}"
    text += f"{stored.in_shared}, {len(missing):,} to run on "
    text += count(workers, "worker")
    if not missing:
        return text
    timed = request.durations()
    seconds = estimated_makespan(plan, missing, workers) + estimated_load(plan, missing, workers, timed.seconds)
    kinds = {WORKER_LOAD, *(duration_name(plan.jobs[job_id]) for job_id in missing)}
    return f"{text}, about {duration(seconds)}{how_sure([*map(timed.knows, kinds)])}"


def what_rows_add_up_to(rows: Sequence[PlanRow], workers: int) -> str:
    """Why the estimates of a plan's rows are not what its run takes; "" where nothing is to be done."""
    if not (seconds := sum(row.seconds for row in rows)):
        return ""
    how = f"{count(workers, 'worker')} share that, and load first" if workers > 1 else "the worker loads first"
    return f"Estimates are of jobs one after the other, {duration(seconds)} in all; {how}."


def fewer_rows(rows: Mapping[str, Mapping[str, int]], asked: int) -> list[str]:
    """A line on each dataset that has fewer rows to train on than a round asks for.

    Args:
        rows: Dataset -> rows of each split, as far as they are known.
        asked: Prompts of a round.
    """
    return [
        f"datasets.{name} has {count(train, 'row')} to train on, so each round draws from all of them; "
        f"data_collection.prompts_per_round={asked} asks for more."
        for name, splits in rows.items()
        if 0 < (train := splits.get("train", asked)) < asked
    ]


def _removed(request: Request, stored: Stored) -> str:
    missing = set(stored.missing)
    jobs_there = (job for job in request.plan.jobs.values() if job.weights and job.id not in missing)
    number = sum(request.store.is_removed(job.key) for job in jobs_there)
    return f" ({number:,} of them without their weights, which were removed)" if number else ""


def how_sure(known: Sequence[bool]) -> str:
    """What to say behind an estimate, by whether each kind of job was timed."""
    if not any(known):
        return " (a guess, until the first run)"
    return "" if all(known) else " (in part a guess: some of it has not run here yet)"


def draw_plan(request: Request, stored: Stored, path: Path) -> None:
    """Write the picture of a plan.

    Raises:
        OSError: It cannot be written.
    """
    rows = summarize(request.plan, stored.missing)
    title = f"{request.config.experiment.name}{f' {request.label}' if request.label else ''}"
    write_whole(path, plan_svg(rows, f"Plan of {title}", in_short(request, stored)))


def _not_looked_at(request: Request, missing: Collection[str]) -> list[str]:
    """What may still turn out to be wrong or not to be had, since only a job reads it."""
    config, jobs_left = request.config, [request.plan.jobs[job_id] for job_id in missing]
    hub = {
        f"{with_weights(str(model.path), None).path} on the hub"
        for name, model in config.models.items()
        if model.path and not model.is_trained and not is_local(with_weights(model.path, None).path)
        if any(job.model == name and job.algo == REFERENCE for job in jobs_left)
    }
    unread = [name for name in request.unread(missing) if not in_local_files(config.datasets[name])]
    return [*(f"the rows of {name}" for name in unread), *sorted(hub)]
