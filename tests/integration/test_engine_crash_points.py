"""The engine is killed at or within every record of its journal; the next run ends in the same bytes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config.schema import Backend
from pipeline.engine.journal import JournalReader
from pipeline.engine.scheduler.state import JobStatus
from tests.doubles.engine import Engine, job

ROOT = Path(__file__).parents[2]
PLAN = (
    job("make/000", payload={"value": 1}),
    job("make/001", payload={"value": 2}),
    job("join", needs=["make/000", "make/001"]),
    job("measure", needs=["join"]),
)
SCRIPT = """
import os, signal, sys
from pathlib import Path
from pipeline.engine.journal import Journal
from tests.doubles.engine import Engine
from tests.integration.test_engine_crash_points import PLAN
root, last, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
written, append = 0, Journal.append
def append_and_die(journal, event, **fields):
    global written
    written += 1
    if written < last:
        return append(journal, event, **fields)
    if how == "torn":
        journal.flush()
        os.write(journal._file.fileno(), b'{"event":"Job')
    elif how == "whole":
        append(journal, event, **fields)
        journal.flush()
    os.kill(os.getpid(), signal.SIGKILL)  # with all that this turn has recorded so far
Journal.append = append_and_die
Engine(root).run(*PLAN, workers=1)
"""


def killed_run(root: Path, record: int, how: str) -> int:
    arguments = [sys.executable, "-c", SCRIPT, str(root), str(record), how]
    return subprocess.run(arguments, cwd=ROOT, capture_output=True, timeout=800).returncode


# What is killed has a worker in any case. The run after it, whose part is to read what was left, has one in "all".
@pytest.mark.parametrize(
    ("every", "backend"),
    [(4, Backend.inline), pytest.param(1, Backend.local, marks=pytest.mark.exhaustive)],
    ids=["sample", "all"],
)
def test_a_run_goes_on_from_wherever_it_was_killed(tmp_path: Path, every: int, backend: Backend) -> None:
    calm = Engine(tmp_path / "calm")
    calm.run(*PLAN, workers=1, backend=backend)
    records = len(calm.journal)
    assert records > 10
    for nth, record in enumerate(range(1, records + 1, every)):
        # A torn line is a record less, so each way at every third record meets nearly every state.
        how = ("torn", "whole", "unwritten")[nth % 3]
        root = tmp_path / f"{record}-{how}"
        assert killed_run(root, record, how) == -signal.SIGKILL
        told = list(JournalReader(root / "run1" / "journal.jsonl").new_events())
        finished = {event["job"] for event in told if event["event"] == "JobFinished"}

        engine = Engine(root, runs=1)
        stored = [one.id for one in PLAN if engine.store.has(one.key)]
        outcome = engine.run(*PLAN, stored=stored, workers=1, backend=backend)
        assert set(outcome.jobs.values()) <= {JobStatus.done, JobStatus.stored}
        assert finished <= set(stored)
        assert not {event["job"] for event in engine.events("JobStarted")} & finished
        assert outputs(engine) == outputs(calm)
        assert engine.leftovers() == []


def outputs(engine: Engine) -> dict[str, bytes]:
    return {name: data for name, data in engine.files().items() if not name.startswith(".")}


def test_two_runs_that_share_a_store_share_the_work(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.doubles.engine import Engine, job\n"
        "engine = Engine(Path(sys.argv[1]), runs=int(sys.argv[2]))\n"
        "jobs = [job(f'j/{i}', 'write_slowly') for i in range(8)]\n"
        "engine.run(*jobs, job('all', needs=[one.id for one in jobs]), workers=1)\n"
        "print(*(event['job'] for event in engine.events('JobStarted')))\n"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path), str(number)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (0, 1)
    ]
    said = [run.communicate(timeout=800) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    started = [job_id for out, _ in said for job_id in out.split()]
    assert sorted(started) == sorted(set(started)) == sorted([*(f"j/{index}" for index in range(8)), "all"])
    assert all(out for out, _ in said), "one of them did everything"
