"""Why a job is where it is, and why it ran again."""

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.runs.loaded import LoadedRun
from pipeline.runs.report.status import explain_job, explain_request
from tests.doubles.runs import CHAIN, WrittenRun, chain_plan

FIRST, SECOND = f"{CHAIN}/r1/generate/000", f"{CHAIN}/r1/generate/001"
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


def waits_for_inputs(run: WrittenRun) -> None:
    run.begin(SECOND)


def runs(run: WrittenRun) -> None:
    run.begin(TRAIN)


def is_retried(run: WrittenRun) -> None:
    run.begin(TRAIN)
    run.fail_attempt(TRAIN, "out_of_memory", "no memory left", retry=True)


def has_failed(run: WrittenRun) -> None:
    run.begin(TRAIN)
    run.fail_attempt(TRAIN, "bug", "ValueError: x", retry=False)
    run.write("JobFailed", job=TRAIN, attempts=1, kind="bug", reason="ValueError: x")


def is_blocked(run: WrittenRun) -> None:
    run.write("JobFailed", job=FIRST, attempts=1, kind="bug", reason="ValueError: y")
    run.write("JobBlocked", job=TRAIN, root_cause=FIRST)


def waits_for_another_run(run: WrittenRun) -> None:
    run.write("JobWaits", job=TRAIN, reason="run 7 of other computes it")


def was_stopped(run: WrittenRun) -> None:
    run.begin(TRAIN)
    run.write("JobStopped", job=TRAIN, attempt=1)


def was_found(run: WrittenRun) -> None:
    run.write("JobFoundStored", job=TRAIN)


def was_reopened(run: WrittenRun) -> None:
    run.begin(TRAIN)
    run.finish(TRAIN)
    run.write("JobReopened", job=TRAIN, reason="out.txt does not have its checksum")


def lost_its_device(run: WrittenRun) -> None:
    is_retried(run)
    run.write("DeviceQuarantined", worker=0, device="gpu 7", reason="three jobs were lost on it", failed_jobs=[])


@pytest.mark.parametrize(
    ("happens", "sentences"),
    [
        (
            waits_for_inputs,
            ["It waits for 2 of the 2 jobs that it reads:", f"{FIRST} (pending)", f"{SECOND} (running)"],
        ),
        (runs, ["It is running", "attempt 1 on worker 0 (gpu 7): running, 1.0 s"]),
        (
            is_retried,
            [
                "It waits: attempt 1 failed (out_of_memory), another one follows: no memory left",
                "attempt 1 on worker 0 (gpu 7): failed (out_of_memory), 1.0 s: no memory left",
                f"jobs/{TRAIN}/log.txt",
            ],
        ),
        (has_failed, ["It is failed: after 1 attempt (bug): ValueError: x"]),
        (is_blocked, [f"It is blocked: a job that it reads has failed, {FIRST}: ValueError: y"]),
        (waits_for_another_run, ["It waits: run 7 of other computes it"]),
        (
            was_stopped,
            ["It waits: it was stopped and goes on in the next run"],
        ),
        (was_found, ["It is stored: another run finished it"]),
        (was_reopened, ["It was made again in this run", "out.txt does not have its checksum"]),
        (lost_its_device, ["Worker 0 (gpu 7) is used no more: three jobs were lost on it"]),
    ],
)
def test_where_a_job_stands(tmp_path: Path, happens: Callable[[WrittenRun], None], sentences: list[str]) -> None:
    run = ready(tmp_path)
    happens(run)
    text = explained(run, TRAIN)
    for sentence in sentences:
        assert sentence in text


def test_a_job_whose_inputs_are_there_waits_for_a_worker_or_for_the_round(tmp_path: Path) -> None:
    run = ready(tmp_path, stored=[FIRST, SECOND])
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
    assert "same key" in explained(second, FIRST, first)


def test_the_same_key_ran_again_because_the_output_was_gone(tmp_path: Path) -> None:
    first = finished(tmp_path)
    second = again(tmp_path)
    second.begin(TRAIN)
    second.finish(TRAIN)
    text = explained(second, TRAIN, first)
    assert "its output was not in the store any more" in text
    assert "The same command would run it again" in text
    store_output(second, LAST)
    store_output(second, f"{CHAIN}/r2/generate/000")
    text = explained(second, TRAIN, first)
    assert "The same command would not run it again" in text


def test_a_request_that_is_not_started(tmp_path: Path) -> None:
    run = finished(tmp_path)
    recorded = LoadedRun(run.folder)

    def asked(job: str, **plan: object) -> str:
        return "\n".join(explain_request(recorded, chain_plan(**plan), job, recorded.store))  # type: ignore[arg-type]

    assert f"{TRAIN} would run: nothing is stored" in asked(TRAIN)
    assert "the same key" in asked(TRAIN)
    assert "checkpoint" not in asked(TRAIN)
    recorded.store.checkpoints(run.plan.jobs[TRAIN].key).mkdir(parents=True)
    assert "a checkpoint is there" in asked(TRAIN)
    for job in run.plan.jobs:
        store_output(run, job)
    assert f"{TRAIN} would not run: its output is stored" in asked(TRAIN)
    other = asked(LAST, eta=0.5)
    assert f"{LAST} would run" in other
    assert "\n  algos.X.eta: 1.0 -> 0.5" in other
    assert "has no such job" in asked(f"{CHAIN}/r3/train", rounds=3)
    damaged = recorded.store.path(run.plan.jobs[LAST].key) / "out.txt"
    damaged.write_text("longer")
    assert f"{LAST} would run: what is stored" in asked(LAST)
