"""The results of a run: one row per algorithm, dataset, model, reference, seed, round and metric.

Nothing here depends on time or machine, so equal runs write equal bytes. The rows come from the stored outputs
of the metrics stages: ``metrics.json`` and ``samples.jsonl``, see `outputs`. One that holds something else costs
its own rows, and is told.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from pipeline.errors import StoreError
from pipeline.foreign import ForeignDataError, read_json_file
from pipeline.plan.job import Job
from pipeline.results.outputs import (
    METRICS,
    SAMPLES,
    Count,
    Number,
    problem_in_words,
    read_metrics,
    read_shown_samples,
)
from pipeline.results.paths import RunFolder, json_text, write_whole
from pipeline.results.store import Store

METRICS_STAGE = "metrics"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_LIMIT = 4 << 30


@dataclass(frozen=True, order=True)
class ResultRow:
    """One measured number with its interval.

    Attributes:
        algo: Algorithm, or ``reference``.
        dataset: Name of the dataset.
        model: Name of the model.
        reference: Seed of the reference that the chain rests on; None where the model is not made from one, and in
            results of earlier versions, which had one at most.
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


def place_of(found: ResultRow | Job) -> tuple[str, str, int, str, int, int]:
    """By what rows and jobs are ordered: dataset, model, reference, algorithm, seed and round."""
    reference = -1 if found.reference is None else found.reference
    return found.dataset, found.model, reference, found.algo, found.seed or 0, found.round


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
        with _telling(job, METRICS, tell):
            rows += [
                ResultRow(*where, row.metric, row.value, row.ci_low, row.ci_high, row.n, reference=job.reference)
                for row in read_metrics(output).rows
            ]
    return sorted(rows, key=lambda row: (*place_of(row), row.metric))


def write_results(run: RunFolder, rows: list[ResultRow]) -> None:
    """Write ``results.json`` and ``results.csv``."""
    write_whole(run.results_json, json_text({"rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in fields(ResultRow)])
    writer.writerows([_cell(getattr(row, column.name)) for column in fields(ResultRow)] for row in rows)
    write_whole(run.results_csv, text.getvalue())


def read_results(path: Path) -> list[ResultRow]:
    """Read a ``results.json``.

    Raises:
        StoreError: It is missing, or holds something else.
    """
    try:
        return read_json_file(path, _Results, _LIMIT, follow=True).rows
    except (ForeignDataError, OSError) as error:
        raise StoreError(
            f"cannot read {path}: {problem_in_words(error)}. The command of its run writes it again."
        ) from error


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
        where: dict[str, Any] = {
            "algo": job.algo,
            "dataset": job.dataset,
            "model": job.model,
            "reference": job.reference,
            "seed": job.seed,
            "round": job.round,
        }
        with _telling(job, SAMPLES, tell):
            found = read_shown_samples(output)
            lines += [json_text({**where, **sample, **where}, ensure_ascii=False) for sample in found]
    write_whole(run.samples, "".join(line + "\n" for line in lines))


@dataclass(frozen=True, kw_only=True)
class _Results:
    rows: list[ResultRow]


def _metrics_outputs(store: Store, jobs: Iterable[Job]) -> Iterator[tuple[Job, Path]]:
    """Jobs of the stage that measures, with where their output is if it is stored."""
    for job in jobs:
        if job.stage == METRICS_STAGE:
            yield job, store.path(job.key)


@contextmanager
def _telling(job: Job, name: str, tell: Told | None) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        return  # not stored yet, or a stage that writes no such file
    except (ForeignDataError, OSError, RecursionError) as error:
        if tell is not None:
            said = str(error) if isinstance(error, RecursionError) else problem_in_words(error)
            tell(job, f"its stored {name} cannot be read: {said}")


def _cell(value: object) -> object:
    """A cell as spreadsheets show it: they would run a text that begins like a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
