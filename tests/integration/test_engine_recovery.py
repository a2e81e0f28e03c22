"""What the engine does about faults beyond one job: devices, damage, full disks, requests to stop."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from pipeline.config.schema import Backend
from pipeline.engine.journal import Journal, JournalReader
from pipeline.engine.scheduler.state import JobStatus
from pipeline.errors import StoreError
from tests.doubles.engine import Engine, describe, job, key

# -- damage ----------------------------------------------------------------------------------------------------


def test_an_input_that_was_damaged_meanwhile_is_made_again(engine: Engine, tmp_path: Path) -> None:
    victim = engine.store.path(key("first"))
    payload = {"victim": str(victim), "flag": str(tmp_path / "flag")}
    outcome = engine.run(
        job("first", payload={"value": 1}),
        job("vandal", "damage_own_input", needs=["first"], payload=payload),
        job("reader", needs=["first", "vandal"]),
        workers=1,
    )
    assert set(outcome.jobs.values()) == {JobStatus.done}
    assert [event["job"] for event in engine.events("JobReopened")] == ["first"]
    assert [event["kind"] for event in engine.events("AttemptFailed")] == ["damaged_input"]
    assert engine.store.has(key("first"))
    assert list((engine.store.root / ".aside").iterdir())


# -- disks -----------------------------------------------------------------------------------------------------


def test_a_full_disk_ends_the_run_and_keeps_what_is_there(engine: Engine) -> None:
    plan = (job("first"), job("full", "fill_the_disk", needs=["first"]), job("below", needs=["full"]))
    outcome = engine.run(*plan, workers=1)
    assert "No space left on device" in outcome.halted
    assert f"outputs go to {engine.store.root}. Free space there (python -m pipeline store gc)" in outcome.halted
    assert outcome.jobs == {
        "first": JobStatus.done,
        "full": JobStatus.ready,
        "below": JobStatus.pending,
    }
    assert engine.events("AttemptFailed")[0]["kind"] == "storage"
    assert engine.journal[-1]["event"] == "RunFinished"
    assert engine.store.problem(key("full")) == "not stored"
    again = engine.run(plan[0], job("full", needs=["first"]), plan[2], backend=Backend.inline, workers=1)
    assert set(again.jobs.values()) <= {JobStatus.done, JobStatus.stored}


JOURNAL_SCRIPT = """
import resource, signal, sys
from pathlib import Path
from tests.doubles.engine import Engine, job
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (900, resource.RLIM_INFINITY))
outcome = Engine(Path(sys.argv[1])).run(*(job(f"n/{i}", "nothing") for i in range(50)), workers=1)
print(outcome.halted)
"""


def test_a_journal_that_cannot_be_written_ends_the_run_and_stays_readable(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", JOURNAL_SCRIPT, str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "cannot write" in done.stdout, done.stderr
    assert "journal.jsonl" in done.stdout
    path = tmp_path / "run1" / "journal.jsonl"
    assert path.stat().st_size <= 900
    assert path.read_bytes().endswith(b"\n")
    assert [event["event"] for event in JournalReader(path).new_events()][:2] == ["RunStarted", "WorkerStarted"]


def test_a_second_engine_cannot_write_the_same_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    with pytest.raises(StoreError, match="another process is writing"):
        Journal(tmp_path / "journal.jsonl")
    journal.close()
    Journal(tmp_path / "journal.jsonl").close()


# -- stopping --------------------------------------------------------------------------------------------------


# To a worker each of them is the same request, as the test of notices sees.
@pytest.mark.parametrize(
    ("number", "backend"),
    [
        (signal.SIGINT, Backend.local),
        (signal.SIGTERM, Backend.inline),
        pytest.param(signal.SIGUSR2, Backend.inline, marks=pytest.mark.exhaustive),
    ],
    ids=lambda one: one.name,
)
def test_a_job_that_is_asked_to_stop_goes_on_later_from_its_checkpoint(
    engine: Engine, tmp_path: Path, backend: Backend, number: signal.Signals
) -> None:
    flag = tmp_path / "flag"
    steps = job("steps", "stop_with_checkpoint", payload={"flag": str(flag), "steps": 200})
    signal_when(flag, number)
    outcome = engine.run(steps, job("below", needs=["steps"]), workers=1, backend=backend, stop_grace_s=30)
    assert outcome.interrupted == number.name
    assert outcome.jobs == {"steps": JobStatus.ready, "below": JobStatus.pending}
    assert len(engine.events("JobStopped", "steps")) == 1
    assert "stopped: at step" in engine.log("steps")
    assert engine.events("WorkerExited")[-1]["exit_code"] == 0
    again = engine.run(steps, workers=1, backend=backend)
    assert again.jobs == {"steps": JobStatus.done}
    assert int((engine.store.path(key("steps")) / "started_from").read_text()) >= 3
    assert not engine.store.checkpoints(key("steps")).exists()


def test_a_job_that_is_nearly_done_may_finish(engine: Engine, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    signal_when(flag, signal.SIGINT)
    outcome = engine.run(
        job("soon", "finish_soon", payload={"flag": str(flag)}),
        job("below", needs=["soon"]),
        workers=1,
        stop_grace_s=30,
    )
    assert outcome.interrupted == "SIGINT"
    assert outcome.jobs == {"soon": JobStatus.done, "below": JobStatus.ready}


@pytest.mark.parametrize(
    ("number", "engine_first"),
    [
        (signal.SIGTERM, False),
        (signal.SIGINT, True),
        *(
            pytest.param(number, first, marks=pytest.mark.exhaustive)
            for number, first in ((signal.SIGTERM, True), (signal.SIGUSR2, False), (signal.SIGUSR2, True))
        ),
    ],
    ids=lambda one: one.name if isinstance(one, signal.Signals) else "engine first" if one else "workers first",
)
def test_a_notice_that_reaches_every_process_is_no_loss(
    engine: Engine, tmp_path: Path, number: signal.Signals, engine_first: bool
) -> None:
    """Slurm signals the workers too, before the engine or after this has asked them to stop."""
    flag, is_told = tmp_path / "flag", tmp_path / "told"

    def notify() -> None:
        until(lambda: flag.exists() and flag.read_text())
        me = psutil.Process()
        workers = [child for child in me.children() if "entrypoint" in describe(child)]
        first, last = ([me], workers) if engine_first else (workers, [me])
        for process in first:
            process.send_signal(number)
        until(Path(f"{flag}.heard").exists)
        for process in last:
            process.send_signal(number)
        is_told.touch()

    thread = threading.Thread(target=notify)
    thread.start()
    spin = job("spin", "spin_until_stopped", payload={"flag": str(flag), "told": str(is_told)})
    outcome = engine.run(spin, workers=1, stop_grace_s=30)
    thread.join()
    assert outcome.interrupted == number.name
    assert [attempt.outcome for attempt in outcome.attempts] == ["stopped"]
    assert Path(f"{flag}.saved").exists(), "it was broken off"
    assert {event["exit_code"] for event in engine.events("WorkerExited")} == {0}


def signal_when(flag: Path, number: signal.Signals) -> None:
    """Send this process a signal once a job has made the file."""

    def wait_and_signal() -> None:
        until(lambda: flag.exists() and flag.read_text())
        psutil.Process().send_signal(number)

    threading.Thread(target=wait_and_signal, daemon=True).start()


def until(condition: object, timeout_s: float = 200.0) -> None:
    give_up, pause = time.monotonic() + timeout_s, threading.Event()
    while not condition():  # type: ignore[operator]
        if time.monotonic() > give_up:
            return
        pause.wait(0.02)
