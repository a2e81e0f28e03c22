"""Jobs that speak for their worker, or spoil it: the engine and all other jobs go on."""

import signal

import pytest

from pipeline.config.schema import RetryConfig
from pipeline.engine.scheduler.job_state import JobStatus
from tests.doubles.engine import Engine, job

pytestmark = pytest.mark.timeout(60)

LIES = {
    "orders": (["Shutdown", {}], "it sent what is no message (a message here is one of"),
    "types": (["Heartbeat", {"rss_bytes": 1, "gpu": ["GPU 0"]}], "expected `object"),
    "kind": (
        ["JobRaised", {"job_id": "bad", "attempt": 1, "error_type": "E", "message": "", "traceback": "",
                       "run_s": 0, "kind": "no such kind"}],
        "at `$.kind`",
    ),
    "ready": (["WorkerReady", {"pid": 1, "device": "cpu"}], "it said twice that it is ready"),
    "unknown": (["JobStarted", {"job_id": "nobody", "attempt": 1}], "which is no job of this run"),
}  # fmt: skip


@pytest.mark.parametrize(("says", "reason"), LIES.values(), ids=LIES)
def test_a_lie_costs_the_attempt_in_which_it_was_told(engine: Engine, says: object, reason: str) -> None:
    outcome = engine.run(
        job("bad", "speak_for_the_worker", payload={"says": says}),
        job("below", needs=["bad"]),
        job("good/0"),
        job("good/1", needs=["good/0"]),
        retry=RetryConfig(worker_lost=1),
    )
    assert {name: status.value for name, status in outcome.jobs.items()} == {
        "bad": "failed", "below": "blocked", "good/0": "done", "good/1": "done"
    }  # fmt: skip
    assert reason in outcome.reason("bad")
    (failure,) = engine.events("AttemptFailed")
    assert (failure["kind"], failure["exit_code"]) == ("lost", -signal.SIGKILL)


def test_a_copy_of_the_worker_that_raises_ends_alone(engine: Engine) -> None:
    outcome = engine.run(
        job("forks", "fork_and_leave", payload={"raises": True}), job("next", needs=["forks"]), workers=1
    )
    assert set(outcome.jobs.values()) == {JobStatus.done}
    assert "RuntimeError: the copy raises" in engine.log("forks")
    assert [event["job"] for event in engine.events("JobFinished")] == ["forks", "next"]
    assert len(engine.events("WorkerStarted")) == 1


def test_jobs_after_one_that_spoiled_its_process_get_another(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = []
    for place, what in enumerate(("open", "streams", "folder")):  # longer jobs go first
        jobs.append(job(f"spoil/{what}", "spoil", payload={"what": what}, seconds=9 - 2 * place))
        jobs.append(job(f"after/{what}", "print_everywhere", seconds=8 - 2 * place))
    with caplog.at_level("WARNING", "pipeline"):
        outcome = engine.run(*jobs, workers=1)
    assert set(outcome.jobs.values()) == {JobStatus.done}
    assert len(engine.events("WorkerStarted")) == 4
    said = [record.getMessage() for record in caplog.records if "left changed" in record.getMessage()]
    assert said[0] == "worker 0: spoil/open has left changed: built-in functions"
    assert "the standard streams" in said[1]
    assert "the working directory" in said[2]


def test_what_a_job_does_to_its_worker_costs_no_other_job(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    end = {"job_id": "forges", "attempt": 1, "load_s": 0, "run_s": 0, "samples": 0, "tokens": 0}
    bad = [
        job("forges", "speak_for_the_worker", payload={"says": ["JobFinished", end]}, seconds=9),
        job("renames", "do_without_renaming", seconds=8),
        job("masked", "raise_masked", seconds=7),
        job("limits", "lower_own_limit", seconds=6),
        job("stops", "stop_own_group", seconds=5),
    ]
    good = [job("next", seconds=4), job("last", seconds=3), job("nothing", "nothing", seconds=2)]
    outcome = engine.run(*bad, job("below", needs=["forges"]), *good, workers=1, retry=RetryConfig(worker_lost=1))
    assert {name: status.value for name, status in outcome.jobs.items()} == {
        "forges": "failed", "renames": "failed", "masked": "failed", "limits": "failed", "stops": "done",
        "below": "blocked", "next": "done", "last": "done", "nothing": "done",
    }  # fmt: skip
    kinds = {event["job"]: event["kind"] for event in engine.events("AttemptFailed")}
    assert kinds == {"forges": "lost", "renames": "lost", "masked": "bug", "limits": "bug"}
    assert outcome.reason("forges").startswith("worker 0 was killed: it said that forges is done, and nothing is")
    assert not outcome.halted
