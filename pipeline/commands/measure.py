"""Measure each kind of job of a plan for some seconds: run small versions of the request, and extend their times.

    the request with few prompts  -->  seconds at two sizes  -->  a line through both  -->  seconds as planned

The smaller version fills a batch once, since less work in the same batch takes as long. Everything runs in a
folder that is removed afterwards; only the times stay, with those of earlier runs.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from pipeline.commands import request as requests
from pipeline.commands.request import Request
from pipeline.config.schema import AlgoConfig, Config, DryRun, ModelConfig, continued_from
from pipeline.engine.run_jobs import run_jobs, update_durations
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.learning.models.kinds import TinyModelConfig
from pipeline.plan.graph import Durations, Plan, Timed, duration_name
from pipeline.runs.report.format import count
from pipeline.terminal.console import say

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
        planned[duration_name(job)] = max(job.size_s, planned.get(duration_name(job), 0.0))
    part, timed = 0.0, list[Durations]()
    for name, times in (("smaller", 1), ("larger", _LARGER)):
        small = small_version(request.config, part, times)
        outcome, plan = _run(request, small, planned, folder / name, signals)
        for job_id, reason in outcome.failures()[:1]:
            say(console, f"warning: {job_id} could not be measured: {reason}", "bold")
        if outcome.interrupted:
            return outcome.interrupted
        found = outcome.durations(plan, duration_name)
        timed.append(replace(found, jobs={kind: one for kind, one in found.jobs.items() if kind in planned}))
        whole_s = (
            one.took_s * planned[kind] / max(one.size_s, _SMALLEST_S) for kind, one in timed[0].jobs.items()
        )
        part = min(1.0, TARGET_S / max([*whole_s, _SMALLEST_S]))
    update_durations(request.store.root, Durations(extended(planned, *timed), timed[1].seconds), request.gpu)
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


def extended(planned: Mapping[str, float], smaller: Durations, larger: Durations) -> dict[str, Timed]:
    """Return each kind of job at its planned size, by the line through its seconds at two sizes.

    If the larger job did not take longer, only chance decided, and its time grows with its size.

    Args:
        planned: Kind -> its planned size in s.
        smaller: Times of small jobs.
        larger: Times of larger ones.
    """
    kinds = dict[str, Timed]()
    for kind, two in larger.jobs.items():
        one, size_s = smaller.jobs.get(kind, two), planned[kind]
        more_s, longer_s = two.size_s - one.size_s, two.took_s - one.took_s
        if more_s <= _SMALLEST_S or longer_s <= 0:
            more_s, longer_s = two.size_s, two.took_s
        pace = longer_s / max(more_s, _SMALLEST_S)
        took_s = two.took_s + pace * max(0.0, size_s - two.size_s)
        kinds[kind] = Timed(size_s, took_s, larger.expected_flops(kind, size_s))
    return kinds


def _run(
    request: Request, small: Config, planned: Mapping[str, float], folder: Path, signals: StopSignals
) -> tuple[Outcome, Plan]:
    """Run the jobs of a small version that are of planned kinds, and what they need."""
    folder.mkdir()
    made = requests.prepare(replace(small, output_dir=str(folder)))
    wanted = [job.id for job in made.plan.jobs.values() if duration_name(job) in planned]
    plan = made.plan.up_to(wanted)
    return run_jobs(plan, made.store, request.used_devices, folder, **made.how, signals=signals), plan
