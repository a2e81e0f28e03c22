"""Tell how long a request takes on its devices, by recorded times of jobs of the same kinds.

The jobs' times give the longest path or the work of the devices, and loading; the real over the predicted time of
earlier runs gives a range.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from statistics import quantiles

from rich.console import Console
from rich.filesize import decimal

from pipeline.commands.request import Request
from pipeline.config.schema import Config
from pipeline.engine.run_jobs import add_forecast, read_durations, read_forecasts
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.state import THERE
from pipeline.learning.memory import fit
from pipeline.machine.memory import usable_bytes
from pipeline.plan import graph
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
    """

    seconds: float
    timed: tuple[str, ...]
    unknown: tuple[str, ...]
    ratios: tuple[float, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether every job was timed."""
        return not self.unknown

    def interval_s(self) -> tuple[float, float] | None:
        """Return the seconds at the 10 % and the 90 % quantile of the ratios; None with too few of them."""
        if len(self.ratios) < LEAST_RUNS:
            return None
        tenths = quantiles(self.ratios, n=10, method="inclusive")
        return self.seconds * tenths[0], self.seconds * tenths[-1]

    def __str__(self) -> str:
        if not self.timed:
            return "not known yet, as no such job was timed"
        about = f"about {roughly(self.seconds)}, from recorded times of such jobs"
        if self.unknown:
            more = ", ..." if len(self.unknown) > _NAMED else ""
            kinds = f"{count(len(self.unknown), 'kind')} ({', '.join(self.unknown[:_NAMED])}{more})"
            return f"more than {about.removeprefix('about ')}; not known for jobs of {kinds}"
        if (interval := self.interval_s()) is None:
            return f"{about}. No range yet: {len(self.ratios)} of {LEAST_RUNS} runs to compare it with"
        low, high = map(roughly, interval)
        return (
            f"{about}; {low} to {high} by the 10 % and 90 % quantiles of real / predicted, {len(self.ratios)} runs"
        )


def forecast(request: Request, missing: Collection[str]) -> Forecast:
    """Predict how long the jobs of a request take that are to run."""
    plan, workers, root = request.plan, request.layout.workers, request.store.root
    durations = read_durations(root, request.gpu)
    kinds = {job_id: graph.duration_name(plan.jobs[job_id]) for job_id in missing}
    timed = tuple(job_id for job_id in missing if kinds[job_id] in durations.jobs)
    return Forecast(
        seconds=graph.estimated_makespan(plan, timed, workers)
        + graph.estimated_load(plan, timed, workers, durations.seconds),
        timed=timed,
        unknown=tuple(dict.fromkeys(kind for kind in kinds.values() if kind not in durations.jobs)),
        ratios=tuple(read_forecasts(root, request.gpu)),
    )


def compared(request: Request, told: Forecast, outcome: Outcome) -> Outcome:
    """Return the outcome of a run with its predicted time, and record both, if it did all of its jobs."""
    is_done = all(status in THERE for status in outcome.jobs.values())
    if outcome.makespan is None or not (is_done and told.is_whole):
        return outcome
    add_forecast(request.store.root, told.seconds, outcome.makespan.actual_s, request.gpu)
    return replace(outcome, makespan=replace(outcome.makespan, predicted_s=told.seconds))


def tell_time(request: Request, told: Forecast, console: Console) -> None:
    """Say how long a request takes on its devices, and what would tell more."""
    number, name = len(request.used_devices), request.gpu
    where = f"{number} x {name}" if name else count(number, "CPU slot")
    if request.is_elsewhere:
        say(console, f"Planned for {where}: this machine has too few usable GPUs to run it.")
    line = f"Time on {where}: {told}."
    if not told.is_whole:
        on = " on such a machine" if request.is_elsewhere else ""
        line += f" dry_run=measure{on} measures each kind for some seconds."
    say(console, line)
    if (limit := request.config.experiment.budget.device_hours) is not None and told.is_whole:
        jobs = [request.plan.jobs[job_id] for job_id in told.timed]
        hours = sum(job.seconds * job.devices for job in jobs) / 3600
        say(
            console,
            f"Its jobs take about {hours:.3g} device hours without loading; experiment.budget has {limit:g}.",
        )
    if request.is_elsewhere:
        _tell_memory(request.config, request.devices[0].memory_total_bytes, number, console)


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
