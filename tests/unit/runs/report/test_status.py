"""Where runs stand: the overview, one run on narrow and wide terminals, and the same as data."""

import fcntl
import io
import json
import logging
import shlex
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, Group
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.commands.looking import watch_run
from pipeline.engine.workers.messages import GpuLoad
from pipeline.runs.loaded import LoadedRun, choose_run, experiments
from pipeline.runs.progress import LiveRun, Progress, ProgressFile
from pipeline.runs.report.page import run_page
from pipeline.runs.report.screen import GpuLog
from pipeline.runs.report.status import (
    explain_job,
    glance_at,
    is_on_ray,
    overview_table,
    print_run,
    run_json,
    watched_run,
)
from pipeline.runs.run_view import WorkerView
from pipeline.terminal import console as watching
from pipeline.terminal.console import Terminal
from tests.doubles.live import live_run
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
    for job in list(old.plan.jobs)[:5]:
        old.write("JobFoundStored", job=job)
    old.write("JobFailed", job=list(old.plan.jobs)[5], attempts=1, kind="bug", reason="x")
    old.end(done=5, failed=1)
    WrittenRun(tmp_path, chain_plan(), "2026-01-02_08-00-00", name="new")
    rows = [
        glance_at(LoadedRun(run), START) for run in (choose_run(tmp_path, name) for name in experiments(tmp_path))
    ]
    out = io.StringIO()
    Console(file=out, width=80).print(overview_table(rows))
    lines = [line.split() for line in out.getvalue().splitlines() if "2026" in line]
    assert lines == [
        ["new", "2026-01-02_08-00-00", "killed", "0/6", "0.0", "s"],
        ["old", "2026-01-01_08-00-00", "failed", "5/6", "1", "7.0", "s"],
    ]


def test_where_a_run_ran_stands_in_a_line_of_its_own(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, chain_plan(1))
    assert "Ray" not in printed(run, 80).split()
    found = run_json(LoadedRun(run.folder), START)
    assert found["nodes"] == []
    assert not is_on_ray(LoadedRun(run.folder))
    run.folder.config.write_text("execution:\n  backend: ray\n")
    assert is_on_ray(LoadedRun(run.folder))  # also before a worker has room
    for index in range(24):
        run.write("WorkerStarted", worker=index, pid=9, device="cuda:0 on n", node=f"node {index % 3}")
    told = printed(run, 80).splitlines()
    assert "Ray, 24 workers on 3 nodes" in told
    found = run_json(LoadedRun(run.folder), START)
    assert found["nodes"] == ["node 0", "node 1", "node 2"]
    facts = dict(run_page(LoadedRun(run.folder), "x")["facts"])
    assert facts["where"] == "Ray, 24 workers on 3 nodes"


def test_a_place_that_is_given_back_before_it_had_a_device_is_named_by_its_number(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, chain_plan(1))
    for event in ("WorkerWaits", "WorkerLeaves", "WorkerExited"):
        run.write(event, worker=2)
    run.write("WorkerStarted", worker=1, pid=9, device="cpu slot 1")
    run.write("WorkerLeaves", worker=1)
    told = printed(run, 80).splitlines()
    named = sorted(line.partition(":")[0].strip() for line in told if line.startswith("  worker "))
    assert named == ["worker 1 (cpu slot 1)", "worker 2"]


# -- `status --watch`: what it shows, on what there is room for


SIZES = [(80, 24), (160, 50), (40, 10), (20, 4)]


def shown(run: WrittenRun, width: int, height: int) -> str:
    out = io.StringIO()
    with run.folder.journal.open("ab") as engine:
        fcntl.flock(engine, fcntl.LOCK_EX)  # as an engine does that lives
        recorded = LoadedRun(run.folder)
        console = Console(file=out, width=width, height=height, color_system=None)
        console.print(Group(*watched_run(recorded, START + 60, width, height)), highlight=False)
    return out.getvalue()


def tell(run: WrittenRun, progress: Progress) -> None:
    ProgressFile(run.folder).update(progress, START)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_it_fits_any_terminal(tmp_path: Path, width: int, height: int) -> None:
    run = WrittenRun(tmp_path, chain_plan(40))
    for index in range(30):
        run.worker(index, f"gpu {index}: a device with quite a long name")
        run.begin(f"{CHAIN}/r{index + 1}/train", worker=index)
    for number in range(31, 41):
        run.write("JobFailed", job=f"{CHAIN}/r{number}/train", attempts=1, kind="bug", reason="x\x1b[2J" * 30)
    lines = shown(run, width, height).splitlines()
    assert len(lines) < height or height < 8  # so low a terminal shows the headline, and the rest is cut off
    assert max(map(len, lines)) <= width
    assert not any("\x1b" in line for line in lines)


def test_watching_a_run_ends_with_it_and_follows_it_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = WrittenRun(tmp_path, chain_plan(1))
    run.worker(0, "cpu slot 0")
    tell(run, Progress(part=0.12, remaining_s=3600.0, samples_per_s=7.0))
    out = io.StringIO()

    def go_on(_seconds: float) -> None:
        if not run.folder.journal.read_text().endswith("}\n") or "RunFinished" in run.folder.journal.read_text():
            return
        run.write("RunFinished", interrupted=None, halted=None, done=0, failed=0, blocked=0, stored=0)

    monkeypatch.setattr(LoadedRun, "engine_runs", lambda self: self.view.finished is None)
    monkeypatch.setattr(watching.time, "sleep", go_on)
    monkeypatch.setattr("pipeline.commands.looking.watch", lambda *args: watching.watch(*args, go_on))
    watch_run(LoadedRun(run.folder), Terminal(file=out, width=120), 0.1)
    assert "12 %, about 1 h 00 min left, 0/3 jobs done, 0 running, 3 to come, 7 samples/s" in out.getvalue()
    assert "done" in out.getvalue()


def test_ctrl_c_ends_a_look_quietly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watching, "_is_gone", interrupt)
    monkeypatch.setattr(LoadedRun, "engine_runs", lambda _: True)
    WrittenRun(tmp_path, chain_plan(1))
    done = CliRunner().invoke(app, ["status", "x", "--watch", "--output-dir", str(tmp_path)])
    assert (done.exit_code, "Traceback" in done.output) == (130, False)
    for wrong in (["status", "--watch", "--json"], ["status", "--watch"]):
        assert CliRunner().invoke(app, wrong).exit_code == 2


# -- what a run tells of its GPUs while it goes on, and when it is over ---


def status(elapsed_s: float, *loads: GpuLoad | None) -> LiveRun:
    workers = (WorkerView(index=index, device=f"device {index}", gpu=load) for index, load in enumerate(loads))
    return live_run(workers=workers, elapsed_s=elapsed_s)


def note(gpus: GpuLog, elapsed_s: float, *loads: GpuLoad | None) -> None:
    gpus.update(status(elapsed_s, *loads).view, elapsed_s)


def load(number: int, used_gb: float, utilization: int | None) -> GpuLoad:
    return GpuLoad(
        label=f"GPU {number}", used_bytes=int(used_gb * 1e9), total_bytes=80 * 10**9, utilization=utilization
    )


def test_the_log_has_a_summary_each_minute_and_an_average_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    gpus = GpuLog()
    with caplog.at_level(logging.INFO, "pipeline"):
        note(gpus, 1, None, None)
        note(gpus, 5, load(0, 45.23, 90), load(1, 42.18, None))
        note(gpus, 30, load(0, 48.5, 70), load(1, 1.0, None))
        note(gpus, 66, load(0, 2, 20), load(1, 1.0, None))
        gpus.conclude()
    assert [record.message for record in caplog.records] == [
        "GPU Memory Summary:\n  GPU 0: 45.23 GB used, 80.00 GB total\n  GPU 1: 42.18 GB used, 80.00 GB total",
        "GPU utilization: GPU 0 90 %, GPU 1 not told",
        "GPU Memory Summary:\n  GPU 0: 2.00 GB used, 80.00 GB total\n  GPU 1: 1.00 GB used, 80.00 GB total",
        "GPU utilization: GPU 0 20 %, GPU 1 not told",
        "GPU utilization over the run: GPU 0 60 % on average, at most 48.50 GB used; "
        "GPU 1 not told, at most 42.18 GB used",
    ]


# -- test why ----------------------------------------------------------------------------------------------------
# Why a job is where it is, and why it ran again.


SHARD_0, SHARD_1 = f"{CHAIN}/r1/generate/000", f"{CHAIN}/r1/generate/001"
TRAIN, LAST = f"{CHAIN}/r1/train", f"{CHAIN}/r2/train"


def explained(run: WrittenRun, job: str, earlier: WrittenRun | None = None, *, lives: bool = True) -> str:
    with run.folder.journal.open("ab") as engine:
        if lives:
            fcntl.flock(engine, fcntl.LOCK_EX)
        before = LoadedRun(earlier.folder) if earlier else None
        return "\n".join(explain_job(LoadedRun(run.folder), job, before, run.now))


def store_output(run: WrittenRun, job: str) -> None:
    store = LoadedRun(run.folder).store
    scratch = store.begin(store.scratch("t"), run.plan.jobs[job].key, 1)
    (scratch / "out.txt").write_text("x")
    store.commit(run.plan.jobs[job].key, scratch, {})


def ready(tmp_path: Path, **kind: object) -> WrittenRun:
    run = WrittenRun(tmp_path, chain_plan(), **kind)  # type: ignore[arg-type]
    run.worker(0, "gpu 7")
    return run


BEGUN = ("JobStarted", {"attempt": 1, "worker": 0})
FAILED = ("AttemptFailed", {"attempt": 1, "worker": 0, "kind": "bug", "reason": "ValueError: x", "retry": False})
RETRIED = ("AttemptFailed", {**FAILED[1], "kind": "out_of_memory", "reason": "no memory left", "retry": True})
LOST = {"worker": 0, "device": "gpu 7", "reason": "three jobs were lost on it", "failed_jobs": []}
HAPPENS: list[tuple[list[tuple[str, dict[str, Any]]], list[str]]] = [
    (
        [("JobStarted", {"job": SHARD_1, "attempt": 1, "worker": 0})],
        ["It waits for 2 of the 2 jobs that it reads:", f"{SHARD_0} (pending)", f"{SHARD_1} (running)"],
    ),
    ([BEGUN], ["It is running", "attempt 1 on worker 0 (gpu 7): running, 1.0 s"]),
    (
        [BEGUN, RETRIED, ("DeviceQuarantined", LOST)],
        [
            "It waits: attempt 1 failed (out_of_memory), another one follows: no memory left",
            "attempt 1 on worker 0 (gpu 7): failed (out_of_memory), 1.0 s: no memory left",
            "Worker 0 (gpu 7) is used no more: three jobs were lost on it",
        ],
    ),
    (
        [BEGUN, FAILED, ("JobFailed", {"attempts": 1, "kind": "bug", "reason": "ValueError: x"})],
        ["It is failed: after 1 attempt (bug): ValueError: x"],
    ),
    (
        [
            ("JobFailed", {"job": SHARD_0, "attempts": 1, "kind": "bug", "reason": "ValueError: y"}),
            ("JobBlocked", {"root_cause": SHARD_0}),
        ],
        [f"It is blocked: a job that it reads has failed, {SHARD_0}: ValueError: y"],
    ),
    ([("JobWaits", {"reason": "run 7 of other computes it"})], ["It waits: run 7 of other computes it"]),
    ([BEGUN, ("JobStopped", {"attempt": 1})], ["It waits: it was stopped and goes on in the next run"]),
    ([("JobFoundStored", {})], ["It is stored: another run finished it"]),
    (
        [BEGUN, ("JobReopened", {"reason": "out.txt does not have its checksum"})],
        ["It was made again in this run", "out.txt does not have its checksum"],
    ),
]


@pytest.mark.parametrize(("happens", "sentences"), HAPPENS)
def test_where_a_job_stands(
    tmp_path: Path, happens: list[tuple[str, dict[str, Any]]], sentences: list[str]
) -> None:
    run = ready(tmp_path)
    for event, fields in happens:
        run.write(event, **{"job": TRAIN, **fields} if event != "DeviceQuarantined" else fields)
    text = explained(run, TRAIN)
    assert [sentence for sentence in sentences if sentence not in text] == []


def test_a_job_whose_inputs_are_there_waits_for_a_worker_or_for_the_round(tmp_path: Path) -> None:
    run = ready(tmp_path, stored=[SHARD_0, SHARD_1])
    run.begin(LAST)
    assert "What it reads is there. It waits for a free worker; 1 job run" in explained(run, TRAIN)
    run = ready(tmp_path / "other", stored=[TRAIN])
    run.folder.config.write_text("execution:\n  barrier: round\n")
    assert "It waits for 2 jobs of earlier rounds (execution.barrier=round)." in explained(
        run, f"{CHAIN}/r2/generate/000"
    )


def again(tmp_path: Path, **plan: object) -> WrittenRun:
    return WrittenRun(tmp_path, chain_plan(**plan), "2026-01-03_10-00-00")  # type: ignore[arg-type]


def finished(tmp_path: Path) -> WrittenRun:
    run = ready(tmp_path)
    for job in run.plan.jobs:
        run.begin(job)
        run.finish(job)
    run.end(done=6)
    return run


def test_a_setting_that_changed_is_told_with_the_way_it_came(tmp_path: Path) -> None:
    first = finished(tmp_path)
    second = again(tmp_path, eta=0.5)
    assert "\n  algos.X.eta: 1.0 -> 0.5" in explained(second, TRAIN, first)
    text = explained(second, f"{CHAIN}/r2/generate/000", first)
    assert f"It is another job than in run {first.folder.path.name}, because" in text
    assert f"\n  {TRAIN} changed:\n    algos.X.eta: 1.0 -> 0.5" in text
    assert "same key" in explained(second, SHARD_0, first)


def test_the_same_key_ran_again_because_the_output_was_gone(tmp_path: Path) -> None:
    first = finished(tmp_path)
    second = again(tmp_path)
    second.begin(TRAIN)
    second.finish(TRAIN)
    text = explained(second, TRAIN, first)
    assert "its output was not in the store any more" in text
    assert "Its output cannot be used any more: " in text
    store_output(second, TRAIN)
    assert "cannot be used" not in explained(second, TRAIN, first)
