"""Jobs that speak for their worker, or spoil it: the engine and all other jobs go on."""

import signal

import pytest

from pipeline.config.schema import RetryConfig
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.state import JobStatus
from tests.doubles.engine import Engine, job

pytestmark = pytest.mark.timeout(60)

LIES = {
    "orders": (["Shutdown", {}], "it sent what is no message (a message here is"),
    "types": (["Heartbeat", {"rss_bytes": 1, "gpu": ["GPU 0"]}], "expected `object"),
    "kind": (
        ["JobRaised", {"job_id": "bad", "attempt": 1, "error_type": "E", "message": "", "traceback": "",
                       "run_s": 0, "kind": "no such kind"}],
        "at `$.kind`",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def after_lies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, Outcome]:
    """A run in which each of them is told."""
    engine = Engine(tmp_path_factory.mktemp("lies"))
    told = [job(f"bad/{name}", "speak_for_the_worker", payload={"says": says}) for name, (says, _) in LIES.items()]
    below = [job(f"below/{name}", needs=[f"bad/{name}"]) for name in LIES]
    good = job("good/0"), job("good/1", needs=["good/0"])
    outcome = engine.run(*told, *below, *good, retry=RetryConfig(worker_lost=1, device_failures=99))
    assert engine.leftovers() == []
    return engine, outcome


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_costs_the_attempt_in_which_it_was_told(after_lies: tuple[Engine, Outcome], lie: str) -> None:
    engine, outcome = after_lies
    ends = {name: outcome.jobs[name].value for name in (f"bad/{lie}", f"below/{lie}", "good/0", "good/1")}
    assert list(ends.values()) == ["failed", "blocked", "done", "done"]
    assert LIES[lie][1] in outcome.reason(f"bad/{lie}")
    (failure,) = engine.events("AttemptFailed", f"bad/{lie}")
    assert (failure["kind"], failure["exit_code"]) == ("lost", -signal.SIGKILL)
    assert len(engine.events("AttemptFailed")) == len(LIES)


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
    assert [event["job"] for event in engine.events("JobStarted")] == [one.id for one in jobs], "each once"
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
        job("stops", "stop_own_group", seconds=5),
    ]
    good = [job("next", seconds=4), job("last", seconds=3), job("nothing", "nothing", seconds=2)]
    outcome = engine.run(*bad, job("below", needs=["forges"]), *good, workers=1, retry=RetryConfig(worker_lost=1))
    assert {name: status.value for name, status in outcome.jobs.items()} == {
        "forges": "failed", "renames": "failed", "masked": "failed", "stops": "done",
        "below": "blocked", "next": "done", "last": "done", "nothing": "done",
    }  # fmt: skip
    kinds = {event["job"]: event["kind"] for event in engine.events("AttemptFailed")}
    assert kinds == {"forges": "lost", "renames": "lost", "masked": "bug"}
    assert outcome.reason("forges").startswith("worker 0 was killed: it said that forges is done, and nothing is")
    assert not outcome.halted
