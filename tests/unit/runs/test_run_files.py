"""Run folders, journal, results and remembered durations."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from pipeline.engine.run_folder import create_run_folder
from pipeline.engine.store.store import Store
from pipeline.plan.graph import Job
from pipeline.runs.cost import Compute, collect_compute, read_compute, write_compute
from pipeline.runs.record import (
    Results,
    collect_rows,
    read_results,
    write_results,
    write_samples,
)

NOON = datetime(2026, 1, 2, 12, 0, 0)


def store_metrics(store: Store, job: Job, value: float) -> None:
    folder = store.begin(store.scratch("run"), job.key, 1)
    rows = [{"metric": "pass@1", "value": value, "ci_low": value - 0.1, "ci_high": value + 0.1, "n": 10}]
    (folder / "metrics.json").write_text(json.dumps({"rows": rows}))
    (folder / "samples.jsonl").write_text('{"prompt": "1+1=", "completions": ["2"]}\n')
    store.commit(job.key, folder, {})
    store.costs.note(job.key, {"tokens": 7, "run_s": 1.0, "load_s": 0.5})


def metrics_job(algo: str, number: int) -> Job:
    key = f"{algo}{number}".ljust(40, "0")
    where = {"algo": algo, "dataset": "d", "model": "m", "seed": 0, "round": number, "stage": "metrics"}
    return Job(id=f"{algo}/{number}", key=key, entry="m:f", payload={}, **where)  # type: ignore[arg-type]


def test_results_are_sorted_and_independent_of_the_order_of_jobs(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    jobs = [metrics_job("PITA", 2), metrics_job("reference", 0), metrics_job("PITA", 1)]
    for job in jobs:
        store_metrics(store, job, 0.5)
    run = create_run_folder(tmp_path, "x", NOON)
    written = []
    for order in (jobs, jobs[::-1]):
        write_results(run, Results(rows=collect_rows(store, order)))
        write_samples(run, store, order)
        written.append((run.results_json.read_bytes(), run.results_csv.read_bytes(), run.samples.read_bytes()))
    assert written[0] == written[1]
    rows = read_results(run.results_json).rows
    assert [(row.algo, row.round) for row in rows] == [("PITA", 1), ("PITA", 2), ("reference", 0)]
    assert json.loads(run.samples.read_text().splitlines()[0])["algo"] == "PITA"
    assert run.results_csv.read_text().splitlines()[0].startswith("algo,dataset,model,reference,seed,round,metric")


def test_rows_of_two_references_are_told_apart(tmp_path: Path) -> None:
    store, jobs = Store(tmp_path / "store"), []
    for reference, value in ((10, 0.25), (9, 0.75)):
        job = metrics_job("PITA", 1)
        jobs.append(replace(job, key=f"{reference}".ljust(40, "0"), reference=reference))
        store_metrics(store, jobs[-1], value)
    run = create_run_folder(tmp_path, "x", NOON)
    write_results(run, Results(rows=collect_rows(store, jobs)))
    write_samples(run, store, jobs)
    assert [(row.reference, row.value) for row in read_results(run.results_json).rows] == [(9, 0.75), (10, 0.25)]
    assert [json.loads(line)["reference"] for line in run.samples.read_text().splitlines()] == [9, 10]
    spent = [(row.reference, row.tokens) for row in collect_compute(store, jobs)]
    assert sorted(spent) == [(9, 7), (10, 7)]
    write_compute(tmp_path, Compute(rows=collect_compute(store, jobs)))
    assert [(row.reference, row.tokens) for row in read_compute(tmp_path).rows] == spent


def shards(store: Store, *costs: Mapping[str, float]) -> list[Job]:
    """Jobs of one stage, whose outputs are stored and took what is given."""
    jobs = [replace(metrics_job("PITA", 1), key=f"{at}".ljust(40, "0"), devices=2) for at in range(len(costs))]
    for job, cost in zip(jobs, costs, strict=True):
        store_metrics(store, job, 0.5)
        store.costs.note(job.key, cost)
    return jobs


COST = {"run_s": 1.5, "load_s": 0.5, "tokens": 7, "answers": 3, "flops": 5.0, "flops/training": 5.0}


def test_what_is_not_known_of_a_shard_is_not_known_of_its_stage(tmp_path: Path) -> None:
    """The sum of the others would be too small."""
    store = Store(tmp_path / "store")
    jobs = shards(store, COST, {"run_s": 1.0, "load_s": 0.0, "tokens": 1})
    (row,) = collect_compute(store, jobs)
    assert (row.flops, row.answers) == (None, None)  # an earlier version has made one of them
    assert (row.device_s, row.load_s, row.tokens) == (4.0, 1.0, 8)
    noted = tmp_path / "store" / ".costs" / f"{jobs[0].key[:2]}.jsonl"
    noted.write_text(
        "".join(line for line in noted.read_text().splitlines(keepends=True) if jobs[0].key not in line)
    )
    (row,) = collect_compute(store, jobs)
    assert (row.flops, row.answers, row.device_s, row.load_s, row.tokens) == (None, None, None, None, None)


def test_what_a_stored_output_rests_on_counts_where_it_was_lost_since(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    (measured,) = shards(store, COST)
    lost, forgotten, failed = (
        replace(measured, key=name.ljust(40, "0"), stage=name) for name in ("lost", "forgotten", "failed")
    )
    store.costs.note(lost.key, COST)
    measured = replace(measured, inputs={"train": (lost.key,), "generate@so_far": (forgotten.key,)})
    rows = collect_compute(store, [lost, forgotten, failed, measured])
    assert {row.stage: row.flops for row in rows} == {"lost": 5.0, "forgotten": None, "metrics": 5.0}


def test_what_is_drawn_once_counts_for_every_method_that_learns_from_it(tmp_path: Path) -> None:
    """Else the one that is named first would seem to take more than the others."""
    store = Store(tmp_path / "store")
    (drawn,) = shards(store, COST)
    drawn = replace(drawn, algo="DPO", stage="generate")
    readers = [
        replace(drawn, algo=algo, key=algo.ljust(40, "0"), stage="score", inputs={"generate@shard": (drawn.key,)})
        for algo in ("DPO", "RAFT")
    ]
    rows = collect_compute(store, [drawn, *readers])
    assert [(row.algo, row.stage, row.flops) for row in rows] == [
        ("DPO", "generate", 5.0),
        ("RAFT", "generate", 5.0),
    ]
