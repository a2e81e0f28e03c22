"""`execution.keep` in a run: what removes weights, how the best round is chosen, and what users are told."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal

from pipeline.commands.request import Request
from pipeline.config.schema import Config, Keep
from pipeline.engine.keeper import Keeper
from pipeline.engine.store.store import Store
from pipeline.foreign import ForeignDataError
from pipeline.outputs.reading import read_metrics
from pipeline.plan.graph import Job
from pipeline.runs.primary import PRIMARY_METRICS
from pipeline.runs.report.format import count
from pipeline.terminal.console import say


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
