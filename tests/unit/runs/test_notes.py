"""What a run tells its readers besides numbers: completions at which a reward failed."""

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from pipeline.commands.run import tell_prepared
from pipeline.config.schema import EvaluationConfig
from pipeline.engine.store.store import Store
from pipeline.runs.loaded import load
from pipeline.runs.notes import failed_rewards, short_of_rows, warnings_of_rows
from pipeline.runs.report.page import failures_of
from tests.doubles.runs import WrittenRun, chain_plan


def failing(failed: int, completions: int, first: str = "reward 'f': ZeroDivisionError: division by zero") -> str:
    return json.dumps({"failed": failed, "completions": completions, "first": first})


def test_how_often_why_and_what_prints_the_log_stands_in_one_line_of_a_chain_and_round(tmp_path: Path) -> None:
    plan = chain_plan(rounds=2)
    run = WrittenRun(tmp_path / "outputs", plan)
    shards = [job for job in plan.jobs.values() if job.stage == "generate"]
    run.store(shards[0].key, faults_json=failing(3, 10))
    run.store(shards[1].key, faults_json=failing(1, 10, "another"))
    run.store(shards[2].key, faults_json=failing(2, 5))
    run.store(shards[3].key, generation_json="{}")
    told = failed_rewards(Store(tmp_path / "outputs/.store"), list(plan.jobs.values())[::-1], run.folder)
    logs, where = "python -m pipeline logs x", f" --output-dir {tmp_path}/outputs"
    assert told == [
        "d/m/s0/X, round 1: a reward failed at 4 of 20 completions of 2 jobs (generate), which have no score; "
        f"first reward 'f': ZeroDivisionError: division by zero ({logs} {shards[0].id}{where})",
        "d/m/s0/X, round 2: a reward failed at 2 of 5 completions of 1 job (generate), which have no score; first "
        f"reward 'f': ZeroDivisionError: division by zero ({logs} {shards[2].id}{where})",
    ]
    assert failures_of(load(run.folder).view, rewards=told)["notes"] == told


def test_rows_that_are_fewer_than_asked_for_are_told_of_each_dataset(tmp_path: Path) -> None:
    plan = chain_plan(rounds=1)
    first, second, _ = (
        replace(job, round=0, dataset=name) for job, name in zip(plan.jobs.values(), "abc", strict=True)
    )
    run = WrittenRun(tmp_path / "outputs", plan)
    rows = {"train": 1500, "validation": 73, "test": 73}
    run.store(first.key, dataset_json=json.dumps({"rows": rows, "warnings": ["test is short", "2 rows left out"]}))
    run.store(second.key, dataset_json=json.dumps({"rows": rows, "warnings": []}))
    store = Store(tmp_path / "outputs/.store")
    short = "a: 1,500 train, 73 validation, 73 test rows (datasets.a.test_size, validation_size): test is short; "
    assert short_of_rows(store, [second, first], EvaluationConfig(num_prompts=73)) == [f"{short}2 rows left out"]
    fewer = "evaluation.num_prompts=74: test has 73 prompts, and evaluation uses all of them"
    assert short_of_rows(store, [first], EvaluationConfig(num_prompts=74)) == [f"{short}2 rows left out; {fewer}"]
    asked, counted = EvaluationConfig(num_prompts=74), short.partition(": test")[0]
    told = warnings_of_rows(store, [first, second])  # when the run began
    assert told == ["datasets.a: test is short", "datasets.a: 2 rows left out"]
    assert short_of_rows(store, [first], EvaluationConfig(num_prompts=73), told) == [counted]
    assert short_of_rows(store, [first], asked, told) == [f"{counted}: {fewer}"]
    assert short_of_rows(store, [first], asked, ["datasets.b: test is short"]) == [
        f"{short}2 rows left out; {fewer}"
    ]
    (said,) = short_of_rows(store, [second], EvaluationConfig(num_prompts=500, split="validation"))
    assert said.endswith("evaluation.num_prompts=500: validation has 73 prompts, and evaluation uses all of them")
    request: Any = SimpleNamespace(
        store=store, plan=SimpleNamespace(jobs={job.id: job for job in (first, second)})
    )
    printed = io.StringIO()
    tell_prepared(request, None, Console(file=printed, width=500))
    assert printed.getvalue().splitlines()[0] == "b: 1,500 train, 73 validation, 73 test rows"
