"""Jobs and workers that go wrong: what it costs, what is said, and that nothing is left behind."""

import json
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.config.schema import Backend, RetryConfig
from pipeline.engine.devices import inventory
from pipeline.engine.scheduler.state import JobStatus
from pipeline.engine.store.store import NOT_STORED
from pipeline.engine.workers.messages import FromWorker, WorkerExited
from pipeline.engine.workers.pool import Pool
from pipeline.errors import WorkerError
from tests.doubles.engine import Engine, job
from tests.doubles.machine import is_living

GOOD = (job("good/0"), job("good/1"), job("good/2", needs=["good/0", "good/1"]))


def statuses(engine_outcome: object) -> dict[str, str]:
    return {name: status.value for name, status in engine_outcome.jobs.items()}  # type: ignore[attr-defined]


def test_short_jobs_run_once_each_whoever_dies_or_raises(engine: Engine, tmp_path: Path) -> None:
    odd = {"crowd/030": {"dies": True}, "crowd/060": {"raises": True}, "crowd/090": {"dies": True}}
    names = [f"crowd/{number:03}" for number in range(120)]
    signed = tmp_path / "list"
    outcome = engine.run(
        *(job(name, "sign_in", payload={"list": str(signed), **odd.get(name, {})}) for name in names)
    )
    died, raised = {"crowd/030", "crowd/090"}, {"crowd/060"}
    assert {name for name, status in outcome.jobs.items() if status is not JobStatus.done} == raised
    expected = Counter({f"{name} 1": 1 for name in names}) + Counter({f"{name} 2": 1 for name in died})
    assert Counter(signed.read_text().splitlines()) == expected
    started = Counter(f"{event['job']} {event['attempt']}" for event in engine.events("JobStarted"))
    assert started == expected, "the journal knows of each"
    assert Counter(event["job"] for event in engine.events("JobFinished")) == Counter(set(names) - raised)
    blamed = Counter((event["job"], event["kind"]) for event in engine.events("AttemptFailed"))
    assert blamed == Counter([*((name, "lost") for name in died), *((name, "bug") for name in raised)])
    ends = {(attempt.worker, attempt.ended_s) for attempt in outcome.attempts}
    assert any((attempt.worker, attempt.sent_s) in ends for attempt in outcome.attempts), "none had any ahead"


def test_children_of_a_lost_worker_do_not_outlive_it(engine: Engine, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    engine.run(
        job("parent", "leave_grandchild", payload={"flag": str(flag), "die": True}),
        workers=1,
        retry=RetryConfig(worker_lost=1),
    )
    pids = json.loads(flag.read_text())
    assert len(pids) == 4
    assert all(map(gone, pids))


def test_a_job_that_leaves_something_that_writes_on_fails(engine: Engine) -> None:
    writes = job("writes", "write_on_in_the_background")
    outcome = engine.run(writes, workers=1)
    assert [attempt.outcome for attempt in outcome.attempts] == ["bug"]
    assert engine.store.problem(writes.key) == NOT_STORED


def test_workers_that_cannot_start_end_the_run(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(inventory.FIXED, "PYTHONHOME", "/nowhere")
    with pytest.raises(WorkerError, match=r"3 times in a row before it began a job.*exit code 1") as error:
        engine.run(*GOOD)
    assert "encodings" in str(error.value)


def test_a_worker_that_ignores_requests_to_stop_is_killed_and_the_journal_tells_that_at_once(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch system kills the engine when its own grace is over."""
    flag, stop, seen = tmp_path / "flag", Pool.stop, []

    def watched(self: Pool, deliver: Callable[[int, FromWorker], None], **options: Any) -> None:
        def hear(index: int, message: FromWorker) -> None:
            deliver(index, message)
            if isinstance(message, WorkerExited):
                seen.append((engine.run_dir / "journal.jsonl").read_text().count('"WorkerExited"'))

        stop(self, hear, **options)

    monkeypatch.setattr(Pool, "stop", watched)
    stop_when(flag)
    outcome = engine.run(job("stubborn", "ignore_requests_to_stop", payload={"flag": str(flag)}), stop_grace_s=0.2)
    assert seen == [1, 2]
    assert outcome.interrupted == "SIGINT"
    assert all(map(gone, json.loads(flag.read_text())))
    assert -signal.SIGKILL in [event["exit_code"] for event in engine.events("WorkerExited")]


# What a signal means to the engine does not depend on its workers; `test_engine_recovery` sends them others.
@pytest.mark.parametrize(
    ("number", "name", "backend"),
    [
        (signal.SIGTERM, "SIGTERM", Backend.inline),
        (signal.SIGHUP, "SIGHUP", Backend.local),
    ],
)
def test_an_interrupted_run_stops_its_workers(
    engine: Engine, tmp_path: Path, backend: Backend, number: signal.Signals, name: str
) -> None:
    flag, unwound = tmp_path / "flag", tmp_path / "unwound"
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    stop_when(flag, number)
    payload = {"flag": str(flag), "unwound": str(unwound)}
    outcome = engine.run(
        job("slow", "unwind_when_stopped", payload=payload),
        job("below", needs=["slow"]),
        workers=1,
        backend=backend,
        stop_grace_s=0.3,
    )
    assert outcome.interrupted == name
    assert statuses(outcome) == {"slow": "ready", "below": "pending"}
    assert unwound.exists()
    assert engine.journal[-1]["interrupted"] == name
    assert engine.events("AttemptFailed") == []
    assert [attempt.outcome for attempt in outcome.attempts] == ["stopped"]
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers


def stop_when(flag: Path, number: signal.Signals = signal.SIGINT, times: int = 1) -> None:
    """Send this process a signal once a job has made the file."""

    def wait_and_signal() -> None:
        pause = threading.Event()
        while not flag.exists() or not flag.read_text():
            pause.wait(0.02)
        for _ in range(times):
            pause.wait(0.1)
            psutil.Process().send_signal(number)

    threading.Thread(target=wait_and_signal, daemon=True).start()


def gone(pid: int) -> bool:
    return not is_living(pid)
