"""The results of a run: one row per algorithm, dataset, model, reference, seed, round and metric.

Nothing here depends on time or machine, so equal runs write equal bytes. The rows come from the stored outputs
of the metrics stages: ``metrics.json`` and ``samples.jsonl``, see `outputs`. One that holds something else costs
its own rows, and is told.
"""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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


@dataclass(frozen=True, order=True)
class ResultRow:
    """One measured number with its interval.

    Attributes:
        algo: Algorithm, or ``reference``.
        dataset: Name of the dataset.
        model: Name of the model.
        reference: Seed of the reference that the chain rests on; None where the model is not made from one.
        seed: Seed of the chain.
        round: 0 for the reference.
        metric: For example ``pass@1``.
        value: The estimate.
        ci_low: Lower end of its interval, or None where there is none.
        ci_high: Upper end.
        n: Prompts that it rests on.
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
"""What an interval holds for besides other prompts: for these policies alone, for policies of other seeds on the
same references, or for those on other references too."""


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
        difference: To the reference, paired by reference, seed and prompt; None where nothing is compared.
        difference_low: Lower end of its interval.
        difference_high: Upper end.
        over: What the interval of the mean holds for.
        references: Number of references that the mean is over.
        seeds: Number of seeds, which every one of the references has.
        n: Prompts that the mean rests on.
        difference_over: What the interval of the difference holds for; None where there is no difference.
        difference_references: Number of references of which the method and the reference both have chains.
        difference_seeds: Number of seeds of which both do.
        difference_n: Prompts of which both have something to say.
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
"""Numbers of an algorithm after a round: metric -> its row."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A method after the last round against the reference, or against another method, on what all have in common.

    Attributes:
        dataset: Name of the dataset.
        model: Name of the model.
        round: The last one.
        metric: What they are judged by.
        first: A method.
        second: Another, or ``reference``.
        difference: Of the first minus of the second.
        ci_low: Lower end of its interval, which is not corrected for the number of comparisons.
        ci_high: Upper end.
        p: Of the hypothesis that there is no difference, corrected by Holm's method for the number of comparisons:
            of methods with the reference, or of methods with each other.
        test: ``crossed`` for one that holds for other seeds; of these policies alone ``mcnemar`` or ``swaps``.
        detectable: The smallest difference that such a run finds four times out of five; None where nothing varies
            that would tell.
        over: What the interval and the test hold for.
        references: Number of references that all methods have.
        seeds: Number of seeds that all methods have.
        n: Prompts that all methods have.
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
    """A point of a front after the last round: one setting of a method.

    Attributes:
        dataset: Name of the dataset.
        model: Name of the model.
        round: Of the chains; 0 for the reference.
        front: The method.
        point: Its setting, as ``beta=0.1``, or ``reference``.
        split: Prompts that it was measured on.
        metric: What methods are judged by.
        kl: Divergence from the reference in nats per sequence.
        kl_low: Lower end of its interval, or None where there is none.
        kl_high: Upper end.
        value: Of the metric.
        ci_low: Lower end of its interval.
        ci_high: Upper end.
        is_best: Whether no other point of the front has at least its value at no more divergence.
        over: What the interval of the value holds for.
        references: Number of references.
        seeds: Number of seeds.
        n: Prompts.
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
    """What a front reaches at some divergence: on the line between the best points beside it.

    Attributes:
        dataset: Name of the dataset.
        model: Name of the model.
        round: Of the chains.
        front: The method.
        split: Prompts that its points were measured on.
        metric: What methods are judged by.
        kl: The divergence, in nats per sequence.
        value: Of the metric; None where the front does not reach so far.
        ci_low: Lower end of its interval, on the line between those of the two points; None where there is none.
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
    """What ``results.json`` holds.

    Attributes:
        rows: Of every chain.
        pooled: Of every method.
        comparisons: Of methods after the last round.
        confidence: Level of the intervals.
        common_eta: Weight of the divergence in J.
        split: Of the dataset, on which methods were evaluated.
        fronts: Points of methods that were run at several values of their settings.
        matched: What fronts reach at divergences that they have in common.
        bounded: Algorithms whose divergence is an upper bound, that of all others being exact.
        starts: Algorithm -> that whose last policy it begins with; the others begin with the reference.
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

    def bounded_among(self, algos: Iterable[str]) -> list[str]:
        """Those of the algorithms, or of the ones whose points these are, whose divergence is an upper bound."""
        return sorted({point_of(algo)[0] for algo in algos} & set(self.bounded))


Place = tuple[str, str, int, str, int, int]


def place_of(found: ResultRow | Job) -> Place:
    """By what rows and jobs are ordered: dataset, model, reference, algorithm, seed and round."""
    reference = -1 if found.reference is None else found.reference
    return found.dataset, found.model, reference, found.algo, found.seed or 0, found.round


def write_results(run: RunFolder, results: Results) -> None:
    """Write ``results.json``, and as tables ``results.csv`` with the rows of chains, ``pooled.csv`` of methods."""
    write_whole(run.results_json, json_text(asdict(results), indent=1) + "\n")
    for path, kind, rows in (
        (run.results_csv, ResultRow, results.rows),
        (run.pooled_csv, PooledRow, results.pooled),
    ):
        names = [column.name for column in fields(kind)]
        write_whole(path, csv_text(names, ([getattr(row, name) for name in names] for row in rows)))


def csv_text(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table for other programs; of cells as spreadsheets show them, see `csv_cell`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(map(csv_cell, row) for row in rows)
    return text.getvalue()


def read_results(path: Path) -> Results:
    """Read a ``results.json``.

    Raises:
        StoreError: It is missing, or holds something else.
    """
    try:
        return read_json_file(path, Results, _LIMIT, follow=True)
    except (ForeignDataError, OSError) as error:
        said = formats.problem_in_words(error)
        raise StoreError(f"cannot read {path}: {said}. The command of its run writes it again.") from error


def csv_cell(value: object) -> object:
    """A cell as spreadsheets show it: they would run a text that begins like a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


# -- primary -----------------------------------------------------------------------------------------------------
# What results are judged by: the one choice of the metric that comes first, in tables, sweeps and
# comparisons.


PRIMARY_METRICS = ("pass@1", "reward")
"""Correctness where a reward verifies, else the mean reward."""
MANY_CUT = 0.1
"""Share of completions cut off at the limit from which on that is told, as what they are judged by is in doubt."""


def primary_metric(results: Iterable[Collection[str]]) -> str | None:
    """The first primary metric that all results have; None where there is none.

    Args:
        results: Of each result that is compared with the others, the metrics of which it has a value.
    """
    shared = [set(metrics) for metrics in results]
    return next((name for name in PRIMARY_METRICS if shared and all(name in one for one in shared)), None)


Methods = Mapping[str, Mapping[int, ByMetric]]
"""Method -> round, in order -> its numbers that have a value."""


def by_method(pooled: Iterable[PooledRow]) -> dict[tuple[str, str], Methods]:
    """Dataset and model -> its methods."""
    found: dict[tuple[str, str], dict[str, dict[int, dict[str, PooledRow]]]] = {}
    for row in sorted(pooled, key=lambda row: row.round):
        if row.value is not None:
            methods = found.setdefault((row.dataset, row.model), {})
            methods.setdefault(row.algo, {}).setdefault(row.round, {})[row.metric] = row
    return dict(found)


def cells_of(methods: Methods) -> list[ByMetric]:
    """What each method has reached after each round."""
    return [cell for rounds in methods.values() for cell in rounds.values()]


# -- rows --------------------------------------------------------------------------------------------------------
# What the stage `metrics` left in the store, read back: rows, what was measured by prompt, samples for
# people. An output that holds something else costs its own rows, and is told.


METRICS_STAGE = "metrics"
Told = Callable[[Job, str], None]
"""Takes what cannot be read of a job's stored output, in words."""


def collect_rows(store: Store, jobs: Iterable[Job], tell: Told | None = None) -> list[ResultRow]:
    """Read the rows of every metrics job whose output is stored, sorted.

    Args:
        store: The store.
        jobs: Jobs of a plan; those of other stages have no rows.
        tell: Called for an output that has rows, but none that can be read.
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
    """What says of a chain and round what was measured prompt by prompt, or None where a stage does not say it.

    Args:
        store: The store.
        jobs: Jobs of a plan.
        tell: As in `collect_rows`.
    """
    from pipeline.outputs.prompts import read_prompts  # and numpy, which reading results does without

    outputs = {place_of(job): (job, output) for job, output in _metrics_outputs(store, jobs)}

    def read(place: Place) -> PromptMeasures | None:
        if place not in outputs:
            return None  # rows of a run whose plan is lost
        job, output = outputs[place]
        found: list[PromptMeasures] = []
        with reading(job, formats.PROMPTS, tell):
            found.append(read_prompts(output))
        return found[0] if found else None

    return read


def write_samples(run: RunFolder, store: Store, jobs: Iterable[Job], tell: Told | None = None) -> None:
    """Write ``samples.jsonl``: the samples that each metrics job picked, with where they come from.

    Args:
        run: Where to.
        store: The store.
        jobs: Jobs of a plan.
        tell: As in `collect_rows`.
    """
    lines: list[str] = []
    ordered = sorted(jobs, key=place_of)
    for job, output in _metrics_outputs(store, ordered):
        place = ("algo", "dataset", "model", "reference", "seed", "round")
        where: dict[str, Any] = {name: getattr(job, name) for name in place}
        with reading(job, formats.SAMPLES, tell):
            found = formats.read_shown_samples(output)
            lines += [json_text({**where, **sample, **where}, ensure_ascii=False) for sample in found]
    write_whole(run.samples, "".join(line + "\n" for line in lines))


def _metrics_outputs(store: Store, jobs: Iterable[Job]) -> Iterator[tuple[Job, Path]]:
    """Jobs of the stage that measures, with where their output is if it is stored."""
    for job in jobs:
        if job.stage == METRICS_STAGE:
            yield job, store.path(job.key)


def told(job: Job, said: str) -> None:
    """Log what cannot be read of a job's stored output."""
    log.warning("%s: %s", job.id, said)


@contextmanager
def reading(job: Job, name: str, tell: Told | None = told) -> Iterator[None]:
    """Read a file of a job's stored output: none there is passed over, and one that cannot be read is told."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        return  # not stored yet, or a stage that writes no such file
    except (ForeignDataError, OSError, RecursionError) as error:
        if tell is not None:
            said = str(error) if isinstance(error, RecursionError) else formats.problem_in_words(error)
            tell(job, f"its stored {name} cannot be read: {said}")
