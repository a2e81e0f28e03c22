"""Tell how long a request takes on its devices, by recorded times of jobs of the same kinds.

The jobs' times give the longest path or the work of the devices, and loading; the real over the predicted time of
earlier runs gives a range.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import quantiles

from rich.console import Console
from rich.filesize import decimal

from pipeline.commands import request as requests
from pipeline.commands.request import Request
from pipeline.config.schema import AlgoConfig, Config, DryRun, ModelConfig, continued_from
from pipeline.engine.run_jobs import add_forecast, read_durations, read_forecasts, run_jobs, update_durations
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.ready import ranks_of_rows
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.scheduler.state import THERE
from pipeline.learning.memory import fit
from pipeline.learning.models.kinds import TinyModelConfig
from pipeline.machine.memory import usable_bytes
from pipeline.plan import graph
from pipeline.plan.keeping import measures
from pipeline.plan.models import count_weights
from pipeline.runs.report.format import count, roughly, typed_command
from pipeline.terminal.console import say

LEAST_RUNS = 3
"""Fewest earlier runs that give a range."""
_NAMED = 3
"""Most kinds of jobs to name that were not timed."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The predicted time of the jobs of a plan that are to run.

    Attributes:
        seconds: From the first job to the last, of the jobs whose kind was timed; 0 if none was.
        timed: Ids of these jobs.
        unknown: Kinds of the other jobs, by `duration_name`.
        ratios: Real over predicted time of earlier runs whose jobs had all been timed.
        flops: Predicted FLOPs of the timed jobs.
    """

    seconds: float
    timed: tuple[str, ...]
    unknown: tuple[str, ...]
    ratios: tuple[float, ...] = ()
    flops: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether every job was timed."""
        return not self.unknown

    def range(self) -> tuple[float, float] | None:
        """Return the 10 % and the 90 % quantile of the ratios; None with too few of them."""
        if len(self.ratios) < LEAST_RUNS:
            return None
        tenths = quantiles(self.ratios, n=10, method="inclusive")
        return tenths[0], tenths[-1]

    def __str__(self) -> str:
        if not self.timed:
            return "not known yet, as no such job was timed"
        about = f"about {roughly(self.seconds)}, from recorded times of such jobs"
        if self.unknown:
            more = ", ..." if len(self.unknown) > _NAMED else ""
            kinds = f"{count(len(self.unknown), 'kind')} ({', '.join(self.unknown[:_NAMED])}{more})"
            return f"more than {about.removeprefix('about ')}; not known for jobs of {kinds}"
        if (found := self.range()) is None:
            return f"{about}. No range yet: {len(self.ratios)} of {LEAST_RUNS} runs to compare it with"
        low, high = (roughly(self.seconds * ratio) for ratio in found)
        return (
            f"{about}; {low} to {high} by the 10 % and 90 % quantiles of real / predicted, {len(self.ratios)} runs"
        )


def forecast(request: Request, missing: Collection[str]) -> Forecast:
    """Predict how long the jobs of a request take that are to run."""
    plan, root = request.plan, request.store.root
    durations = read_durations(root, request.gpu)
    kinds = {job_id: graph.duration_name(plan.jobs[job_id]) for job_id in missing}
    timed = tuple(job_id for job_id in missing if kinds[job_id] in durations.jobs)
    return Forecast(
        seconds=_seconds(request, timed),
        timed=timed,
        unknown=tuple(dict.fromkeys(kind for kind in kinds.values() if kind not in durations.jobs)),
        ratios=tuple(read_forecasts(root, request.gpu)),
        flops={name: durations.expected_flops(kinds[name], plan.jobs[name].size_s) for name in timed},
    )


def _seconds(request: Request, job_ids: Collection[str]) -> float:
    """Predict how long some jobs take on the devices, with loading."""
    plan, workers = request.plan, request.layout.workers
    load_s = graph.estimated_load(plan, job_ids, workers, read_durations(request.store.root, request.gpu).seconds)
    return graph.estimated_makespan(plan, job_ids, workers) + load_s


def compared(request: Request, told: Forecast, outcome: Outcome) -> Outcome:
    """Return the outcome of a run with its predicted time, and record both, if it did all of its jobs."""
    is_done = all(status in THERE for status in outcome.jobs.values())
    if outcome.makespan is None or not (is_done and told.is_whole):
        return outcome
    add_forecast(request.store.root, told.seconds, outcome.makespan.actual_s, request.gpu)
    return replace(outcome, makespan=replace(outcome.makespan, predicted_s=told.seconds))


def tell_time(
    request: Request, told: Forecast, console: Console, unsettled: tuple[Request, Forecast] | None = None
) -> None:
    """Say how long a request takes on its devices, and what would tell more.

    Args:
        request: The request.
        told: The predicted time of its jobs.
        console: Where to say it.
        unsettled: Of a race, all that it carries out if no pair settles, with the predicted time.
    """
    number, name = len(request.used_devices), request.gpu
    where = f"{number} x {name}" if name else count(number, "CPU slot")
    if request.is_elsewhere:
        say(console, f"Planned for {where}, which this machine has not. device=cpu plans for its CPU slots.")
    line = f"Time on {where}: {told}."
    if unsettled is not None:
        request, told = unsettled
        line = f"Time on {where} for the looks so far: {line.partition(': ')[2]} If no pair settles: {told}."
    if not told.is_whole:
        on = " on such a machine" if request.is_elsewhere else ""
        line += f" dry_run=measure{on} measures each kind for some seconds."
    say(console, line)
    if request.config.experiment.budget and not told.is_whole:
        say(console, "What fits into experiment.budget is not known before that.")
    elif request.config.experiment.budget:
        say(console, _budget_in_words(request, told))
    if request.is_elsewhere:
        _tell_memory(request.config, request.devices[0].memory_total_bytes, number, console)


def _budget_in_words(request: Request, told: Forecast) -> str:
    """Say which rows of results a budget is enough for."""
    budget, jobs = request.config.experiment.budget, request.plan.jobs
    hours = {job_id: jobs[job_id].seconds * jobs[job_id].devices / 3600 for job_id in told.timed}
    limits = {"device hours": (budget.device_hours, hours), "FLOPs": (budget.flops, told.flops)}
    given = {unit: (limit, spent) for unit, (limit, spent) in limits.items() if limit is not None}
    rows = [job.id for job in jobs.values() if measures(job)]

    def begun(ratio: float = 1.0) -> list[str]:
        """Return the jobs that begin if jobs take this many times the hours."""
        shares = {unit: ratio if spent is hours else 1.0 for unit, (_, spent) in given.items()}
        return min(
            (begun_within(request, spent, limit / shares[unit]) for unit, (limit, spent) in given.items()), key=len
        )

    def finished(begun: Collection[str]) -> list[str]:
        return [row for row in rows if row in begun or row not in told.timed]

    within = begun()
    fit = finished(within)
    low, high = told.range() or (1.0, 1.0)
    fewest, most = (len(finished(begun(ratio))) for ratio in (high, low))
    about = f"{len(fit)} of {len(rows)} rows of results fit"
    if fewest != most:
        about += f" ({fewest} to {most} by the same quantiles)"
    if fit and len(within) < len(told.timed):
        last = max(fit, key=ranks_of_rows(request.plan).__getitem__)
        about += f", in about {roughly(_seconds(request, within))}; the last is {last.rpartition('/')[0]}"
    has = " and ".join(f"{limit:g} {unit}" for unit, (limit, _) in given.items())
    take = " and ".join(
        f"{sum(spent.values()):.3g} {unit}{' without loading' * (spent is hours)}"
        for unit, (_, spent) in given.items()
    )
    return f"experiment.budget has {has}, and the jobs take {take}: {about}."


def begun_within(request: Request, spent: Mapping[str, float], limit: float) -> list[str]:
    """Return the jobs that begin before a budget is spent, in the order of rows.

    Args:
        request: The request.
        spent: Job that is to run -> what it spends.
        limit: The budget, in the same unit.
    """
    ranks = ranks_of_rows(request.plan)
    begun: list[str] = []
    left = limit
    for job_id in sorted(spent, key=ranks.__getitem__):
        if left <= 0:
            break
        begun.append(job_id)
        left -= spent[job_id]
    return begun


def _tell_memory(config: Config, memory_bytes: int, gpus: int, console: Console) -> None:
    """Say what the weights of each model take of a GPU when all of them are trained."""
    work = fit.Workload(dtype=config.system.dtype, optimizer=config.training.optimizer)
    for name, model in config.models.items():
        line = f"Memory for models.{name}:"
        if weights := count_weights(model):
            need = fit.training_footprint(fit.ModelShape(name=name, parameters=weights), work).state
            usable = usable_bytes(memory_bytes)
            verdict = f"it {'fits' if need <= usable else 'does not fit'} on one GPU"
            line += f" weights, gradients and optimizer take {decimal(need)} of {decimal(usable)}: {verdict}."
            line += " Activations come on top."
        gib = f"{memory_bytes / 2**30:g}"
        if model.path is None:
            say(console, line)
            continue
        command = typed_command(
            ["python", "-m", "pipeline", "gpus", "fit", str(model.path), "--gpus", str(gpus), "--memory", gib]
        )
        say(console, f"{line} All of it:", copy=command)


# -- measure -----------------------------------------------------------------------------------------------------
# Measure each kind of job of a plan for some seconds: run small versions of the request, and extend their times.
#
#     the request with few prompts  -->  seconds at two sizes  -->  a line through both  -->  seconds as planned
#
# The smaller version fills a batch once, since less work in the same batch takes as long. Everything runs in a
# folder that is removed afterwards; only the times stay, with those of earlier runs.


TARGET_S = 5.0
"""Seconds that the longest job of the larger version is to take, about."""
_STEPS = 8
"""Steps of a reference's training in the smaller version."""
_LARGER = 4
"""Batches that the larger version fills at least."""
_SMALLEST_S = 1e-6


def measure(request: Request, missing: list[str], folder: Path, signals: StopSignals, console: Console) -> str:
    """Measure the kinds of jobs that a request is still to run, and record their times.

    Args:
        request: The request, with devices that are leased.
        missing: Ids of its jobs to run.
        folder: An empty folder for everything that the measurement makes.
        signals: Signals that end the measurement.
        console: Console for what was measured, and what could not be.

    Returns:
        The signal that ended it, or "".
    """
    planned = dict[str, float]()
    for job in map(request.plan.jobs.__getitem__, missing):
        planned[graph.duration_name(job)] = max(job.size_s, planned.get(graph.duration_name(job), 0.0))
    part, timed = 0.0, list[graph.Durations]()
    for name, times in (("smaller", 1), ("larger", _LARGER)):
        small = small_version(request.config, part, times)
        outcome, plan = _run(request, small, planned, folder / name, signals)
        for job_id, reason in outcome.failures()[:1]:
            say(console, f"warning: {job_id} could not be measured: {reason}", "bold")
        if outcome.interrupted:
            return outcome.interrupted
        found = outcome.durations(plan, graph.duration_name)
        timed.append(replace(found, jobs={kind: one for kind, one in found.jobs.items() if kind in planned}))
        whole_s = (
            one.took_s * planned[kind] / max(one.size_s, _SMALLEST_S) for kind, one in timed[0].jobs.items()
        )
        part = min(1.0, TARGET_S / max([*whole_s, _SMALLEST_S]))
    update_durations(request.store.root, graph.Durations(extended(planned, *timed), timed[1].seconds), request.gpu)
    data = small.data_collection.prompts_per_round
    say(console, f"Measured {count(len(timed[1].jobs), 'kind')} of jobs, with {count(data, 'prompt')} at most.")
    return ""


def small_version(config: Config, part: float, times: int = 1) -> Config:
    """Return a request whose jobs are of the same kinds and small.

    Args:
        config: The request.
        part: Fraction of its work that each job is to do, about.
        times: Batches that its jobs fill at least.
    """
    batch, evaluation = config.generation.batch_size, config.evaluation

    def few(whole: int, least: int) -> int:
        return min(whole, max(times * least, round(part * whole)))

    def small(model: ModelConfig) -> ModelConfig:
        one = model.with_reference(model.references[0])
        return replace(one, steps=few(one.steps, _STEPS)) if isinstance(one, TinyModelConfig) else one

    def from_first(algo: AlgoConfig) -> AlgoConfig:
        return algo if algo.continues is None else replace(algo, continues=f"{continued_from(algo)[0]}@1")

    collected = replace(
        config.data_collection, prompts_per_round=few(config.data_collection.prompts_per_round, batch)
    )
    # It has two rounds and one seed, whatever chains a race or a user has ended after which round.
    experiment = replace(config.experiment, seeds=config.experiment.seeds[:1], race=None, looks={}, last_rounds={})
    each = -(-batch // evaluation.num_samples)
    return replace(
        config,
        dry_run=DryRun.false,
        rounds_of_training=min(2, config.rounds_of_training),
        experiment=experiment,
        algos={name: from_first(algo) for name, algo in config.algos.items()},
        data_collection=collected,
        evaluation=replace(evaluation, num_prompts=few(evaluation.num_prompts, each), grown_from=[]),
        execution=replace(config.execution, store=None, shared_store=None, priority=None),
        models={name: small(model) for name, model in config.models.items()},
    )


def extended(
    planned: Mapping[str, float], smaller: graph.Durations, larger: graph.Durations
) -> dict[str, graph.Timed]:
    """Return each kind of job at its planned size, by the line through its seconds at two sizes.

    If the larger job did not take longer, only chance decided, and its time grows with its size.

    Args:
        planned: Kind -> its planned size in s.
        smaller: Times of small jobs.
        larger: Times of larger ones.
    """
    kinds = dict[str, graph.Timed]()
    for kind, two in larger.jobs.items():
        one, size_s = smaller.jobs.get(kind, two), planned[kind]
        more_s, longer_s = two.size_s - one.size_s, two.took_s - one.took_s
        if more_s <= _SMALLEST_S or longer_s <= 0:
            more_s, longer_s = two.size_s, two.took_s
        pace = longer_s / max(more_s, _SMALLEST_S)
        took_s = two.took_s + pace * max(0.0, size_s - two.size_s)
        kinds[kind] = graph.Timed(size_s, took_s, larger.expected_flops(kind, size_s))
    return kinds


def _run(
    request: Request, small: Config, planned: Mapping[str, float], folder: Path, signals: StopSignals
) -> tuple[Outcome, graph.Plan]:
    """Run the jobs of a small version that are of planned kinds, and what they need."""
    folder.mkdir()
    made = requests.prepare(replace(small, output_dir=str(folder)))
    wanted = [job.id for job in made.plan.jobs.values() if graph.duration_name(job) in planned]
    plan = made.plan.up_to(wanted)
    return run_jobs(plan, made.store, request.used_devices, folder, **made.how, signals=signals), plan
