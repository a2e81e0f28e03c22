"""What a run tells its readers besides numbers: completions at which a reward failed."""

import io
import json
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.commands.run import tell_prepared
from pipeline.config.schema import Config, DatasetConfig, EvaluationConfig
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store import Store
from pipeline.plan.graph import Job
from pipeline.runs.loaded import LoadedRun, load
from pipeline.runs.origin import (
    UNKNOWN,
    Maker,
    Origin,
    added_later,
    collect_makers,
    collect_notes,
    failed_rewards,
    link_stored,
    read_origin,
    short_of_rows,
    slurm_job,
    warnings_of_rows,
    write_origin,
)
from pipeline.runs.report.page import failures_of
from pipeline.runs.report.status import print_run, run_json
from pipeline.runs.run_view import Answer
from tests.doubles.runs import START, WrittenRun, chain_plan


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
    logs, where = "python -m pipeline logs x", f" --output-dir {shlex.quote(f'{tmp_path}/outputs')}"
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
    request: Any = SimpleNamespace(
        store=store, plan=SimpleNamespace(jobs={job.id: job for job in (first, second)})
    )
    printed = io.StringIO()
    tell_prepared(request, None, Console(file=printed, width=500))
    assert printed.getvalue().splitlines()[0] == "b: 1,500 train, 73 validation, 73 test rows"


@pytest.mark.parametrize(
    ("place", "own", "limit"),
    [
        ("d", None, "generation.max_new_tokens=64:"),
        ("d", 8, "datasets.d.sampling.max_new_tokens=8:"),
        ("d@two", None, "generation.max_new_tokens=64 (datasets.two.sampling.max_new_tokens"),
        ("d@two", 4, "datasets.two.sampling.max_new_tokens=4:"),
    ],
)
def test_the_limit_at_which_completions_end_is_that_of_their_set(
    place: str, own: int | None, limit: str, tmp_path: Path
) -> None:
    plan = chain_plan(rounds=1)
    job = replace(next(iter(plan.jobs.values())), dataset=place)
    row = {"metric": "truncated", "value": 1.0, "ci_low": None, "ci_high": None, "n": 10}
    WrittenRun(tmp_path / "outputs", plan).store(job.key, metrics_json=json.dumps({"rows": [row]}))
    config = Config(datasets={name: DatasetConfig(kind="x") for name in ("d", "two")})
    config.datasets[place.rpartition("@")[2]].sampling.max_new_tokens = own
    (note,) = collect_notes(Store(tmp_path / "outputs/.store"), [job], config)
    assert f"cut off at {limit}" in note


# -- test origin -------------------------------------------------------------------------------------------------
# Where a run came from: the job of Slurm it ran in is told by whoever looks at it.


JOB = {
    "SLURM_JOB_ID": "41",
    "SLURM_ARRAY_JOB_ID": "40",
    "SLURM_ARRAY_TASK_ID": "1",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_JOB_PARTITION": "main",
    "SLURM_RESTART_COUNT": "2",
    "SLURM_NTASKS": "1",
}


def test_status_and_logs_know_the_job(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, chain_plan(1))
    assert slurm_job({"HOME": "/x", "SLURM_CONF": "/y"}) == {}
    write_origin(run.folder.path, Origin(slurm=slurm_job(JOB)))
    assert read_origin(run.folder.path).slurm["job"] == "41"
    out = io.StringIO()
    print_run(LoadedRun(run.folder), START, Console(file=out, width=120, color_system=None))
    assert "Slurm job 41 (40_1 of an array) on n1" in out.getvalue()
    assert run_json(LoadedRun(run.folder), START)["slurm"]["job"] == "41"
    run.folder.log.write_text("what the engine says\n")
    said = CliRunner().invoke(app, ["logs", run.folder.experiment, "--output-dir", str(tmp_path)])
    assert "Slurm job 41" in said.stderr
    assert said.stdout == "what the engine says\n"


# -- a reader is told when results rest on outputs that were not all made alike ---


def stored(store: Store, key: str, **about: str) -> Job:
    folder = store.begin(store.scratch("run"), key, 1)
    (folder / "file").write_text("x")
    store.commit(key, folder, {"job": "a", **about})
    return Job(id=f"job {key[:1]}", key=key, entry="x:y", payload={}, samples=1)


def test_outputs_are_counted_by_what_made_them(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = {"arithmetic": "portable", "pipeline": "1", "torch": "2.13.0", "transformers": "5"}
    jobs = [
        stored(store, "a" * 40, **made),
        stored(store, "b" * 40, **made),
        stored(store, "c" * 40, **{**made, "torch": "2.12.0"}),
        stored(store, "d" * 40),
        Job(id="unmade", key="e" * 40, entry="x:y", payload={}, samples=1),
    ]
    assert collect_makers(store, [*jobs, jobs[0]]) == [
        Maker("portable", "1", "2.12.0", "5", 1),
        Maker("portable", "1", "2.13.0", "5", 2),
        Maker(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, 1),
    ]


@pytest.mark.parametrize("where", ["inside", "elsewhere", "by a link"])
def test_a_run_leads_to_stored_outputs_wherever_it_and_they_are(tmp_path: Path, where: str) -> None:
    output_dir = tmp_path / "deep" / "er" / "outputs"
    output_dir.mkdir(parents=True)
    if where == "by a link":
        (tmp_path / "short").symlink_to(output_dir)
        output_dir = tmp_path / "short"
    store = Store(output_dir / ".store" if where == "inside" else tmp_path / "store")
    job = Job(id="d/m/s0/A/r1/generate/000", key=f"{7:040d}", entry="m:f", payload={})
    folder = store.begin(store.scratch("run"), job.key, 1)
    (folder / "name.txt").write_text(job.id)
    store.commit(job.key, folder, {"job": job.id})
    run = RunFolder(output_dir / "x" / "2026-01-02_10-00-00")
    run.path.mkdir(parents=True)
    for _ in range(2):
        link_stored(run, store, [job])
        assert (run.job(job.id) / "output" / "name.txt").read_text() == job.id
    assert not (run.job(job.id) / "output").readlink().is_absolute()


def test_what_is_added_when_results_could_be_seen_is_told_unless_it_was_refused() -> None:
    asked = ["priority PITA high", "add experiment.seeds=[1]", "stop DPO", "add algos=[GRPO]"]
    answers = [Answer(request=str(at), text=text, by="ada", reason="", time=at) for at, text in enumerate(asked)]
    assert added_later(Origin(), answers[:1]) == []
    (said,) = added_later(
        Origin(added=["clone DPO --as X"]),
        [*answers, replace(answers[1], text="add nonsense", reason="no setting")],
    )
    assert "clone DPO --as X; add experiment.seeds=[1]; add algos=[GRPO]." in said
    assert "nonsense" not in said
