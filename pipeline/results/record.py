"""The results of a run: one row per algorithm, dataset, model, seed, round and metric.

Nothing here depends on time or machine, so equal runs write equal bytes. The rows come from the stored outputs
of the metrics stages: ``metrics.json`` with ``{"rows": [{metric, value, ci_low, ci_high, n}]}`` and
``samples.jsonl``.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pipeline.plan.job import Job
from pipeline.results.paths import RunFolder, write_whole
from pipeline.results.store import Store

METRICS_STAGE = "metrics"


@dataclass(frozen=True, order=True)
class ResultRow:
    """One measured number with its interval.

    Attributes:
        algo: Algorithm, or ``reference``.
        dataset: Name of the dataset.
        model: Name of the model.
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
    seed: int
    round: int
    metric: str
    value: float | None
    ci_low: float | None
    ci_high: float | None
    n: int


def collect_rows(store: Store, jobs: Iterable[Job]) -> list[ResultRow]:
    """Read the rows of every metrics job whose output is stored, sorted."""
    rows = []
    for job in jobs:
        path = store.path(job.key) / "metrics.json"
        if job.stage != METRICS_STAGE or not path.is_file():
            continue
        for row in json.loads(path.read_bytes())["rows"]:
            where = (job.algo, job.dataset, job.model, job.seed or 0, job.round)
            rows.append(ResultRow(*where, row["metric"], row["value"], row["ci_low"], row["ci_high"], row["n"]))
    return sorted(rows, key=lambda row: (row.dataset, row.model, row.algo, row.seed, row.round, row.metric))


def write_results(run: RunFolder, rows: list[ResultRow]) -> None:
    """Write ``results.json`` and ``results.csv``."""
    write_whole(run.results_json, json.dumps({"rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in fields(ResultRow)])
    writer.writerows([getattr(row, column.name) for column in fields(ResultRow)] for row in rows)
    write_whole(run.results_csv, text.getvalue())


def read_results(path: Path) -> list[ResultRow]:
    """Read a ``results.json``."""
    return [ResultRow(**row) for row in json.loads(path.read_bytes())["rows"]]


def write_samples(run: RunFolder, store: Store, jobs: Iterable[Job]) -> None:
    """Write ``samples.jsonl``: the samples that each metrics job picked, with where they come from."""
    lines = []
    for job in sorted(jobs, key=lambda job: (job.dataset, job.model, job.algo, job.seed or 0, job.round)):
        path = store.path(job.key) / "samples.jsonl"
        if job.stage != METRICS_STAGE or not path.is_file():
            continue
        where: dict[str, Any] = {
            "algo": job.algo,
            "dataset": job.dataset,
            "model": job.model,
            "seed": job.seed,
            "round": job.round,
        }
        with path.open(encoding="utf-8") as file:
            lines += [json.dumps({**where, **json.loads(line)}, ensure_ascii=False) for line in file]
    write_whole(run.samples, "".join(line + "\n" for line in lines))
