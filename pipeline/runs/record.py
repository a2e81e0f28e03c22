"""Results of a run: one row per algorithm, dataset, model, reference, seed, round and metric.

Results do not depend on time or machine, so equal runs write equal bytes. The rows come from the stored outputs of
the metrics stages: ``metrics.json`` and ``samples.jsonl``, see `outputs`. An invalid output is reported, and only
its own rows are missing.
"""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from msgspec import Meta

from pipeline.config.tables import point_of
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store import Store
from pipeline.errors import StoreError
from pipeline.files import json_text, write_whole
from pipeline.foreign import ForeignDataError, read_json_file
from pipeline.outputs import formats
from pipeline.outputs.formats import Count, Number
from pipeline.plan.graph import Job

if TYPE_CHECKING:
    from pipeline.outputs.prompts import PromptMeasures

log = logging.getLogger("pipeline")

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_LIMIT = 4 << 30
_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, order=True)
class ResultRow:
    """One measured number with its interval.

    Attributes:
        algo: Algorithm, or ``reference``.
        dataset: Name of the dataset.
        model: Name of the model.
        reference: Seed of the reference of the chain; None if the model is not trained from one.
        seed: Seed of the chain.
        round: 0 for the reference.
        metric: For example ``pass@1``.
        value: The estimate.
        ci_low: Lower end of its interval, or None where there is none.
        ci_high: Upper end.
        n: Number of prompts.
    """

    algo: str
    dataset: str
    model: str
    reference: int | None = field(default=None, kw_only=True)
    seed: int
    round: int
    metric: str
    value: Number | None
    ci_low: Number | None
    ci_high: Number | None
    n: Count


Scope = Literal["policies", "seeds", "references"]
"""Scope of an interval besides other prompts: these policies only, policies of other seeds on the same
references, or also those on other references."""


@dataclass(frozen=True, kw_only=True)
class PooledRow:
    """One number of a method after a round, over all of its references and seeds.

    Attributes:
        algo: Algorithm, or ``reference``.
        dataset: Name of the dataset.
        model: Name of the model.
        round: 0 for the reference.
        metric: For example ``pass@1``.
        value: The mean over references and seeds.
        ci_low: Lower end of its interval, or None where there is none.
        ci_high: Upper end.
        difference: Difference to the reference, paired by reference, seed and prompt; None without a comparison.
        difference_low: Lower end of its interval.
        difference_high: Upper end.
        over: Scope of the interval of the mean.
        references: Number of references in the mean.
        seeds: Number of seeds of each reference.
        n: Number of prompts.
        difference_over: Scope of the interval of the difference; None without a difference.
        difference_references: Number of references for which both the method and the reference have chains.
        difference_seeds: Number of seeds for which both do.
        difference_n: Number of prompts with a value in both.
    """

    algo: str
    dataset: str
    model: str
    round: int
    metric: str
    value: Number | None
    ci_low: Number | None
    ci_high: Number | None
    difference: Number | None
    difference_low: Number | None
    difference_high: Number | None
    over: Scope
    references: Count
    seeds: Count
    n: Count
    difference_over: Scope | None = None
    difference_references: Count | None = None
    difference_seeds: Count | None = None
    difference_n: Count | None = None


ByMetric = Mapping[str, PooledRow]
"""Numbers of an algorithm after a round: metric -> row."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A method after the last round against the reference or another method, on shared chains and prompts.

    Attributes:
        dataset: Name of the dataset.
        model: Name of the model.
        round: The last one.
        metric: Metric by which they are judged.
        first: A method.
        second: Another, or ``reference``.
        difference: First minus second.
        ci_low: Lower end of its interval, which is not corrected for the number of comparisons.
        ci_high: Upper end.
        p: P-value of no difference, corrected by Holm's method for the number of comparisons: of methods with the
            reference, or of methods with each other.
        test: ``crossed`` for a test that covers other seeds; ``mcnemar`` or ``swaps`` for these policies only.
        detectable: Smallest difference that such a run detects four times out of five; None if nothing varies.
        over: Scope of the interval and the test.
        references: Number of references that all methods have.
        seeds: Number of seeds that all methods have.
        n: Number of prompts that both have.
    """

    dataset: str
    model: str
    round: int
    metric: str
    first: str
    second: str
    difference: Number
    ci_low: Number
    ci_high: Number
    p: Number
    test: Literal["crossed", "mcnemar", "swaps"]
    detectable: Number | None
    over: Scope
    references: Count
    seeds: Count
    n: Count


@dataclass(frozen=True, kw_only=True)
class FrontRow:
    """A point of a Pareto front after the last round: one setting of a method.

    Attributes:
        dataset: Name of the dataset.
        model: Name of the model.
        round: Number of the round; 0 for the reference.
        front: The method.
        point: Its setting, as ``beta=0.1``, or ``reference``.
        split: Split on which it was measured.
        metric: Metric by which methods are judged.
        kl: KL divergence from the reference in nats per sequence.
        kl_low: Lower end of its interval, or None where there is none.
        kl_high: Upper end.
        value: Value of the metric.
        ci_low: Lower end of its interval.
        ci_high: Upper end.
        is_best: Whether it is Pareto-optimal: no other point of the front has at least its value at no more
            divergence.
        over: Scope of the interval of the value.
        references: Number of references.
        seeds: Number of seeds.
        n: Number of prompts.
    """

    dataset: str
    model: str
    round: int
    front: str
    point: str
    split: str
    metric: str
    kl: Number
    kl_low: Number | None
    kl_high: Number | None
    value: Number
    ci_low: Number | None
    ci_high: Number | None
    is_best: bool
    over: Scope
    references: Count
    seeds: Count
    n: Count


@dataclass(frozen=True, kw_only=True)
class MatchedRow:
    """Reward of a front at some KL divergence, interpolated between the neighbouring Pareto points.

    Attributes:
        dataset: Name of the dataset.
        model: Name of the model.
        round: Number of the round.
        front: The method.
        split: Split on which its points were measured.
        metric: Metric by which methods are judged.
        kl: The divergence, in nats per sequence.
        value: Value of the metric; None if the front does not reach this divergence.
        ci_low: Lower end of its interval, interpolated likewise; None without an interval.
        ci_high: Upper end.
    """

    dataset: str
    model: str
    round: int
    front: str
    split: str
    metric: str
    kl: Number
    value: Number | None
    ci_low: Number | None
    ci_high: Number | None


@dataclass(frozen=True, kw_only=True)
class Results:
    """Content of ``results.json``.

    Attributes:
        rows: Rows of every chain.
        pooled: Rows of every method.
        comparisons: Comparisons of methods after the last round.
        confidence: Level of the intervals.
        common_eta: Weight of the KL divergence in J.
        split: Split on which methods were evaluated.
        fronts: Points of methods that were run at several values of their settings.
        matched: Rewards of fronts at common divergences.
        bounded: Algorithms whose KL divergence is an upper bound; for the others it is exact.
        starts: Algorithm -> the algorithm whose last policy it starts from; the others start from the reference.
        teachers: Algorithm -> the algorithm whose last value model it uses.
        grown_from: Prompts and completions of each that the evaluation had before it was extended.
    """

    rows: list[ResultRow]
    pooled: list[PooledRow] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    confidence: Annotated[float, Meta(gt=0, lt=1)] = 0.95
    common_eta: Annotated[float, Meta(gt=0, le=1e100)] | None = None
    split: str | None = None
    fronts: list[FrontRow] = field(default_factory=list)
    matched: list[MatchedRow] = field(default_factory=list)
    bounded: list[str] = field(default_factory=list)
    starts: dict[str, str] = field(default_factory=dict)
    teachers: dict[str, str] = field(default_factory=dict)
    grown_from: list[list[Count]] = field(default_factory=list)

    def bounded_among(self, algos: Iterable[str]) -> list[str]:
        """Return those algorithms, or algorithms of these points, whose KL divergence is an upper bound."""
        return sorted({point_of(algo)[0] for algo in algos} & set(self.bounded))


def grouped(pairs: Iterable[tuple[_K, _V]]) -> dict[_K, list[_V]]:
    """Return key -> its values, both in order of appearance."""
    groups: dict[_K, list[_V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


Place = tuple[str, str, int, str, int, int]


def place_of(item: ResultRow | Job) -> Place:
    """Return the sort key of rows and jobs: dataset, model, reference, algorithm, seed and round."""
    reference = -1 if item.reference is None else item.reference
    return item.dataset, item.model, reference, item.algo, item.seed or 0, item.round


def write_results(run: RunFolder, results: Results) -> None:
    """Write ``results.json``, and as tables ``results.csv`` (rows of chains) and ``pooled.csv`` (methods)."""
    write_whole(run.results_json, json_text(asdict(results), indent=1) + "\n")
    for path, kind, rows in (
        (run.results_csv, ResultRow, results.rows),
        (run.pooled_csv, PooledRow, results.pooled),
    ):
        names = [column.name for column in fields(kind)]
        write_whole(path, csv_text(names, ([getattr(row, name) for name in names] for row in rows)))


def csv_text(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table for other programs; for cells in spreadsheets, see `csv_cell`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(map(csv_cell, row) for row in rows)
    return text.getvalue()


def read_results(path: Path) -> Results:
    """Read a ``results.json``.

    Raises:
        StoreError: The file is missing, or has invalid content.
    """
    try:
        return read_json_file(path, Results, _LIMIT, follow=True)
    except (ForeignDataError, OSError) as error:
        problem = formats.problem_in_words(error)
        raise StoreError(f"cannot read {path}: {problem}. The command of its run writes it again.") from error


def csv_cell(value: object) -> object:
    """Return a cell that spreadsheets show as text: they would execute a text that begins like a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


# -- primary -----------------------------------------------------------------------------------------------------
# The primary metric by which results are judged, in tables, sweeps and comparisons.


PRIMARY_METRICS = ("pass@1", "reward")
"""Correctness if a reward verifies it, else the mean reward."""
KL = "kl_per_sequence"
"""Divergence from the reference, in nats."""
COMPARED = "/vs_"
"""Part of the name of a difference to another policy."""
MANY_CUT = 0.1
"""Share of cut-off completions from which it is reported, because it makes the primary metric doubtful."""


def primary_metric(results: Iterable[Collection[str]]) -> str | None:
    """Return the first primary metric that all results have; None if there is none.

    Args:
        results: For each result to compare, the metrics with a value.
    """
    shared = [set(names) for names in results]
    return next((name for name in PRIMARY_METRICS if shared and all(name in metrics for metrics in shared)), None)


Methods = Mapping[str, Mapping[int, ByMetric]]
"""Method -> round, in order -> its numbers with a value."""


def by_method(pooled: Iterable[PooledRow]) -> dict[tuple[str, str], Methods]:
    """Return dataset and model -> methods."""
    by_place: dict[tuple[str, str], dict[str, dict[int, dict[str, PooledRow]]]] = {}
    for row in sorted(pooled, key=lambda row: row.round):
        if row.value is not None:
            methods = by_place.setdefault((row.dataset, row.model), {})
            methods.setdefault(row.algo, {}).setdefault(row.round, {})[row.metric] = row
    return dict(by_place)


def cells_of(methods: Methods) -> list[ByMetric]:
    """Return the numbers of each method after each round."""
    return [cell for rounds in methods.values() for cell in rounds.values()]


# -- rows --------------------------------------------------------------------------------------------------------
# Read the outputs of the stage `metrics` from the store: rows, measures by prompt, samples. An invalid output is
# reported, and only its own rows are missing.


METRICS_STAGE = "metrics"
Told = Callable[[Job, str], None]
"""Function that takes a message on an unreadable stored output."""


def collect_rows(store: Store, jobs: Iterable[Job], tell: Told | None = None) -> list[ResultRow]:
    """Read the rows of every metrics job whose output is stored, sorted.

    Args:
        store: The store.
        jobs: Jobs of a plan; only metrics jobs have rows.
        tell: Called for an output whose rows cannot be read.
    """
    rows: list[ResultRow] = []
    for job, output in _metrics_outputs(store, jobs):
        where = (job.algo, job.dataset, job.model, job.seed or 0, job.round)
        with reading(job, formats.METRICS, tell):
            rows += [
                ResultRow(*where, row.metric, row.value, row.ci_low, row.ci_high, row.n, reference=job.reference)
                for row in formats.read_metrics(output).rows
            ]
    return sorted(rows, key=lambda row: (*place_of(row), row.metric))


def prompt_reader(
    store: Store, jobs: Iterable[Job], tell: Told | None = None
) -> Callable[[Place], PromptMeasures | None]:
    """Return a function that gives the measures by prompt of a chain and round, or None if a stage has none.

    Args:
        store: The store.
        jobs: Jobs of a plan.
        tell: As for `collect_rows`.
    """
    from pipeline.outputs.prompts import read_prompts  # numpy too, which reading results does not need

    outputs = {place_of(job): (job, output) for job, output in _metrics_outputs(store, jobs)}

    def read(place: Place) -> PromptMeasures | None:
        if place not in outputs:
            return None  # rows of a run without its plan
        job, output = outputs[place]
        measures: list[PromptMeasures] = []
        with reading(job, formats.PROMPTS, tell):
            measures.append(read_prompts(output))
        return measures[0] if measures else None

    return read


def write_samples(run: RunFolder, store: Store, jobs: Iterable[Job], tell: Told | None = None) -> None:
    """Write ``samples.jsonl``: the samples that each metrics job selected, with their source.

    Args:
        run: Folder of the run.
        store: The store.
        jobs: Jobs of a plan.
        tell: As for `collect_rows`.
    """
    lines: list[str] = []
    ordered = sorted(jobs, key=place_of)
    for job, output in _metrics_outputs(store, ordered):
        columns = ("algo", "dataset", "model", "reference", "seed", "round")
        where: dict[str, Any] = {name: getattr(job, name) for name in columns}
        with reading(job, formats.SAMPLES, tell):
            samples = formats.read_shown_samples(output)
            lines += [json_text({**where, **sample, **where}, ensure_ascii=False) for sample in samples]
    write_whole(run.samples, "".join(line + "\n" for line in lines))


def _metrics_outputs(store: Store, jobs: Iterable[Job]) -> Iterator[tuple[Job, Path]]:
    """Yield the metrics jobs whose output is stored, with its folder."""
    for job in jobs:
        if job.stage == METRICS_STAGE:
            yield job, store.path(job.key)


def log_problem(job: Job, problem: str) -> None:
    """Log a message on an unreadable stored output."""
    log.warning("%s: %s", job.id, problem)


@contextmanager
def reading(job: Job, name: str, tell: Told | None = log_problem) -> Iterator[None]:
    """Read a file of a job's stored output inside; a missing one is ignored, and an unreadable one reported."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        return  # not stored yet, or a stage without this file
    except (ForeignDataError, OSError, RecursionError) as error:
        if tell is not None:
            problem = str(error) if isinstance(error, RecursionError) else formats.problem_in_words(error)
            tell(job, f"its stored {name} cannot be read: {problem}")
