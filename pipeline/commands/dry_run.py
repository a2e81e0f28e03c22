"""What a dry run shows: the plan, what of it is stored, and what nobody can know before it runs."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal

from pipeline.commands.request import Request, Stored
from pipeline.config.schema import Config, Keep
from pipeline.engine.keeper import Keeper
from pipeline.engine.run_folder import PLAN_SVG
from pipeline.engine.store.store import Store
from pipeline.errors import StoreError
from pipeline.files import write_whole
from pipeline.foreign import ForeignDataError
from pipeline.learning.models.families import with_weights
from pipeline.machine import memory
from pipeline.outputs.formats import read_metrics
from pipeline.plan.chains import REFERENCE
from pipeline.plan.disk import DiskNeed, disk_need
from pipeline.plan.graph import Job, duration_name
from pipeline.plan.models import is_local
from pipeline.plan.rewards import in_local_files
from pipeline.plan.summary import WORKER_LOAD, PlanRow, estimated_load, estimated_makespan, summarize
from pipeline.runs.record import PRIMARY_METRICS
from pipeline.runs.report.format import count, duration, jobs
from pipeline.runs.report.plan import plan_svg, plan_table
from pipeline.terminal.console import say

# -- disk room ---------------------------------------------------------------------------------------------------
# Whether a run has room on the disk of its store: said before it runs, and refused where it cannot have it.


# -- keeping -----------------------------------------------------------------------------------------------------
# `execution.keep` in a run: what removes weights, how the best round is chosen, and what users are told.


def keeper_of(request: Request, missing: Collection[str], scratch: Path) -> Keeper:
    """What removes weights in a run.

    Args:
        request: What is asked for.
        missing: Ids of the jobs that must run.
        scratch: The run's folder in the store, where it tells what it needs.
    """
    output_dir = Path(request.config.output_dir).absolute()
    shared = request.shared
    return Keeper(
        is_needed=shared.is_uploading if shared else lambda _: False,
        plan=request.plan,
        keep=request.config.execution.keep,
        there=set(request.plan.jobs) - set(missing),
        store=request.store,
        scratch=scratch,
        experiment=output_dir / request.config.experiment.name,
        output_dir=output_dir,
        score_of=lambda job: score_of(request.store, job),
    )


def score_of(store: Store, job: Job) -> float | None:
    """How well a policy evaluates: the figure that results are judged by, of the job that measures it."""
    try:
        rows = {row.metric: row.value for row in read_metrics(store.path(job.key)).rows}
    except (OSError, ForeignDataError):  # results say so; here it is a round of which nothing is known
        return None
    return next((value for name in PRIMARY_METRICS if (value := rows.get(name)) is not None), None)


def tell_removed(keeper: Keeper, console: Console) -> None:
    """Say what was removed, by this run and before it, and why not all that was to be."""
    told = []
    if keeper.number:
        told.append(f"the weights of {count(keeper.number, 'output')} were removed, {decimal(keeper.freed)}")
    if keeper.keep is not Keep.all and (gone := sum(keeper.is_gone(job_id) for job_id in keeper.before)):
        which = "those" if told else "the weights"
        told.append(f"{which} of {count(gone, 'output')} had gone before, by what earlier runs were to keep")
    if told:
        say(console, f"execution.keep={keeper.keep.name}: {'; '.join(told)}", "dim")
    if keeper.keep is not Keep.results:
        _tell_lacking(keeper, console)
    if keeper.stuck:
        say(console, f"warning: execution.keep={keeper.keep.name}: weights stay: {keeper.stuck}", "bold")


def _tell_lacking(keeper: Keeper, console: Console) -> None:
    """Say of which chains the weights cannot stay that were asked for, since they have gone before."""
    begin, advice = f"execution.keep={keeper.keep.name}: of", "`python -m pipeline export` makes"
    if some := len(keeper.lacking - keeper.bare):
        which, left = "these", "of the rounds that were left the next one's stay"
        if keeper.keep is Keep.all:
            which, left = "some", "those that are left stay"
        text = f"{begin} {count(some, 'chain')} {which} weights were removed by an earlier run; {left}"
        say(console, f"{text}. {advice} the others again", "bold")
    if keeper.bare:
        text = f"{begin} {count(len(keeper.bare), 'chain')} no weights are left: an earlier run removed them"
        say(console, f"{text}. {advice} them again", "bold")


def said_of_best(config: Config) -> str | None:
    """What to say where the round whose weights stay is chosen by the very prompts that are reported."""
    if config.execution.keep is not Keep.best or config.evaluation.split != "test":
        return None
    return (
        "execution.keep=best chooses by evaluation.split=test: the results of what is kept flatter it. "
        "evaluation.split=validation chooses by other prompts"
    )


_LEAST = 1_000_000
"""Bytes free below which a disk is as good as full for other reasons; an estimate is no better than that."""


def need_of(request: Request, stored: Stored) -> DiskNeed:
    """What the jobs that are to run take of the disk."""
    return disk_need(request.plan, request.config, stored.missing, request.layout.workers)


def check_room(request: Request, stored: Stored) -> None:
    """Refuse a run that cannot fit the disk of its store.

    Raises:
        StoreError: It cannot; says what it needs, what is free and what would help.
    """
    if problem := no_room(request, stored, need_of(request, stored)):
        raise StoreError(problem)


def no_room(request: Request, stored: Stored, need: DiskNeed) -> str | None:
    """Why a run cannot fit the disk of its store; None where it can, or where that is not known."""
    free = free_bytes(request.store.root)
    if free is None or need.least <= max(free, _LEAST) or need.least <= free + _removed_first(request, stored):
        return None
    return (
        f"the disk of {request.store.root} has {decimal(free)} free, and the models that this run trains take "
        f"{decimal(need.least)} at least. Use execution.store=FOLDER on a larger disk, free space (python -m "
        "pipeline store gc), keep fewer weights (execution.keep=last), or ask for fewer rounds_of_training, "
        "experiment.seeds or algos"
    )


def _removed_first(request: Request, stored: Stored) -> int:
    """Bytes of weights that the run removes before its first job, as `execution.keep` asks for."""
    return keeper_of(request, stored.missing, request.store.root / ".tmp" / "none").removable()


def free_bytes(store: Path) -> int | None:
    """What is free on the disk of a store, which need not be there yet; None where nobody can tell."""
    try:
        return shutil.disk_usage(next(one for one in (store, *store.parents) if one.is_dir())).free
    except (OSError, StopIteration):
        return None


def print_need(request: Request, stored: Stored, console: Console) -> None:
    """What the models that the rest of a plan trains take of the disk, and what is free."""
    if not stored.missing:
        return
    need, free = need_of(request, stored), free_bytes(request.store.root)
    text = f"About {decimal(need.made)} of models that are trained"
    keep = request.config.execution.keep
    if keep is not Keep.all:
        text += f", of which {decimal(need.stays)} stay (execution.keep={keep.name})"
    if need.checkpoints:
        text += f", and {decimal(need.checkpoints)} of checkpoints meanwhile"
    say(console, f"{text}; {'what is free is not known' if free is None else f'{decimal(free)} are free'}.")
    if need.unknown:
        say(console, f"Not in these figures, since nothing tells how large: {', '.join(need.unknown)}.")
    if problem := no_room(request, stored, need):
        say(console, f"warning: this would not start: {problem}", "bold")
    elif free is not None and need.stays + need.checkpoints > free:
        say(console, "warning: it would start, and may fill the disk.", "bold")


MOST_ROWS = 300
"""Of the table of a plan: where there would be more, seeds are counted rather than listed."""


@memory.no_garbage_collection()
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
