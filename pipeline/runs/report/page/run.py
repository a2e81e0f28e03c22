"""A run as its page shows it: what it left, read once and put into the forms of `model`."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from pipeline import __version__
from pipeline.foreign import ForeignDataError, read_plain
from pipeline.learning.algos.base import REFERENCE
from pipeline.outputs.formats import FIELDS, Sample, TrainingStep, by_training
from pipeline.plan.graph import Job
from pipeline.runs.cost import Compute, total
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.looks import drawn_methods, in_order_of_work, reading_order
from pipeline.runs.notes import failed_rewards
from pipeline.runs.origin import slurm_in_words
from pipeline.runs.record import Results
from pipeline.runs.report.format import beginning, count, decimal, duration
from pipeline.runs.report.moved import origins, place_in_words, read_and_moved, read_in_words, shared_in_words
from pipeline.runs.report.page import results as shown_results
from pipeline.runs.report.page.model import (
    Failure,
    Failures,
    Histogram,
    Page,
    PageTable,
    Rewards,
    RunPage,
    Samples,
    Timeline,
    TrainingCurve,
)
from pipeline.runs.report.page.results import chain_of
from pipeline.runs.report.page.samples import Shown, samples_of
from pipeline.runs.report.page.timeline import Stretch, timeline_of
from pipeline.runs.report.tables import first_few
from pipeline.runs.run_view import AttemptView, JobView, RunView, Span

# -- failures ----------------------------------------------------------------------------------------------------
# What went wrong in a run: attempts that failed, devices that are used no more, jobs that are blocked. Pure.


MOST = 500
LONGEST = 20_000
"""Characters of a reason or a traceback."""


Attempts = Iterable[tuple[JobView, AttemptView]]


def failures_of(view: RunView, lost: Attempts = (), rewards: Iterable[str] = ()) -> Failures:
    """What went wrong, so far as the journal tells.

    Args:
        view: The run.
        lost: Attempts that were under way when it was killed.
        rewards: What is said of completions at which rewards failed.
    """
    failed = sorted([*_failed(view), *lost], key=lambda pair: pair[1].ended or 0.0)
    return Failures(
        rows=[_failure(job, attempt) for job, attempt in failed[:MOST]],
        left_out=max(0, len(failed) - MOST),
        notes=[*_notes(view), *rewards],
    )


def _failed(view: RunView) -> Iterator[tuple[JobView, AttemptView]]:
    for job in view.jobs.values():
        attempts = [attempt for attempt in job.attempts if attempt.outcome == "failed"]
        if job.status == "failed" and not attempts:
            # It failed before a worker had it.
            attempts = [AttemptView(number=0, outcome="failed", kind=job.kind, reason=job.reason)]
        yield from ((job, attempt) for attempt in attempts)


def _failure(job: JobView, attempt: AttemptView) -> Failure:
    return Failure(
        job=job.id,
        attempt=attempt.number,
        device=attempt.device,
        kind=attempt.kind,
        reason=beginning(attempt.reason or job.reason, LONGEST),
        outcome=_outcome(job, attempt),
        traceback=beginning(attempt.traceback, LONGEST),
        log=attempt.log,
    )


def _outcome(job: JobView, attempt: AttemptView) -> str:
    if attempt.outcome == "lost":
        return "lost with the run"
    if not attempt.retry:
        return "given up"
    done = job.status == "done" and job.attempts[-1] is not attempt
    return f"tried again, done by attempt {job.attempts[-1].number}" if done else "tried again"


def _notes(view: RunView) -> Iterator[str]:
    for place in view.quarantined:
        jobs = f" Jobs that failed there: {', '.join(first_few(list(place.jobs), 'jobs'))}." if place.jobs else ""
        device, reason = place.device or f"worker {place.worker}", beginning(place.reason, LONGEST)
        yield f"{device} is used no more: {reason}.{jobs}"
    for cause, blocked in view.blocked_by().items():
        yield f"{count(len(blocked), 'job')} cannot run because {cause or 'another one'} failed."


# -- rewards -----------------------------------------------------------------------------------------------------
# Histograms of rewards: how the completions of each method were scored after each round. Pure.


BINS = 24
FEW = 12
"""Different rewards up to which each has a bar of its own."""

Group = tuple[str, str, int]
"""Place, method and round."""


def rewards_of(scores: Mapping[Group, Sequence[float | None]], there: int | None) -> Rewards:
    """Histograms whose bins are the same for all methods and rounds of a place.

    Args:
        scores: Rewards of completions, None where one has none.
        there: Completions that were evaluated, which may be more; None where that is not known.
    """
    counted = {group: Counter(score for score in own if score is not None) for group, own in scores.items()}
    values: dict[str, set[float]] = {}
    for (place, _, _), own in counted.items():
        values.setdefault(place, set()).update(own)
    values = {place: own for place, own in values.items() if own}
    exact = [place for place, own in values.items() if len(own) <= FEW]
    edges = {place: sorted(own) if place in exact else _edges(own) for place, own in values.items()}
    return Rewards(
        edges=edges,
        exact=exact,
        histograms=[
            Histogram(
                place=place,
                algo=algo,
                round=number,
                counts=_counts(own, edges[place], place in exact),
                mean=sum(score * times for score, times in own.items()) / own.total(),
            )
            for (place, algo, number), own in sorted(counted.items(), key=_in_order)
            if own
        ],
        about=_said(sum(map(len, scores.values())), there, sum(own.count(None) for own in scores.values())),
    )


def _said(read: int, there: int | None, unscored: int) -> str:
    if there is not None and read >= there:
        said = "Of all completions that were evaluated."
    else:
        number = f"{read:,}" if there is None else f"{read:,} of the {there:,}"
        of = "of the " if there is None else ""
        said = f"Of {number} {of}completions that were evaluated, those to the first prompts of each shard."
    return f"{said} {unscored:,} of them have no reward: it failed, or does not apply." if unscored else said


def _edges(values: set[float]) -> list[float]:
    low, high = min(values), max(values)
    # Halves first: the difference of two very large numbers is no number.
    return [low + (high / BINS - low / BINS) * at for at in range(BINS)] + [high]


def _in_order(item: tuple[Group, object]) -> tuple[object, ...]:
    place, algo, number = item[0]
    return place, reading_order(algo), number


def _counts(own: Counter[float], edges: list[float], exact: bool) -> list[int]:
    if exact:
        return [own[value] for value in edges]
    counts = [0] * (len(edges) - 1)
    for score, times in own.items():
        counts[min(max(bisect_right(edges, score) - 1, 0), len(counts) - 1)] += times
    return counts


# -- training ----------------------------------------------------------------------------------------------------
# Curves of trainings, thinned until they can be drawn. Pure.


MOST_POINTS = 60_000
"""Points of all curves together."""
FEWEST = 20
"""Points that a curve keeps, however many curves there are."""
_T = TypeVar("_T")


def points_each(curves: int, most: int = MOST_POINTS) -> int:
    """How many points each of so many curves may have."""
    return max(FEWEST, most // max(1, curves))


def thinned(steps: Sequence[_T], most: int) -> list[_T]:
    """Some of the steps, evenly spread, the first and the last among them."""
    if len(steps) <= most:
        return list(steps)
    last = len(steps) - 1
    return [steps[round(at * last / (most - 1))] for at in range(most)]


MOST_READ = 20_000
"""Completions that are read, which takes half a second."""
FEWEST_READ = 20
"""Completions that are read of each job, however many jobs there are."""
EVALUATE = "evaluate"
_MOST_NAMED = 6
_LONGEST_REASON = 300


def page_of(runs: Sequence[LoadedRun], names: Sequence[str], comparison: Sequence[PageTable] = ()) -> Page:
    """A page of one run or several.

    Args:
        runs: In the order in which they are shown.
        names: What each is called, see `run_names`.
        comparison: Tables that set them side by side, for the top of the page.

    Raises:
        PipelineError: Something that a run left cannot be read.
    """
    return Page(
        title=_title(runs, names),
        made=f"{datetime.now():%Y-%m-%d %H:%M}",
        version=__version__,
        runs=[run_page(run, name) for run, name in zip(runs, names, strict=True)],
        comparison=list(comparison),
        stages=in_order_of_work(job.stage for run in runs for job in run.jobs.values()),
    )


def _title(runs: Sequence[LoadedRun], names: Sequence[str]) -> str:
    """Its name, of several those of their experiments alone: what tells runs apart stands in the table below."""
    if len(runs) == 1:
        return f"{names[0]} ({runs[0].stamp})"
    times = Counter(run.name for run in runs)
    found = [name if number == 1 else f"{name}: {count(number, 'run')}" for name, number in times.items()]
    return ", ".join(first_few(found, "experiments"))


def run_page(run: LoadedRun, name: str) -> RunPage:
    """What a page shows of a run.

    Args:
        run: The run.
        name: What it is called.

    Raises:
        PipelineError: Something that it left cannot be read.
    """
    results, compute = run.results, run.compute
    samples, rewards = _completions(run, compute)
    training, about_training = _training(run)
    return RunPage(
        name=name,
        stamp=run.stamp,
        state=run.state,
        unfinished=_unfinished(run),
        best=list(_best(results)),
        facts=_facts(run),
        places=list(dict.fromkeys(shown_results.place_of(row) for row in results.pooled)),
        algos=drawn_methods(results),
        metrics=shown_results.metrics_of(results),
        tables=shown_results.tables_of(results, compute),
        series=shown_results.series_of(results),
        anchors=shown_results.anchors_of(results),
        fronts=shown_results.fronts_of(results),
        spent=shown_results.spent_of(compute),
        stages=shown_results.stages_of(compute),
        training=training,
        training_about=about_training,
        timeline=_timeline(run),
        rewards=rewards,
        samples=samples,
        failures=failures_of(
            run.view, run.lost_attempts, failed_rewards(run.store, run.jobs.values(), run.folder)
        ),
        config=_config(run),
        given=run.origin.settings,
        command=run.origin.command_line,
        environment=_environment(run),
        versions=_versions(run),
    )


# -- at the top ------------------------------------------------------------------------------------------------


def _facts(run: LoadedRun) -> list[tuple[str, str]]:
    view, jobs = run.view, run.view.counts()
    facts = []
    if view.started is not None:
        facts.append(("began", f"{datetime.fromtimestamp(view.started):%Y-%m-%d %H:%M}"))
        facts.append(("took", duration(_seconds(run))))
    here = [f"{jobs.done:,} done", *origins(view)]
    facts.append(("jobs", ", ".join(here) + (f", {jobs.given_up:,} not done" if jobs.given_up else "")))
    devices = {worker.device or f"worker {worker.index}" for worker in view.workers.values()}
    if devices:
        facts.append(("devices", next(iter(devices)) if len(devices) == 1 else f"{len(devices)}"))
    moved = {
        "where": place_in_words(run),
        "moved": read_in_words(*read_and_moved(view)),
        "shared store": shared_in_words(view.shared),
    }
    return facts + [(name, text) for name, text in moved.items() if text]


def _best(results: Results) -> Iterator[tuple[str, str]]:
    """Of every dataset and model the methods with the highest number, as it is shown, after their last round."""
    metrics = shown_results.metrics_of(results)
    series = [
        one
        for one in shown_results.series_of(results)
        if not one.chain and metrics[:1] == [_named(one.metric, metrics)]
    ]
    for place in list(dict.fromkeys(one.place for one in series))[:_MOST_NAMED]:
        last = {one.algo: one.values[-1] for one in series if one.place == place and one.values[-1] is not None}
        methods = {algo: value for algo, value in last.items() if algo != REFERENCE and value is not None}
        if methods:
            value = max(methods.values())
            first = [algo for algo, reached in methods.items() if decimal(reached) == decimal(value)]
            before = last.get(REFERENCE)
            than = "" if before is None else f" (reference {decimal(before)})"
            yield (
                f"highest {metrics[0][1]}, {place}",
                f"{', '.join(first_few(first, 'methods'))} {decimal(value)}{than}",
            )


def _named(metric: str, metrics: Sequence[tuple[str, str]]) -> tuple[str, str]:
    return next((one for one in metrics if one[0] == metric), (metric, metric))


def _unfinished(run: LoadedRun) -> list[str]:
    """What a reader of a run must know that is not over, or lacks something."""
    state, view, jobs = run.state, run.view, run.view.counts()
    if state == "done":
        return []
    lines = [f"{_STATES.get(state, f'This run is {state}')}: {jobs.there:,} of {count(jobs.total, 'job')} done."]
    if view.halted:
        lines.append(f"It was ended early: {view.halted}.")
    if state == "failed":
        lines += _why_failed(run)
    later = _made_later(run)
    if later:
        lines.append(f"{count(later.total(), 'more job')} done since, in later runs. {_LATER[_is_written(run)]}")
    missing: dict[str, list[int]] = {}
    for (chain, number), cell in view.cells.items():
        there = cell.there + (0 if _is_written(run) else later[chain, number])
        if there < cell.total and chain:
            missing.setdefault(chain, []).append(number)
    named = [f"{chain} (round {', '.join(map(str, sorted(numbers)))})" for chain, numbers in missing.items()]
    if named:
        lines.append(
            f"Not there, or not in full: {', '.join(first_few(named, 'chains'))}. What is shown is what is there."
        )
    return lines


def _why_failed(run: LoadedRun) -> list[str]:
    """The first job that was given up, with its reason; all are in the part on failures."""
    failed = [job for job in run.view.jobs.values() if job.status == "failed"]
    if not failed:
        return []
    reason = next((line for line in failed[0].reason.splitlines() if line.strip()), "") or failed[0].kind
    more = f" (and {count(len(failed) - 1, 'more job')}: see Failures)" if failed[1:] else ""
    return [f"{failed[0].id} failed: {beginning(reason, _LONGEST_REASON)}{more}"]


def _made_later(run: LoadedRun) -> Counter[tuple[str, int]]:
    """Chain and round -> jobs that a run which is over has not done, and of which there is an output by now."""
    if run.state == "running":
        return Counter()
    views = run.view.jobs
    left = [job for job in run.jobs.values() if job.id in views and views[job.id].status not in ("done", "stored")]
    return Counter((job.chain, job.round) for job in left if run.store.is_committed(job.key))


def _is_written(run: LoadedRun) -> bool:
    """Whether its results are those that it wrote itself, rather than those of what is stored."""
    return run.folder.results_json.exists()


_LATER = {
    False: "What is shown includes what those made.",
    True: "The tables are of this run alone; curves and samples include what later runs made.",
}
_STATES = {
    "running": "The run was going on when this page was written",
    "failed": "Some jobs of this run failed",
    "interrupted": "This run was interrupted; the same command goes on from here",
    "halted": "This run came to an early end; the same command goes on from here",
    "killed": "This run was killed; the same command goes on from here",
}


def _seconds(run: LoadedRun) -> float:
    return run.view.elapsed_s(time.time(), run.state == "running")


# -- completions -----------------------------------------------------------------------------------------------


def _completions(run: LoadedRun, compute: Compute) -> tuple[Samples, Rewards]:
    """The completions that are shown, and the rewards of all that are read, in one go."""
    scores: dict[Group, list[float | None]] = {}
    evaluating = [job for job in run.jobs.values() if job.stage == EVALUATE]
    answers = total(row.answers for row in compute.rows if row.stage == EVALUATE)
    # Outputs of earlier versions did not count them.
    evaluated = run.count_samples(evaluating) if answers is None else int(answers)
    most_each = max(FEWEST_READ, MOST_READ // max(1, len(evaluating)))

    def taken(found: Iterable[tuple[Job, Sample]]) -> Iterator[Shown]:
        for job, sample in found:
            place = f"{job.dataset} · {job.model}"
            scores.setdefault((place, job.algo, job.round), []).append(sample.reward)
            yield Shown(
                place=place,
                row=str(sample.row),
                prompt=sample.prompt,
                solution=sample.solution,
                algo=job.algo,
                chain=chain_of(job.reference, job.seed),
                round=job.round,
                text=sample.completion,
                reward=sample.reward,
                correct=sample.correct,
            )

    samples = samples_of(taken(run.samples(lambda job: job.stage == EVALUATE, most_each)), evaluated)
    return samples, rewards_of(scores, evaluated)


# -- trainings and devices -------------------------------------------------------------------------------------


def _training(run: LoadedRun) -> tuple[list[TrainingCurve], str]:
    found = [(job, name, own) for job, steps in run.curves() for name, own in by_training(steps).items()]
    most = points_each(len(found))
    curves = [_curve(job, name, own, most) for job, name, own in found]
    shown, recorded = sum(len(one.steps) for one in curves), sum(one.recorded for one in curves)
    about = f"{shown:,} of {recorded:,} steps that were recorded, evenly spread." if shown < recorded else ""
    return curves, about


def _curve(job: Job, training: str, steps: list[TrainingStep], most: int) -> TrainingCurve:
    own = thinned(steps, most)
    extra = dict.fromkeys(name for step in own for name in step.extra)
    numbers = [name for name in FIELDS if name not in ("training", "step", "steps", "tokens")]
    values = {name: [getattr(step, name) for step in own] for name in numbers}
    return TrainingCurve(
        job=job.id,
        place=f"{job.dataset} · {job.model}",
        algo=job.algo,
        chain=chain_of(job.reference, job.seed),
        round=job.round,
        training=training,
        steps=[step.step for step in own],
        tokens=[step.tokens for step in own],
        values={**values, **{name: [step.extra.get(name) for step in own] for name in extra}},
        recorded=len(steps),
    )


def _timeline(run: LoadedRun) -> Timeline | None:
    spans, began = run.timeline(), run.view.started
    if not spans or began is None:
        return None
    workers = {worker.index: worker.device for worker in run.view.workers.values()}
    sharing = Counter(workers.values())

    def lane(worker: int, device: str) -> str:
        return f"{device} · worker {worker}" if device and sharing[device] > 1 else device or f"worker {worker}"

    lanes = {index: lane(index, device) for index, device in sorted(workers.items())}
    seconds = _seconds(run)
    stretches = [
        _stretch(span, lanes.get(span.worker, lane(span.worker, span.device)), began, seconds) for span in spans
    ]
    return timeline_of(stretches, list(lanes.values()), seconds)


def _stretch(span: Span, lane: str, began: float, seconds: float) -> Stretch:
    start = max(0.0, span.start - began)
    end = max(start, seconds if span.end is None else span.end - began)
    return Stretch(lane=lane, start=start, end=end, stage=span.stage, outcome=span.outcome, first=span.job)


# -- what it was made of ---------------------------------------------------------------------------------------


def _config(run: LoadedRun) -> str:
    try:
        return read_plain(run.folder.config, follow=True).decode(errors="replace")
    except (OSError, ForeignDataError):
        return ""


def _environment(run: LoadedRun) -> list[tuple[str, str]]:
    origin = run.origin
    found = [("folder", origin.folder), ("devices", ", ".join(origin.devices)), *origin.machine.items()]
    found.append(("Slurm", slurm_in_words(origin.slurm).removeprefix("Slurm ")))
    return [(name, value) for name, value in found if value] + list(origin.versions.items())


def _versions(run: LoadedRun) -> PageTable | None:
    makers = run.makers()
    if not makers:
        return None
    return PageTable(
        headings=["arithmetic", "pipeline", "torch", "transformers", "outputs"],
        right=[False, False, False, False, True],
        rows=[[one.arithmetic, one.pipeline, one.torch, one.transformers, f"{one.outputs:,}"] for one in makers],
    )
