"""Whether a run has room on the disk of its store: said before it runs, and refused where it cannot have it."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal

from pipeline.commands.request import Request, Stored
from pipeline.config.schema import Config, Keep
from pipeline.engine.keeper import Keeper
from pipeline.engine.store.store import Store
from pipeline.errors import StoreError
from pipeline.foreign import ForeignDataError
from pipeline.outputs.formats import read_metrics
from pipeline.plan.disk import DiskNeed, disk_need
from pipeline.plan.graph import Job
from pipeline.runs.record import PRIMARY_METRICS
from pipeline.runs.report.format import count
from pipeline.terminal.console import say

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
        f"pipeline store gc), or ask for less at once: {', '.join(_fewer(request))}"
    )


def _removed_first(request: Request, stored: Stored) -> int:
    """Bytes of weights that the run removes before its first job, as `execution.keep` asks for."""
    return keeper_of(request, stored.missing, request.store.root / ".tmp" / "none").removable()


def _fewer(request: Request) -> Iterator[str]:
    """Settings that make a run smaller."""
    config = request.config
    if config.execution.keep is Keep.all and config.rounds_of_training > 1:
        yield "execution.keep=last removes the weights of earlier rounds"
    if len(config.experiment.seeds) > 1:
        yield f"fewer experiment.seeds ({len(config.experiment.seeds)})"
    if config.rounds_of_training > 1:
        yield f"fewer rounds_of_training ({config.rounds_of_training})"
    enabled = sum(algo.enabled for algo in config.algos.values())
    yield f"fewer algos ({enabled})" if enabled > 1 else "a smaller model"


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
