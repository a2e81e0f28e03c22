"""What follows when a worker says something, ends, or hangs."""

from dataclasses import replace

import pytest

from pipeline.config.schema import RetryConfig
from pipeline.engine.scheduler.run import OnDisk, ReleaseClaim
from pipeline.engine.workers.messages import (
    AttemptStopped,
    JobFinished,
    JobProgress,
    JobStarted,
    Report,
    WorkerReady,
)
from tests.doubles.engine import job
from tests.doubles.on_paper import OnPaper

FINISHED = JobFinished(job_id="a", attempt=1, load_s=0.5, run_s=2.0, samples=3, tokens=7, peak_mb=9)


def running(*more: object, workers: int = 2, **settings: object) -> OnPaper:
    """A run in which `a` has begun on worker 0."""
    paper = OnPaper(job("a", seconds=9), *more, workers=workers, **settings)  # type: ignore[arg-type]
    paper.start()
    paper.begin("a")
    return paper


# -- a calm run ------------------------------------------------------------------------------------------------


def test_an_attempt_is_in_the_journal_and_in_the_books() -> None:
    paper = running(job("b", needs=["a"]))
    paper.run.now_s = 4.0
    assert paper.hear(0, FINISHED, OnDisk(stored=True)) == ["JobFinished a"]
    assert paper.record("JobFinished") == {
        "job": "a", "attempt": 1, "worker": 0, "load_s": 0.5, "run_s": 2.0, "samples": 3, "tokens": 7, "peak_mb": 9
    }  # fmt: skip
    assert ReleaseClaim("a") in paper.effects
    (attempt,) = paper.run.attempts
    assert (attempt.outcome, attempt.sent_s, attempt.ended_s, attempt.load_s) == ("done", 0.0, 4.0, 0.5)
    assert paper.jobs() == {"a": "done", "b": "ready"}


def test_a_process_that_a_job_has_changed_is_replaced() -> None:
    paper = running(job("b", needs=["a"]), workers=1)
    assert paper.finish("a", left_changed="the umask")[-1] == "restart 0"
    assert "worker 0: a has left changed: the umask" in paper.said()
    assert paper.start() == []
    assert paper.ended(0) == ["WorkerExited"]
    assert not paper.said()


# -- what hangs ------------------------------------------------------------------------------------------------


def test_a_worker_that_hangs_is_killed_and_what_it_still_says_does_not_count() -> None:
    paper = running(heartbeat_timeout_s=5.0)
    assert paper.wait(4.9) == []
    assert paper.wait(0.1) == ["abort 0"]
    assert "worker 0: a: no sign of life for execution.heartbeat_timeout_s=5; killing it" in paper.said()
    assert paper.hear(0, FINISHED, OnDisk(stored=True)) == []
    assert "JobFinished of 'a'" in paper.said()
    assert paper.hear(0, FINISHED, OnDisk(stored=True)) == []
    assert not paper.said()  # told once
    paper.ended(0)
    failed = paper.record("AttemptFailed")
    assert (failed["kind"], failed["exit_code"]) == ("hang", -9)
    assert paper.wait(99) == []


def test_progress_is_what_keeps_a_job_from_hanging_and_not_for_ever() -> None:
    paper = running(progress_timeout_s=5.0, job_timeout_s=12.0, heartbeat_timeout_s=99.0)
    for done in (1, 2, 3):
        assert paper.wait(4) == ([] if done < 3 else ["abort 0"])
        paper.hear(0, JobProgress(job_id="a", attempt=1, done=done, total=9, tokens=0))
    assert paper.run.doomed[0].message == "worker 0 was killed: took longer than execution.job_timeout_s=12"


# -- nonsense --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        JobStarted(job_id="nobody", attempt=1),
        JobStarted(job_id="a", attempt=2),
        JobStarted(job_id="a", attempt=1),
        JobFinished(job_id="b", attempt=1, load_s=0, run_s=1, samples=0, tokens=0),
        JobProgress(job_id="wide", attempt=1, done=1, total=1, tokens=1),
        WorkerReady(pid=1, device="another"),
    ],
    ids=lambda message: f"{type(message).__name__} {getattr(message, 'job_id', '')}",
)
@pytest.mark.parametrize("worker", [0, 1, 2], ids=["runs a", "was given b", "lends its device"])
def test_what_cannot_be_true_counts_for_nothing(worker: int, message: Report) -> None:
    jobs = [job("a", seconds=9), job("b", seconds=8), job("wide", devices=2)]
    paper = OnPaper(*jobs, workers=4)
    paper.start()
    paper.begin("a")
    paper.begin("wide")
    if (worker, getattr(message, "job_id", "")) == (1, "wide"):
        pytest.skip("it leads that job")
    before = paper.jobs(), paper.phases(), [replace(one) for one in paper.run.state.workers]
    assert paper.hear(worker, message, OnDisk(stored=True)) == []
    assert (paper.jobs(), paper.phases(), paper.run.state.workers) == before


def test_a_job_is_done_when_its_output_is_there() -> None:
    paper = running()
    assert paper.hear(0, FINISHED, OnDisk(stored=False)) == ["dismiss 0"]
    assert paper.run.doomed[0].message.endswith("it said that a is done, and nothing is stored")
    assert paper.jobs() == {"a": "running"}


# -- requests to stop ------------------------------------------------------------------------------------------


def test_a_job_that_stops_unasked_is_tried_again_and_not_for_ever() -> None:
    paper = OnPaper(job("a"), retry=RetryConfig(worker_lost=1), workers=1)
    ends = []
    for attempt in range(1, 12):
        paper.start()
        paper.begin("a")
        ends.append(paper.hear(0, AttemptStopped(job_id="a", attempt=attempt)))
        paper.ended(0, exit_code=0)
        paper.ready(0)
    assert ends[:10] == [["JobStopped a", "restart 0"]] * 10
    assert ends[10] == ["JobStopped a", "AttemptFailed a", "JobFailed a", "restart 0"]
    assert "asked to stop once more, and not by the engine" in paper.run.state.jobs["a"].reason


@pytest.mark.parametrize("exit_code", [0, -9])
def test_a_job_that_its_worker_had_not_begun_goes_to_another_at_no_cost(exit_code: int) -> None:
    paper = OnPaper(job("a"), retry=RetryConfig(worker_lost=1))
    paper.start()
    assert paper.ended(0, exit_code=exit_code) == ["WorkerExited"]
    assert paper.start() == ["send a to 1"]
    assert not paper.run.state.jobs["a"].failures
