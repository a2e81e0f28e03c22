"""From a journal to the state of its run, and from a folder to a run."""

from pathlib import Path

from pipeline.runs.loaded import LoadedRun
from tests.doubles.runs import CHAIN, WrittenRun, chain_plan

SHARDS = [f"{CHAIN}/r1/generate/000", f"{CHAIN}/r1/generate/001"]
TRAIN = f"{CHAIN}/r1/train"


def written(tmp_path: Path, **kind: object) -> WrittenRun:
    run = WrittenRun(tmp_path, chain_plan(), **kind)  # type: ignore[arg-type]
    run.worker(0, "gpu 7")
    run.worker(1, "gpu 8")
    return run


def test_attempts_of_a_job_that_fails_in_the_end_and_what_it_blocks(tmp_path: Path) -> None:
    run = written(tmp_path)
    run.begin(SHARDS[0])
    run.write("WorkerExited", worker=0, exit_code=-9)
    run.fail_attempt(SHARDS[0], "lost", "worker 0 was lost", retry=True)
    between = LoadedRun(run.folder).view
    assert between.jobs[SHARDS[0]].status == "pending"
    assert between.workers[0].status == "gone"
    assert between.retries == {"lost": 1}
    run.worker(0, "gpu 7")
    run.begin(SHARDS[0], attempt=2)
    run.fail_attempt(SHARDS[0], "bug", "ValueError: x", retry=False, attempt=2)
    run.write("JobFailed", job=SHARDS[0], attempts=2, kind="bug", reason="ValueError: x")
    run.write("JobBlocked", job=TRAIN, root_cause=SHARDS[0])
    view = LoadedRun(run.folder).view
    job = view.jobs[SHARDS[0]]
    assert (job.status, job.reason, job.kind) == ("failed", "ValueError: x", "bug")
    assert [(a.number, a.outcome, a.kind, a.retry) for a in job.attempts] == [
        (1, "failed", "lost", True),
        (2, "failed", "bug", False),
    ]
    assert job.attempts[0].exit_code == -9
    assert view.blocked_by() == {SHARDS[0]: [TRAIN]}
    assert view.retries == {"lost": 1}
    assert view.workers[0].job_id == ""


def test_what_else_may_happen_to_a_job(tmp_path: Path) -> None:
    run = written(tmp_path)
    for job in SHARDS:
        run.begin(job)
        run.finish(job)
    run.write("JobReopened", job=SHARDS[0], reason="bytes differ")
    run.write("JobFoundStored", job=SHARDS[0])
    run.begin(TRAIN)
    run.write("JobStopped", job=TRAIN, attempt=1)
    run.write("JobWaits", job=f"{CHAIN}/r2/train", reason="another run computes it")
    run.write("DeviceQuarantined", worker=1, device="gpu 8", reason="lost thrice", failed_jobs=[TRAIN])
    run.write("WorkerExited", worker=1, exit_code=0)
    view = LoadedRun(run.folder).view
    assert view.workers[1].status == "quarantined"
    run.write("DeviceReleased", worker=1)
    assert LoadedRun(run.folder).view.quarantined == []
    reopened, train = view.jobs[SHARDS[0]], view.jobs[TRAIN]
    assert (reopened.status, reopened.found_stored, reopened.reopened) == ("stored", True, ["bytes differ"])
    assert (train.status, train.stopped, train.attempts[0].outcome) == ("pending", True, "stopped")
    assert view.jobs[f"{CHAIN}/r2/train"].waits == "another run computes it"
    assert [(place.device, place.jobs) for place in view.quarantined] == [("gpu 8", (TRAIN,))]
