"""Read a run once, and put it into the JSON from which the scripts of its page draw.

Texts are whole, and not escaped yet. Where there may be many of something it stands in columns, lists of equal
length, which take a third of the room.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain, zip_longest
from typing import Any, TypeVar

from pipeline import __version__
from pipeline.config.tables import is_mean
from pipeline.foreign import ForeignDataError, read_plain
from pipeline.learning.algos.base import REFERENCE
from pipeline.outputs.formats import FIELDS, Sample, by_training
from pipeline.plan.graph import Job
from pipeline.runs import race
from pipeline.runs.cost import Compute, ComputeRow, CostRow, total
from pipeline.runs.loaded import LoadedRun, rounds_of
from pipeline.runs.origin import added_later, failed_rewards, slurm_in_words, stopped_chains
from pipeline.runs.record import (
    FrontRow,
    PooledRow,
    ResultRow,
    Results,
    by_method,
    cells_of,
    grouped,
    primary_metric,
)
from pipeline.runs.report import format as words
from pipeline.runs.report.html import page_table, points_each, thinned
from pipeline.runs.report.status import origins, place_in_words
from pipeline.runs.report.tables import (
    ANCHORS,
    HEADINGS,
    budget_tables,
    first_few,
    front_tables,
    result_tables,
    tables_of_sets,
)
from pipeline.runs.run_view import RACE, AttemptView, JobView, RunView, Span

MOST_FAILURES = 500
LONGEST_REASON = 20_000
"""Characters of a reason or a traceback."""
MOST_BARS = 1500
"""Jobs that a browser draws in half a second."""
MOST_TEXT, LONGEST_TEXT = 6_000_000, 4000
"""Characters of all completions together, and of one or a prompt."""
MOST_EACH = 4
"""Completions of one policy to a prompt."""
_OVERHEAD = 40
"""Characters that a completion takes besides its text."""
MOST_READ, FEWEST_READ = 20_000, 20
"""Most completions to read, which takes half a second, and fewest of each job."""

Object = dict[str, Any]
_Row = TypeVar("_Row", PooledRow, ResultRow, ComputeRow, CostRow)


def page_of(runs: Sequence[LoadedRun], names: Sequence[str], comparison: Sequence[Object] = ()) -> Object:
    """Return the data of a page with one or several runs.

    Args:
        runs: Runs in the order of display.
        names: Name of each run, see `run_names`.
        comparison: Tables that set them side by side, for the top of the page.

    Raises:
        PipelineError: Something that a run left cannot be read.
    """
    times = Counter(run.name for run in runs)
    experiments = [
        name if number == 1 else f"{name}: {words.count(number, 'run')}" for name, number in times.items()
    ]
    several = first_few(experiments, "experiments")
    return {
        "title": several if len(runs) > 1 else f"{names[0]} ({runs[0].stamp})",
        "made": f"{datetime.now():%Y-%m-%d %H:%M}",
        "version": __version__,
        "runs": [run_page(run, name) for run, name in zip(runs, names, strict=True)],
        "comparison": comparison,
        "stages": words.in_order_of_work(job.stage for run in runs for job in run.jobs.values()),
        "looks": words.LOOKS,
    }


def run_page(run: LoadedRun, name: str) -> Object:
    """Return the data of a run on a page, where it has this name.

    Raises:
        PipelineError: Something that it left cannot be read.
    """
    results, compute, origin = run.results, run.compute, run.origin
    curves, about_curves = _training(run)
    faults = failed_rewards(run.store, run.jobs.values(), run.folder)
    try:
        config = read_plain(run.folder.config, follow=True).decode(errors="replace")
    except (OSError, ForeignDataError):
        config = ""
    return {
        "name": name,
        "stamp": run.stamp,
        "state": run.state,
        "unfinished": list(_unfinished(run)),
        "facts": _facts(run),
        "places": list(dict.fromkeys(map(place_of, results.pooled))),
        "algos": words.drawn_methods(results),
        "checkpoints": list(run.setting("evaluation.also") or {}),
        "metrics": metrics_of(results),
        "tables": tables_of(results, compute),
        "series": series_of(results),
        "anchors": _anchors(results),
        "fronts": [{"place": place_of(row), **vars(row)} for row in results.fronts],
        "spent": [{"place": place_of(row), **vars(row)} for row in _ordered(compute.costs)],
        "race": _race(run),
        "stages": _stages(compute),
        "training": curves,
        "training_about": about_curves,
        "timeline": _timeline(run),
        "samples": _samples(run, compute),
        "failures": failures_of(run.view, run.lost_attempts, faults),
        "config": config,
        "given": origin.settings,
        "command": origin.command_line,
        "environment": _environment(run),
    }


def place_of(row: ResultRow | PooledRow | FrontRow | ComputeRow | CostRow | Job) -> str:
    """Return dataset and model in words."""
    return f"{row.dataset} · {row.model}"


def _chain(item: Job | ResultRow) -> str:
    """Return the reference and seed of a chain in words: ``seed 0``, ``reference 1, seed 0``."""
    own = "all seeds" if item.seed is None else f"seed {item.seed}"
    return own if item.reference is None else f"reference {item.reference}, {own}"


# -- at the top ------------------------------------------------------------------------------------------------


def _facts(run: LoadedRun) -> list[tuple[str, str]]:
    view, jobs = run.view, run.view.counts()
    here = [f"{jobs.done:,} done", *origins(view), *([f"{jobs.given_up:,} not done"] if jobs.given_up else [])]
    devices = {worker.device or f"worker {worker.index}" for worker in view.started_workers}
    began = view.started
    facts = {
        "began": "" if began is None else f"{datetime.fromtimestamp(began):%Y-%m-%d %H:%M}",
        "took": "" if began is None else words.duration(_seconds(run)),
        "jobs": ", ".join(here),
        "devices": next(iter(devices)) if len(devices) == 1 else f"{len(devices)}" if devices else "",
        "where": place_in_words(run),
    }
    return [(name, text) for name, text in facts.items() if text]


def _unfinished(run: LoadedRun) -> Iterator[str]:
    """Yield notes on a run that was changed, is not over or lacks something that no later run made either."""
    last_rounds = run.setting("experiment.last_rounds") or {}
    yield from stopped_chains(last_rounds, run.setting("rounds_of_training") or 0)
    yield from added_later(run.origin, run.view.answers)
    yield from (str(answer) for answer in run.view.answers if answer.by != RACE)
    state, views = run.state, run.view.jobs
    if state == "done":
        return
    done = {job.id for job in views.values() if job.status in ("done", "stored")}
    remaining = [job for job in run.jobs.values() if job.id not in done and not run.store.is_committed(job.key)]
    every = run.view.counts().total
    there = f"{every - len(remaining):,} of {words.count(every, 'job')} done"
    yield f"When this page was written the run was {state}: {there}. The same command goes on from here."
    if run.view.halted:
        yield f"It was ended early: {run.view.halted}."
    failed = run.view.having("failed")
    for job in failed[:1]:
        reason = next((line for line in job.reason.splitlines() if line.strip()), "") or job.kind
        more = f" (and {words.count(len(failed) - 1, 'more job')}: see Failures)" if failed[1:] else ""
        yield f"{job.id} failed: {words.beginning(reason, 300)}{more}"
    if remaining:
        named = [f"{chain} (round {', '.join(map(str, own))})" for chain, own in rounds_of(remaining).items()]
        yield f"Not in full: {first_few(named, 'chains')}. What is shown is what is there."


def _seconds(run: LoadedRun) -> float:
    return run.view.elapsed_s(time.time(), run.state == "running")


# -- results ---------------------------------------------------------------------------------------------------


def tables_of(results: Results, compute: Compute) -> list[Object]:
    """Return the tables of the terminal with all columns; rows with a significant difference are marked."""
    places = dict.fromkeys((row.dataset, row.model) for row in results.pooled if not is_mean(row.dataset))
    tables = []
    for table, place in zip(result_tables(results, compute.costs), places, strict=True):
        signs = {
            (row.first, str(row.round)): "better" if row.difference > 0 else "worse"
            for row in results.comparisons
            if (row.dataset, row.model) == place and row.second == REFERENCE and row.p < 1 - results.confidence
        }
        marks = {at: signs[row[0], row[1]] for at, row in enumerate(table.texts) if (row[0], row[1]) in signs}
        tables.append(page_table(table, marks))
    return [
        *tables,
        *map(
            page_table,
            [*tables_of_sets(results), *front_tables(results), *budget_tables(compute.budgets, results)],
        ),
    ]


def metrics_of(results: Results) -> list[tuple[str, str]]:
    """Return metrics with headings: first the primary metric, then those of the table."""
    cells = [cell for methods in by_method(results.pooled).values() for cell in cells_of(methods)]
    plain = dict.fromkeys(name for cell in cells for name in cell if "/" not in name)
    first = primary_metric(cells)
    headed = sorted((name for name in HEADINGS if name in plain), key=lambda name: name != first)
    return [(name, HEADINGS.get(name, name)) for name in dict.fromkeys([*headed, *plain])]


def series_of(results: Results) -> list[Object]:
    """Return every metric of every method by round; for several chains also those of the table."""
    curves: dict[tuple[str, str, str, str], list[PooledRow | ResultRow]] = {}
    pooled = [row for row in _ordered(results.pooled) if "/" not in row.metric]
    several = {(row.dataset, row.model, row.algo) for row in pooled if row.references * row.seeds > 1}
    for row in pooled:
        curves.setdefault((place_of(row), row.algo, "", row.metric), []).append(row)
    for own in _ordered(results.rows):
        if own.metric in HEADINGS and (own.dataset, own.model, own.algo) in several:
            curves.setdefault((place_of(own), own.algo, _chain(own), own.metric), []).append(own)
    numbers = {"rounds": "round", "values": "value", "lows": "ci_low", "highs": "ci_high"}
    series = []
    for (place, algo, chain_name, metric), rows in curves.items():
        rows.sort(key=lambda row: row.round)
        columns = {name: [getattr(row, field) for row in rows] for name, field in numbers.items()}
        series.append({"place": place, "algo": algo, "chain": chain_name, "metric": metric, **columns})
    return series


def _ordered(rows: Iterable[_Row]) -> list[_Row]:
    """Sort rows by dataset, model and method, in reading order."""
    return sorted(rows, key=lambda row: (row.dataset, row.model, words.reading_order(row.algo)))


def _anchors(results: Results) -> dict[str, dict[str, dict[str, float]]]:
    """Return place -> ``greedy`` and ``optimum``, if known -> their metrics."""
    by_place: dict[str, dict[str, dict[str, float]]] = {}
    for row in results.pooled:
        anchor, _, metric = row.metric.partition("/")
        if row.algo == REFERENCE and anchor in ANCHORS and row.value is not None:
            by_place.setdefault(place_of(row), {}).setdefault(anchor, {})[metric] = row.value
    return by_place


def _race(run: LoadedRun) -> Object | None:
    """Return the pairs of a race with their looks in columns, and what came of it in words."""
    if (standing := race.read_standing(run.folder)) is None:
        return None
    pairs = [
        {name: getattr(pair, name) for name in ("place", "round", "first", "second", "better")}
        | {name: [getattr(look, name) for look in pair.looks] for name in ("prompts", "difference", "low", "high")}
        for pair in standing.pairs
    ]
    return {"said": [race.headline(standing), *race.outcome(standing)], "pairs": pairs}


def _stages(compute: Compute) -> list[Object]:
    """Return the cost of each stage and method, over all rounds, references and seeds; None if unknown."""
    stages = grouped(((place_of(row), row.algo, row.stage), row) for row in _ordered(compute.rows))
    amounts = ("device_s", "load_s", "flops", "tokens")
    return [
        {"place": place, "algo": algo, "stage": stage}
        | {name: total(getattr(row, name) for row in rows) for name in amounts}
        for (place, algo, stage), rows in stages.items()
    ]


# -- completions -----------------------------------------------------------------------------------------------


def _samples(run: LoadedRun, compute: Compute) -> Object:
    evaluating = [job for job in run.jobs.values() if job.stage == race.EVALUATE]
    evaluated = sum(row.answers or 0 for row in compute.rows if row.stage == race.EVALUATE)
    most_each = max(FEWEST_READ, MOST_READ // max(1, len(evaluating)))
    return samples_of(run.samples(lambda job: job.stage == race.EVALUATE, most_each), evaluated)


def samples_of(samples: Iterable[tuple[Job, Sample]], there: int, most: int = MOST_TEXT) -> Object:
    """Choose completions to be read: to as many prompts as there is room for, those of all policies.

    Args:
        samples: Samples in order; gone through once and not kept.
        there: Completions that were evaluated, which may be more, as far as that is known.
        most: Characters that they may have.
    """
    by_place: dict[str, dict[tuple[int, str], Object]] = {}
    read = 0
    for job, sample in samples:
        read += 1
        text, row, place = words.beginning(sample.prompt, LONGEST_TEXT), str(sample.row), place_of(job)
        new: Object = {"place": place, "row": row, "text": text, "solution": None, "policies": {}}
        prompt = by_place.setdefault(place, {}).setdefault((sample.row, sample.prompt), new)
        if sample.solution is not None and prompt["solution"] is None:
            prompt["solution"] = words.beginning(sample.solution, LONGEST_TEXT)
        own = prompt["policies"].setdefault((job.algo, _chain(job), job.round), [])
        if len(own) < MOST_EACH:
            own.append([words.beginning(sample.completion, LONGEST_TEXT), sample.reward, sample.correct])
    prompts: list[Object] = []
    shown = 0
    for prompt in filter(None, chain(*zip_longest(*(own.values() for own in by_place.values())))):  # in turns
        answers = [answer for own in prompt["policies"].values() for answer in own]
        most -= sum(len(answer[0]) + _OVERHEAD for answer in answers)
        if most < 0 and prompts:
            break
        shown += len(answers)
        policies = [
            {"algo": algo, "chain": of, "round": number, "answers": own}
            for (algo, of, number), own in prompt["policies"].items()
        ]
        prompts.append({**prompt, "policies": policies})
    there = max(there, read)
    summary = f"{shown:,} of the {there:,} completions that were evaluated, to {len(prompts):,} prompts"
    summary += "" if shown >= there else "; all are in jobs/.../evaluate/.../output/samples.jsonl"
    return {"prompts": prompts, "about": f"{summary}. Texts end after {LONGEST_TEXT:,} characters."}


# -- trainings and devices -------------------------------------------------------------------------------------


def _training(run: LoadedRun) -> tuple[list[Object], str]:
    curves = [(job, name, own) for job, steps in run.curves() for name, own in by_training(steps).items()]
    most = points_each(len(curves))
    drawn: list[Object] = []
    for job, training, every in curves:
        own = thinned(every, most)
        numbers = [name for name in FIELDS if name not in ("training", "step", "steps", "tokens")]
        extra = dict.fromkeys(name for step in own for name in step.extra)
        values = {name: [getattr(step, name) for step in own] for name in numbers}
        values |= {name: [step.extra.get(name) for step in own] for name in extra}
        where = {"place": place_of(job), "algo": job.algo, "chain": _chain(job), "round": job.round}
        steps, tokens = [step.step for step in own], [step.tokens for step in own]
        drawn.append({**where, "training": training, "steps": steps, "tokens": tokens, "values": values})
    shown, recorded = sum(len(curve["steps"]) for curve in drawn), sum(len(own) for _, _, own in curves)
    summary = f"{shown:,} of {recorded:,} steps that were recorded, evenly spread." if shown < recorded else ""
    return drawn, summary


def _timeline(run: LoadedRun) -> Object | None:
    """Return the use of devices over time; None if nothing ran."""
    spans, began = run.timeline(), run.view.started
    if not spans or began is None:
        return None
    workers = {span.worker: span.device for span in spans}
    workers |= {worker.index: worker.device for worker in run.view.started_workers}
    sharing = Counter(workers.values())
    order = sorted(workers)
    lanes = [
        workers[at]
        if workers[at] and sharing[workers[at]] == 1
        else f"{workers[at]} · worker {at}".removeprefix(" · ")
        for at in order
    ]
    seconds = _seconds(run)
    drawn = bars(spans, began, began + seconds, MOST_BARS)
    attempts, names = Counter(span.worker for span in spans), ("stage", "outcome", "jobs", "start", "end", "busy")
    columns: Object = {name: [bar[name] for bar in drawn] for name in names}
    columns["lane"] = [order.index(bar["worker"]) for bar in drawn]
    columns["name"] = [bar["first"] if bar["jobs"] == 1 else f"{bar['first']} … {bar['last']}" for bar in drawn]
    return {
        "lanes": lanes,
        "jobs": [attempts[index] for index in order],
        "busy": [round(sum(bar["busy"] for bar in drawn if bar["worker"] == index), 3) for index in order],
        "seconds": round(seconds, 3),
        "attempts": len(spans),
        "bars": columns,
    }


def bars(spans: Sequence[Span], began: float, until: float, most: int) -> list[Object]:
    """Return the use of workers over time, in seconds from the start.

    If there are many attempts, similar ones that nearly touch are merged.

    Args:
        spans: Attempts of the whole run, by start.
        began: Start of the run in seconds since 1970.
        until: End of unfinished attempts, likewise.
        most: Approximate largest number of bars; every worker has at least one for each stage and outcome.

    Returns:
        ``worker``, ``stage``, ``outcome``, ``start``, ``end``, the number of merged ``jobs``, the sum of their
        durations (``busy``), and ids of the ``first`` and the ``last``.
    """
    kinds = {(span.worker, span.stage, span.outcome) for span in spans}
    width = (until - began) * len(kinds) / most if len(spans) > most else -1.0
    drawn, latest = list[Object](), dict[tuple[int, str, str], Object]()
    for span in spans:
        start = max(0.0, round(span.start - began, 3))
        end = max(start, round((until if span.end is None else span.end) - began, 3))
        kind = (span.worker, span.stage, span.outcome)
        if kind not in latest or start - latest[kind]["end"] > width or width < 0:
            where = {"worker": span.worker, "stage": span.stage, "outcome": span.outcome, "first": span.job}
            drawn.append({**where, "start": start, "end": end, "jobs": 0, "busy": 0.0})
            latest[kind] = drawn[-1]
        bar = latest[kind]
        busy = round(bar["busy"] + end - start, 3)
        bar |= {"end": max(bar["end"], end), "last": span.job, "jobs": bar["jobs"] + 1, "busy": busy}
    return sorted(drawn, key=lambda bar: bar["worker"])


# -- failures --------------------------------------------------------------------------------------------------


Attempts = Iterable[tuple[JobView, AttemptView]]


def failures_of(view: RunView, lost: Attempts = (), rewards: Iterable[str] = ()) -> Object:
    """Return what went wrong, according to the journal.

    Args:
        view: The run.
        lost: Attempts that were under way when it was killed.
        rewards: Notes on completions at which rewards failed.
    """
    failed = sorted([*_failed(view), *lost], key=lambda pair: pair[1].ended or 0.0)
    rows = [
        {name: getattr(attempt, name) for name in ("device", "kind", "log")}
        | {
            "job": job.id,
            "attempt": attempt.number,
            "reason": words.beginning(attempt.reason or job.reason, LONGEST_REASON),
            "outcome": _outcome(job, attempt),
            "traceback": words.beginning(attempt.traceback, LONGEST_REASON),
        }
        for job, attempt in failed[:MOST_FAILURES]
    ]
    notes = []
    for aside in view.quarantined:
        jobs = f" Jobs that failed there: {first_few(aside.jobs, 'jobs')}." if aside.jobs else ""
        device, reason = aside.device or f"worker {aside.worker}", words.beginning(aside.reason, LONGEST_REASON)
        notes.append(f"{device} is used no more: {reason}.{jobs}")
    for cause, blocked in view.blocked_by().items():
        notes.append(f"{words.count(len(blocked), 'job')} cannot run because {cause or 'another one'} failed.")
    return {"rows": rows, "left_out": len(failed) - len(rows), "notes": [*notes, *rewards]}


def _failed(view: RunView) -> Iterator[tuple[JobView, AttemptView]]:
    for job in view.jobs.values():
        attempts = [attempt for attempt in job.attempts if attempt.outcome == "failed"]
        if job.status == "failed" and not attempts:
            # It failed before a worker had it.
            attempts = [AttemptView(number=0, outcome="failed", kind=job.kind, reason=job.reason)]
        yield from ((job, attempt) for attempt in attempts)


def _outcome(job: JobView, attempt: AttemptView) -> str:
    if attempt.outcome == "lost":
        return "lost with the run"
    if not attempt.retry:
        return "given up"
    done = job.status == "done" and job.attempts[-1] is not attempt
    return f"tried again, done by attempt {job.attempts[-1].number}" if done else "tried again"


# -- what it was made of ---------------------------------------------------------------------------------------


def _environment(run: LoadedRun) -> list[tuple[str, str]]:
    origin = run.origin
    facts = [("folder", origin.folder), ("devices", ", ".join(origin.devices)), *origin.machine.items()]
    facts.append(("Slurm", slurm_in_words(origin.slurm).removeprefix("Slurm ")))
    return [(name, value) for name, value in facts if value] + list(origin.versions.items())
