"""One table of everything a job can do to its worker: how it is called, how often it is tried, what is left."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.schema import RetryConfig
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.plan.graph import Job
from tests.doubles.engine import Engine, descriptors, job

RETRY = RetryConfig(
    worker_lost=2, hang=1, out_of_memory=2, device=2, transient=3, wait_s=0.05, max_wait_s=0.1,
    device_failures=99,  # more than there are in the table: no slot is given up because of the rows before
)  # fmt: skip
LIMITS = {"heartbeat_timeout_s": 4.0, "progress_timeout_s": 7.0}
"""For jobs that hang, found by the shorter one where there is no sign of life either. On a busy machine others
would look as if they did, so these run by themselves."""
GOOD = tuple(job(f"good/{index}") for index in range(3))


@dataclass(frozen=True)
class Row:
    """A fault.

    Attributes:
        body: What the job does.
        kind: What its failure is called; "" where it succeeds.
        attempts: How many it gets.
        exit_code: Of its worker; None where that lives on.
        log: What the job's last log says.
        reason: What the run says about the job.
    """

    body: str
    kind: str
    attempts: int
    exit_code: int | None = None
    log: str = ""
    reason: str = ""


TABLE = [
    Row("write", "", 1),
    Row("report_much", "", 1),
    Row("kill_self_once", "", 2),
    Row("lose_connection_twice", "", 3),
    Row("raise_error", "bug", 1, log="Traceback", reason="ValueError: this body raises ("),
    Row("raise_system_exit", "bug", 1, log="Traceback", reason="SystemExit: 3"),
    Row("raise_keyboard_interrupt", "bug", 1, log="KeyboardInterrupt"),
    Row("no_function", "bug", 1, log="does not name a function"),
    Row("leave_odd_counts", "bug", 1, reason="TypeError: tokens=nan"),
    Row("fork_and_leave", "", 1, log="the copy is gone"),
    Row("fail_at_import", "bug", 1, log="this module cannot be imported", reason="RuntimeError"),
    Row("tests.doubles.no_such_module:body", "bug", 1, log="Traceback", reason="ModuleNotFoundError"),
    Row("raise_connection_error", "transient", 3, log="ConnectionResetError", reason="given up after 3 attempts"),
    Row("raise_out_of_memory", "out_of_memory", 2, log="MemoryError", reason="given up after 2 attempts"),
    Row("exit_at_once", "lost", 2, exit_code=7, reason="exit code 7"),
    Row("segfault", "lost", 2, exit_code=-signal.SIGSEGV, log="in segfault", reason="SIGSEGV"),
    Row("kill_self", "lost", 2, exit_code=-signal.SIGKILL, reason="set aside after it ended 2 workers"),
    Row("hang_up", "lost", 2, exit_code=-signal.SIGKILL),
    Row("write_garbage", "lost", 2, -signal.SIGKILL, reason="it sent what is no message (this is no JSON"),
    Row("stop_self", "hang", 1, -signal.SIGKILL, reason="no sign of life"),
    Row("loop_in_native_code", "hang", 1, -signal.SIGKILL, "in loop_in_native_code", "no sign of life"),
    Row("loop_without_progress", "hang", 1, -signal.SIGKILL, "in loop_without_progress", "no progress"),
]


HARMLESS = [row for row in TABLE if row.kind in ("", "bug") and row.attempts == 1]
"""Those after which a worker is as good as before."""
HANGING = [row for row in TABLE if row.kind == "hang"]
HARMFUL = [row for row in TABLE if row not in HARMLESS and row not in HANGING]


@dataclass
class Together:
    """A run of several rows: other jobs go on whatever is beside them, and so do those of another row."""

    engine: Engine
    outcome: Outcome

    @classmethod
    def of(cls, folder: Path, rows: list[Row], **settings: Any) -> Together:
        before = descriptors()
        engine = Engine(folder / "an odd näme")
        outcome = engine.run(
            *(each for row in rows for each in faulty(row)), *GOOD, retry=RETRY, heartbeat_s=0.1, **settings
        )
        assert engine.leftovers() == []
        assert descriptors() == before
        assert len(outcome.root_causes) == sum(bool(row.kind) for row in rows)
        return cls(engine, outcome)


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> Together:
    return Together.of(tmp_path_factory.mktemp("harmless"), HARMLESS)


@pytest.fixture(scope="module")
def harmful(tmp_path_factory: pytest.TempPathFactory) -> Together:
    return Together.of(tmp_path_factory.mktemp("harmful"), HARMFUL)


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Together:
    return Together.of(tmp_path_factory.mktemp("hanging"), HANGING, workers=3, **LIMITS)


def faulty(row: Row) -> tuple[Job, Job]:
    """The job of a row, and one that reads its output."""
    name = str(TABLE.index(row))
    return job(f"bad/{name}", row.body), job(f"below/{name}", "nothing", needs=[f"bad/{name}"])


@pytest.mark.parametrize("row", HARMLESS, ids=lambda row: row.body)
def test_what_a_worker_survives_costs_what_the_table_says(harmless: Together, row: Row) -> None:
    check_costs(harmless.engine, harmless.outcome, row)


def test_a_worker_survives_all_of_them(harmless: Together) -> None:
    assert len(harmless.engine.events("WorkerStarted")) == 2
    assert {event["exit_code"] for event in harmless.engine.events("WorkerExited")} == {0}


@pytest.mark.parametrize("row", HARMFUL, ids=lambda row: row.body)
def test_a_fault_costs_what_the_table_says(harmful: Together, row: Row) -> None:
    check_costs(harmful.engine, harmful.outcome, row)


@pytest.mark.parametrize("row", HANGING, ids=lambda row: row.body)
def test_a_job_that_hangs_costs_what_the_table_says(hanging: Together, row: Row) -> None:
    check_costs(hanging.engine, hanging.outcome, row)


def test_no_workers_end_but_those_of_attempts_that_failed(harmful: Together, hanging: Together) -> None:
    for engine in (harmful.engine, hanging.engine):
        expected = Counter[int]()
        for failure in engine.events("AttemptFailed"):
            if failure["exit_code"] is not None:
                expected[failure["exit_code"]] += 1
            elif failure["kind"] == "out_of_memory":
                expected[-signal.SIGKILL] += 1  # it lives on, and another takes its place
        assert Counter(filter(None, (event["exit_code"] for event in engine.events("WorkerExited")))) == expected


def check_costs(engine: Engine, outcome: Outcome, row: Row) -> None:
    bad, below = (job.id for job in faulty(row))
    statuses = {name: status.value for name, status in outcome.jobs.items()}
    ends = {bad: "failed", below: "blocked"} if row.kind else {bad: "done", below: "done"}
    assert statuses == statuses | ends | {one.id: "done" for one in GOOD}
    assert len(engine.events("JobStarted", bad)) == row.attempts
    assert row.reason in outcome.reason(bad)
    assert row.log in engine.log(bad, row.attempts)

    failures = engine.events("AttemptFailed", bad)
    if row.kind:
        assert [failure["kind"] for failure in failures] == [row.kind] * row.attempts
        assert [failure["retry"] for failure in failures] == [True] * (row.attempts - 1) + [False]
        assert {failure["exit_code"] for failure in failures} == {row.exit_code}
        assert all((engine.run_dir / failure["log"]).exists() for failure in failures)
        assert bool(failures[0]["traceback"]) == (row.exit_code is None)
        assert engine.events("JobFailed", bad)[0]["kind"] == row.kind
        assert [event["root_cause"] for event in engine.events("JobBlocked", below)] == [bad]
    else:
        assert len(failures) == row.attempts - 1
    assert outcome.root_causes.get(below) == (bad if row.kind else None)
    assert all(len(engine.events("JobStarted", one.id)) == 1 for one in GOOD)
    assert engine.journal[-1]["event"] == "RunFinished"
