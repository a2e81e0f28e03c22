"""Where runs stand: the overview, one run on narrow and wide terminals, and the same as data."""

import fcntl
import io
import json
import shlex
from pathlib import Path

from rich.console import Console

from pipeline.runs.index import choose_run, experiments
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.report.page import run_page
from pipeline.runs.report.status import glance_at, overview_table, print_run, run_json
from tests.doubles.runs import CHAIN, START, WrittenRun, chain_plan

FIRST = f"{CHAIN}/r1/generate/000"
SECOND = f"{CHAIN}/r1/generate/001"


def troubled(tmp_path: Path, rounds: int = 2) -> WrittenRun:
    run = WrittenRun(tmp_path, chain_plan(rounds))
    run.worker(0, "gpu 7: a device with quite a long name, 80 GiB")
    run.worker(1, "gpu 8")
    run.begin(FIRST, worker=1)
    run.fail_attempt(FIRST, "lost", "worker 1 was lost", retry=True, worker=1)
    run.begin(FIRST, attempt=2)
    run.fail_attempt(FIRST, "bug", "ValueError: [bold]x[/]", retry=False, attempt=2)
    run.write("JobFailed", job=FIRST, attempts=2, kind="bug", reason="ValueError: [bold]x[/]")
    for name in run.plan.jobs:
        if name.endswith("train") or "/r2/" in name:
            run.write("JobBlocked", job=name, root_cause=FIRST)
    run.write("DeviceQuarantined", worker=1, device="gpu 8", reason="lost thrice", failed_jobs=[FIRST])
    run.begin(SECOND)
    return run


def printed(run: WrittenRun, width: int, now: float = START + 90) -> str:
    out = io.StringIO()
    print_run(LoadedRun(run.folder), now, Console(file=out, width=width, color_system=None))
    return out.getvalue()


def while_it_runs(run: WrittenRun, width: int) -> str:
    with run.folder.journal.open("ab") as engine:
        fcntl.flock(engine, fcntl.LOCK_EX)
        return printed(run, width)


def test_one_run_tells_what_runs_and_what_went_wrong(tmp_path: Path) -> None:
    text = while_it_runs(troubled(tmp_path), 120)
    assert "running, 1 min 30 s" in text
    assert "0/6 jobs done, 1 running, 1 failed, 4 blocked" in text
    lines = [line.split() for line in text.splitlines()]
    assert [CHAIN, "0/3", "failed", "0/3", "blocked"] in lines
    (running,) = [line for line in lines if line[:1] == ["0"] and SECOND in line]
    assert running[-4:] == ["1", "min", "17", "s"]
    assert f"{FIRST} (bug, 2 attempts)" in text
    assert "ValueError: [bold]x[/]" in text
    assert f"jobs/{FIRST}/log.2.txt" in text
    assert f"read it: `python -m pipeline logs x {FIRST} --output-dir {shlex.quote(str(tmp_path))}`" in text
    assert f"by {FIRST}:" in text
    assert "4 jobs, from" in text
    assert f"worker 1 (gpu 8): lost thrice, after {FIRST}" in text
    assert "retries so far: 1 (1 lost)" in text


def test_a_killed_run_says_so_and_when_its_jobs_were_seen_last(tmp_path: Path) -> None:
    text = printed(troubled(tmp_path), 120)
    assert "killed" in text
    assert "the same command goes on from here" in text
    assert "running (when the engine was last heard of)" in text


def test_long_lists_are_cut_off_for_people_but_not_in_data(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, chain_plan(rounds=8))
    for job in run.plan.jobs:
        run.write("JobFailed", job=job, attempts=1, kind="bug", reason="no")
    assert "and 14 more; --json lists all" in printed(run, 80)
    assert len(run_json(LoadedRun(run.folder), START)["failed_jobs"]) == 24


def test_the_same_as_data(tmp_path: Path) -> None:
    run = troubled(tmp_path)
    data = json.loads(json.dumps(run_json(LoadedRun(run.folder), START + 90)))
    assert (data["name"], data["run"], data["state"]) == ("x", "2026-01-02_10-00-00", "killed")
    assert data["counts"]["pending"] == 0
    assert [job["job"] for job in data["running_jobs"]] == [SECOND]
    (failed,) = data["failed_jobs"]
    assert failed["log"].endswith("log.2.txt")
    assert len(data["blocked_jobs"][FIRST]) == 4
    assert data["retries"] == {"lost": 1}
    assert {(cell["chain"], cell["round"]) for cell in data["cells"]} == {(CHAIN, 1), (CHAIN, 2)}


def test_the_overview_has_the_newest_run_on_top(tmp_path: Path) -> None:
    old = WrittenRun(tmp_path, chain_plan(), "2026-01-01_08-00-00", name="old")
    old.end(done=5, failed=1)
    WrittenRun(tmp_path, chain_plan(), "2026-01-02_08-00-00", name="new")
    rows = [
        glance_at(LoadedRun(run, glance=True), START)
        for run in (choose_run(tmp_path, name) for name in experiments(tmp_path))
    ]
    out = io.StringIO()
    Console(file=out, width=80).print(overview_table(rows))
    lines = [line.split() for line in out.getvalue().splitlines() if "2026" in line]
    assert lines == [
        ["new", "2026-01-02_08-00-00", "killed", "0/6", "0.0", "s"],
        ["old", "2026-01-01_08-00-00", "failed", "5/6", "1", "1.0", "s"],
    ]


def test_what_was_shared_and_where_a_run_ran_stand_in_lines_of_their_own(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, chain_plan(1))
    assert not {"moved", "Ray", "shared"} & set(printed(run, 80).split())
    found = run_json(LoadedRun(run.folder), START)
    assert (found["nodes"], found["shared_store"]) == ([], None)
    run.folder.config.write_text("execution:\n  backend: ray\n")
    for index in range(24):
        run.write("WorkerStarted", worker=index, pid=9, device="cuda:0 on n", node=f"node {index % 3}")
    run.write(
        "SharedStore",
        fetched=1600,
        fetched_bytes=10**12,
        uploaded=4000,
        uploaded_bytes=10**13,
        left=25,
    )
    told = printed(run, 80).splitlines()
    at = told.index("Ray, 24 workers on 3 nodes")
    assert (
        told[at + 1] == "shared store: 1,600 outputs fetched (1.0 TB), 4,000 outputs uploaded (10.0 TB), 25 to go"
    )
    found = run_json(LoadedRun(run.folder), START)
    assert found["nodes"] == ["node 0", "node 1", "node 2"]
    assert found["shared_store"]["left"] == 25
    facts = dict(run_page(LoadedRun(run.folder), "x")["facts"])
    assert facts["where"] == "Ray, 24 workers on 3 nodes"
    assert "25 to go" in facts["shared store"]
