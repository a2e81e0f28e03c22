"""What methods take is the mean over the chains that their results rest on."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.run_folder import create_run_folder
from pipeline.engine.store.store import Store
from pipeline.plan.graph import Job
from pipeline.runs.cost import (
    Compute,
    ComputeRow,
    CostRow,
    at_budgets,
    collect_compute,
    costs_of,
    read_compute,
    write_compute,
)
from pipeline.runs.pooling import fronts
from pipeline.runs.record import (
    PooledRow,
    ResultRow,
    Results,
    collect_rows,
    read_results,
    write_results,
    write_samples,
)
from tests.doubles.pooled import pooled_row


def result(seed: int, number: int = 1, reference: int | None = None) -> ResultRow:
    where = ("PITA", "addition", "tiny", seed, number, "pass@1")
    return ResultRow(*where, 0.5, None, None, 10, reference=reference)


def spent(
    seed: int | None,
    stage: str,
    flops: float | None,
    number: int = 1,
    *,
    device_s: float | None = 1.0,
    load_s: float = 0.0,
    **more: Any,
) -> ComputeRow:
    return ComputeRow("addition", "tiny", "PITA", seed, number, stage, 1, device_s, load_s, flops=flops, **more)


def cost(results: list[ResultRow], compute: list[ComputeRow], number: int = 1) -> CostRow:
    (found,) = [row for row in costs_of(results, compute, {}) if row.round == number]
    return found


def test_costs_are_the_mean_over_chains_without_evaluation() -> None:
    compute = [
        row
        for reference in (0, 1)
        for seed in range(3)
        for row in (
            spent(seed, "generate", 5, device_s=4.0, answers=9, reference=reference),
            spent(seed, "train", 10 + 10 * seed, device_s=5.0, load_s=2.0, reference=reference),
            spent(seed, "sweep", 90, answers=10, flops_by_purpose={"decoding": 90}, reference=reference),
            spent(
                seed,
                "evaluate",
                90,
                answers=10,
                flops_by_purpose={"decoding": 10, "guidance": 20, "scoring": 60},
                reference=reference,
            ),
        )
    ]
    found = cost([result(seed, reference=reference) for reference in (0, 1) for seed in range(3)], compute)
    assert (found.flops, found.answer, found.device_s, found.load_s) == (25, 3, 9, 2)


def test_work_that_seeds_share_is_part_of_what_each_chain_takes() -> None:
    compute = [spent(None, "prepare_prompts", 4), spent(0, "train", 10), spent(1, "train", 12)]
    assert cost([result(0)], compute).flops == 14
    assert cost([result(0), result(1)], compute).flops == 15


def test_what_a_method_begins_with_counts_whole_but_for_its_evaluation() -> None:
    began = [
        replace(spent(seed, stage, flops, number), algo="SFT")
        for seed in (0, 1)
        for stage, flops, number in (("train", 3, 1), ("evaluate", 90, 1), ("train", 4, 2))
    ]
    compute = [*began, spent(0, "train", 10), spent(0, "train", 100, 2), spent(1, "train", 10)]
    starts = {"PITA": "SFT"}
    assert [row.flops for row in costs_of([result(0), result(0, 2)], compute, starts)] == [17, 117]
    assert [row.flops for row in costs_of([result(0)], compute, starts, {"PITA": "SFT"})] == [17]


def test_what_is_not_known_of_a_stage_is_not_known_of_its_method() -> None:
    known = [spent(0, "train", 10), spent(1, "train", 12), spent(0, "evaluate", 6, answers=2)]
    lost = [spent(1, "generate", None, device_s=None), spent(1, "evaluate", 6, answers=None)]
    found = cost([result(0), result(1)], [*known, *lost])
    assert (found.flops, found.answer, found.device_s) == (None, None, None)
    assert cost([result(0)], [*known, *lost]).flops == 10  # that chain is none of those it rests on


def test_what_another_program_spent_on_a_checkpoint_is_unknown() -> None:
    evaluated = spent(0, "evaluate", 6, answers=2, flops_by_purpose={"decoding": 6})
    found = cost([result(0)], [spent(None, "find", 0), evaluated])
    assert (found.flops, found.tokens, found.device_s, found.answer) == (None, None, None, 3)
    (row,) = at_budgets([pooled_row("PITA")], [found], [1e99])
    assert not row.is_known


# -- what methods reach at equal divergence, and at equal training budgets ---


def point(algo: str, kl: float, value: float, number: int = 2, suffix: str = "") -> Iterator[PooledRow]:
    """A result whose interval is 0.02 to either side, and its KL."""
    yield pooled_row(algo, number, value, metric=f"pass@1{suffix}")
    yield pooled_row(algo, number, kl, metric=f"kl_per_sequence{suffix}")


REFERENCE = list(point("reference", 0.0, 0.4, 0))
DPO = [
    *point("DPO@beta=1", 0.5, 0.6),
    *point("DPO@beta=0.3", 1.0, 0.5),  # further away for less
    *point("DPO@beta=0.1", 2.0, 0.8),
    *point("DPO@beta=0.1", 9.0, 0.1, number=1),  # an earlier round
]
QSHARP = [
    *point("QSharp", 1.5, 0.9),
    *point("QSharp", 0.0, 0.4, suffix="/eta=inf"),
    *point("QSharp", 1.0, 0.9, suffix="/eta=0.1"),
]


def test_points_of_a_front_are_told_by_what_makes_them() -> None:
    points, _ = fronts([*REFERENCE, *DPO, *QSHARP, *point("RAFT", 1.0, 0.7)], [], "test")
    assert [(row.front, row.point, row.split, row.kl, row.value, row.is_best) for row in points] == [
        ("DPO", "reference", "test", 0.0, 0.4, True),
        ("DPO", "beta=1", "test", 0.5, 0.6, True),
        ("DPO", "beta=0.3", "test", 1.0, 0.5, False),
        ("DPO", "beta=0.1", "test", 2.0, 0.8, True),
        ("QSharp", "eta=inf", "validation", 0.0, 0.4, True),
        ("QSharp", "eta=0.1", "validation", 1.0, 0.9, True),
    ]
    assert {row.metric for row in points} == {"pass@1"}


def test_rewards_are_compared_where_all_fronts_reach() -> None:
    _, matched = fronts([*REFERENCE, *DPO, *QSHARP], [], "test")
    found = {(row.front, row.kl): row.value for row in matched}
    assert found == {
        ("DPO", 0.25): 0.5,
        ("DPO", 0.5): 0.6,
        ("DPO", 1.0): pytest.approx(0.6 + 0.2 / 3),  # over the point that is beaten
        ("QSharp", 0.25): 0.525,
        ("QSharp", 0.5): 0.65,
        ("QSharp", 1.0): 0.9,
    }
    for row in matched:
        assert row.value is not None
        assert (row.ci_low, row.ci_high) == pytest.approx((row.value - 0.02, row.value + 0.02))


def taken(algo: str, number: int, flops: float | None) -> CostRow:
    where = {"dataset": "addition", "model": "tiny"}
    return CostRow(**where, algo=algo, round=number, flops=flops, answer=None, device_s=1.0)


def test_methods_are_compared_after_the_last_round_within_a_budget() -> None:
    pooled = [*REFERENCE, *point("DPO", 0.5, 0.6, 1), *point("DPO", 1.0, 0.7), *point("RAFT", 0.2, 0.5, 1)]
    costs = [taken("DPO", 1, 150), taken("DPO", 2, 250), taken("RAFT", 1, 300), taken("reference", 0, 1)]
    rows = at_budgets(pooled, costs, [400, 200, 10])
    assert [(row.budget, row.algo, row.round, row.flops, row.value, row.kl) for row in rows] == [
        (10, "DPO", None, None, None, None),
        (10, "RAFT", None, None, None, None),
        (200, "DPO", 1, 150, 0.6, 0.5),  # both rounds take 250
        (200, "RAFT", None, None, None, None),
        (400, "DPO", 2, 250, 0.7, 1.0),
        (400, "RAFT", 1, 300, 0.5, 0.2),
    ]


def test_a_round_whose_flops_are_not_known_is_not_passed_over_for_an_earlier_one() -> None:
    pooled = [*REFERENCE, *point("DPO", 0.5, 0.6, 1), *point("DPO", 1.0, 0.7), *point("RAFT", 0.2, 0.5, 1)]
    costs = [taken("DPO", 1, 150), taken("DPO", 2, None)]
    found = [(row.algo, row.is_known, row.round, row.flops, row.value) for row in at_budgets(pooled, costs, [200])]
    assert found == [("DPO", False, None, None, None), ("RAFT", False, None, None, None)]


# -- test run files ----------------------------------------------------------------------------------------------
# Run folders, journal, results and remembered durations.


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


def test_rounds_that_a_chain_continues_count_for_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    (made,) = shards(store, COST)
    trained = replace(made, algo="DPO", stage="train", seed=None, round=1)
    begun = [
        replace(made, algo="DPO", stage="evaluate", seed=seed, round=1, key=f"{seed + 1}" * 40) for seed in (0, 1)
    ]
    measured = [
        replace(job, algo="Mild", stage="metrics", round=2, key="f" * 40, inputs={"evaluate@previous": (job.key,)})
        for job in begun
    ]
    rows = collect_compute(store, [trained, *begun, *measured])
    assert [(row.algo, row.round, row.flops) for row in rows if row.stage == "train"] == [
        ("DPO", 1, 5.0),
        ("Mild", 1, 5.0),
    ]


def test_a_chain_counts_the_rounds_of_a_third_that_the_one_it_continues_has(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    first, second = (
        replace(job, algo=algo, stage="train", round=number)
        for job, algo, number in zip(shards(store, COST, COST), ("DPO", "Mild"), (1, 2), strict=True)
    )
    after = {job.algo: replace(job, stage="evaluate", key=job.algo) for job in (first, second)}
    measured = [  # whatever the order
        replace(first, algo=algo, stage="metrics", round=number, key=algo, inputs={"evaluate@previous": (of,)})
        for algo, number, of in (("Late", 3, "Mild"), ("Mild", 2, "DPO"))
    ]
    rows = collect_compute(store, [first, second, *after.values(), *measured])
    assert sorted((row.algo, row.round) for row in rows if row.stage == "train") == [
        *(("DPO", 1), ("Late", 1), ("Late", 2)),
        *(("Mild", 1), ("Mild", 2)),
    ]
