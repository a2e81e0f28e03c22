"""What becomes of failed attempts and of the devices on which they failed."""

import pytest

from pipeline.config.schema import RetryConfig
from pipeline.engine.devices.select import Layout, Place
from pipeline.engine.scheduler.attempts import review_devices
from pipeline.engine.scheduler.run import OnDisk, Say
from pipeline.engine.workers.messages import FailureKind, WorkerExited
from tests.doubles.engine import job, key
from tests.doubles.on_paper import OnPaper

LOST, MEMORY = FailureKind.lost, FailureKind.out_of_memory
PATIENT = RetryConfig(worker_lost=9, device_failures=3)


def shared(*sizes_mb: int) -> Layout:
    """GPUs that take two jobs each."""
    places = tuple(Place(label=f"GPU {at}", free_mb=size, usable_mb=size) for at, size in enumerate(sizes_mb))
    return Layout(places=places, slots=2, vouched=False)


# -- jobs ------------------------------------------------------------------------------------------------------


def test_a_job_that_failed_on_one_device_is_tried_on_another() -> None:
    paper = OnPaper(job("a"))
    assert paper.start() == ["send a to 0"]
    assert paper.fail("a", LOST) == ["WorkerExited", "AttemptFailed a"]
    failed = paper.record("AttemptFailed")
    assert (failed["kind"], failed["retry"], failed["worker"], failed["exit_code"]) == ("lost", True, 0, -9)
    assert failed["log"] == "jobs/a/log.txt"
    assert "a: attempt 1 failed, trying again: worker 0 was lost (signal 9 (SIGKILL))" in paper.said()
    paper.ready(0)
    assert paper.start() == ["send a to 1"]
    assert [attempt.outcome for attempt in paper.run.attempts] == ["lost"]


def test_a_job_that_is_given_up_blocks_what_needs_it() -> None:
    paper = OnPaper(job("a"), job("b", needs=["a"]), job("c", needs=["b"]), job("d"), workers=1)
    paper.start()
    decided = paper.fail("a", FailureKind.bug, message="why\nmore")
    assert decided == ["AttemptFailed a", "JobFailed a", "JobBlocked b", "JobBlocked c"]
    assert paper.record("JobFailed") == {"job": "a", "attempts": 1, "kind": "bug", "reason": "E: why"}
    assert "a failed: E: why (log: /run/jobs/a/log.txt)" in paper.said()
    assert paper.jobs() == {"a": "failed", "b": "blocked", "c": "blocked", "d": "ready"}


def test_the_budget_is_for_each_kind_of_failure() -> None:
    paper = OnPaper(job("a"), retry=RetryConfig(worker_lost=2))
    for kind in (LOST, FailureKind.device, LOST):
        paper.start()
        decided = paper.fail("a", kind)
        paper.ended(*paper.run.renewed)
        paper.ready(*(at for at, phase in enumerate(paper.phases()) if phase == "starting"))
    assert "JobFailed a" in decided
    assert "set aside after it ended 2 workers" in paper.run.state.jobs["a"].reason


def test_a_passing_fault_is_waited_out() -> None:
    paper = OnPaper(job("a"), retry=RetryConfig(wait_s=2.0))
    for wait_s in (2.0, 4.0):
        paper.start()
        paper.fail("a", FailureKind.transient)
        assert paper.record("AttemptFailed")["wait_s"] == wait_s
        assert f"trying again in {wait_s:g} s" in paper.said()
        paper.wait(wait_s - 0.1)
        assert paper.start() == []
        paper.wait(0.1)
    assert paper.start() == ["send a to 0"]


@pytest.mark.parametrize("kind", [MEMORY, FailureKind.device], ids=lambda kind: kind.value)
def test_what_may_have_broken_the_process_is_tried_in_a_fresh_one(kind: FailureKind) -> None:
    paper = OnPaper(job("a"), job("b", needs=["a"]), workers=1)
    paper.start()
    assert paper.fail("a", kind) == ["AttemptFailed a", "restart 0"]
    assert paper.start() == []
    assert paper.ended(0) == ["WorkerExited"]  # which is no loss
    paper.ready(0)
    assert paper.start() == ["send a to 0"]


# -- damage ----------------------------------------------------------------------------------------------------


def damaged(paper: OnPaper, job_id: str, of: str, on_disk: OnDisk) -> list[str]:
    return paper.fail(job_id, FailureKind.damaged_input, on_disk, damaged_key=key(of))


def test_a_damaged_input_is_made_again_with_what_that_takes() -> None:
    plan = (job("x"), job("a", needs=["x"]), job("b", needs=["a"]), job("c", needs=["b"]))
    paper = OnPaper(*plan, stored=["x", "a", "b"])
    paper.start()
    seen = OnDisk(problem="a.bin: wrong checksum", maker="b", missing=frozenset({"a"}))
    decided = damaged(paper, "c", "b", seen)
    made_again = [f"set aside {key('b')[:4]}", "JobReopened b", "JobReopened a"]
    # The worker may keep a model of what it has read.
    assert decided == ["AttemptFailed c", *made_again, "restart 0"]
    assert paper.jobs() == {"x": "stored", "a": "ready", "b": "pending", "c": "pending"}
    for name in "abc":
        assert paper.start() == [f"send {name} to 1"]
        paper.finish(name)


# -- devices ---------------------------------------------------------------------------------------------------


def lose(paper: OnPaper, *names: str, on: int) -> list[str]:
    """Let each of some jobs die on a worker while another job keeps every other worker busy."""
    decided: list[str] = []
    for name in names:
        paper.run.state.start(name, on, (), paper.run.now_s)
        paper.begin(name)
        decided += paper.ended(on)
        if paper.phases()[on] == "starting":
            paper.ready(on)
    return decided


def test_a_device_that_fails_three_jobs_in_a_row_is_given_no_more() -> None:
    paper = OnPaper(*(job(name, seconds=1) for name in "abcd"), retry=PATIENT)
    decided = lose(paper, "a", "b", "c", on=0)
    assert decided[-2:] == ["AttemptFailed c", "DeviceQuarantined"]
    quarantined = paper.record("DeviceQuarantined")
    assert (quarantined["worker"], quarantined["device"], quarantined["failed_jobs"]) == (
        0,
        "cpu 0",
        ["a", "b", "c"],
    )
    assert paper.phases() == ["quarantined", "idle"]
    assert [words for words in paper.start() if words.endswith("to 0")] == []


def test_a_device_is_taken_back_when_the_same_jobs_fail_elsewhere() -> None:
    paper = OnPaper(*(job(name) for name in "abcd"), retry=PATIENT)
    lose(paper, "a", "b", "c", on=0)
    assert lose(paper, "a", on=1) == ["WorkerExited", "AttemptFailed a", "DeviceReleased"]
    assert paper.phases()[0] == "starting"
    paper.ready(0)
    assert paper.phases() == ["idle", "idle"]


def test_a_job_beside_those_that_fail_may_finish_and_proves_that_the_device_works() -> None:
    jobs = [job(name, memory_mb=10) for name in ("good", "a", "b")]
    paper = OnPaper(*jobs, layout=shared(100, 50), retry=RetryConfig(worker_lost=9, device_failures=2))
    paper.run.state.start("good", 0)
    decided = lose(paper, "a", "b", on=2)
    assert decided.count("DeviceQuarantined") == 2
    assert paper.finish("good")[-2:] == ["DeviceReleased"] * 2
    assert paper.phases() == ["idle", "idle", "starting", "idle"]


def test_a_device_whose_memory_did_not_come_back_is_given_up_unless_it_is_the_last() -> None:
    paper = OnPaper(job("a"))
    paper.run.state.worker_lost(0)
    decided = paper.ready(0, unfit="GPU 0: 9 MB are taken")
    assert decided == ["WorkerStarted", "DeviceQuarantined"]
    paper.run.state.worker_lost(1)
    assert paper.ready(1, unfit="GPU 1: 9 MB are taken") == ["WorkerStarted"]
    assert "worker 1 has the last device and goes on with it, though GPU 1: 9 MB are taken" in paper.said()
    assert [effect.level for effect in paper.effects if isinstance(effect, Say)] == [20, 30]


def test_a_device_that_reports_a_fault_stays_aside_when_its_jobs_fail_elsewhere() -> None:
    paper = OnPaper(*(job(name) for name in "abcd"), retry=PATIENT)
    lose(paper, "a", "b", "c", on=0)
    assert paper.ready(0, unfit="GPU 0: 95 °C") == ["WorkerStarted"]
    assert "last device" not in paper.said()
    assert "GPU 0: 95 °C" in paper.said()
    assert lose(paper, "a", on=1) == ["WorkerExited", "AttemptFailed a"]
    assert paper.phases()[0] == "quarantined"


def test_devices_given_up_together_do_not_fail_a_waiting_job_twice() -> None:
    paper = OnPaper(job("gang", devices=2), job("a"), workers=3, retry=RetryConfig(device_failures=1))
    for worker in range(2):
        paper.run.state.workers[worker].fresh = False
    paper.start()
    assert "gang" in paper.run.gathering
    for device in range(2):
        paper.run.state.blame.failed(f"earlier {device}", device, LOST)
    review_devices(paper.run)
    assert paper.decided() == ["DeviceQuarantined", "DeviceQuarantined", "AttemptFailed gang"]


# -- several machines --------------------------------------------------------------------------------------------


def test_a_lost_machine_costs_the_attempts_on_it_and_nobody_is_blamed() -> None:
    paper = OnPaper(job("a"), job("b"), retry=RetryConfig(device_failures=1))
    paper.start()
    for index in range(2):
        paper.hear(index, WorkerExited(exit_code=None, how="its node was lost", elsewhere=True))
    assert "b: trying again elsewhere: worker 1 was lost (its node was lost)" in paper.said()
    assert not paper.run.state.blame.failed_on("a")
    assert "quarantined" not in paper.phases()
