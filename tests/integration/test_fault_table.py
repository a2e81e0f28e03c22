"""One table of everything a job can do to its worker: how it is called, how often it is tried, what is left."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace

import pytest

from pipeline.config.schema import RetryConfig
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.plan.job import Job
from tests.doubles.engine import Engine, descriptors, job

RETRY = RetryConfig(worker_lost=2, hang=2, out_of_memory=2, device=2, transient=3, wait_s=0.05, max_wait_s=0.1)
SHORT_S = 4.0
"""Limit for a job that hangs. On a busy machine others would look as if they did, so they have the usual ones."""
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
        limit: Key of the limit by which it is found to hang.
    """

    body: str
    kind: str
    attempts: int
    exit_code: int | None = None
    log: str = ""
    reason: str = ""
    limit: str = ""


TABLE = [
    Row("write", "", 1),
    Row("print_much", "", 1, log="x" * 999),
    Row("write_huge", "", 1),
    Row("report_much", "", 1),
    Row("kill_self_once", "", 2),
    Row("die_once_slowly", "", 2),
    Row("lose_connection_twice", "", 3),
    Row("raise_error", "bug", 1, log="Traceback", reason="ValueError: this body raises ("),
    Row("raise_system_exit", "bug", 1, log="Traceback", reason="SystemExit: 3"),
    Row("raise_keyboard_interrupt", "bug", 1, log="KeyboardInterrupt"),
    Row("report_huge", "bug", 1, log="ValueError: mmm", reason="ValueError: mmm"),
    Row("no_function", "bug", 1, log="does not name a function"),
    Row("progress_of_nothing", "bug", 1, log="TypeError: tokens=None: must be a whole number of at least 0"),
    Row("leave_odd_counts", "bug", 1, reason="TypeError: tokens=nan"),
    Row("raise_unspeakable", "bug", 1, reason="Unspeakable: its message cannot be read"),
    Row("fork_and_leave", "", 1, log="the copy is gone"),
    Row("fail_at_import", "bug", 1, log="this module cannot be imported", reason="RuntimeError"),
    Row("tests.doubles.raises_at_import:body", "bug", 1, log="this module cannot be imported"),
    Row("tests.doubles.no_such_module:body", "bug", 1, log="Traceback", reason="ModuleNotFoundError"),
    Row("pipeline.learning.algos.stage_entry:run_stage", "bug", 1, log="KeyError", reason="KeyError: 'config'"),
    Row("write_over_a_folder", "bug", 1, log="IsADirectoryError"),
    Row("raise_connection_error", "transient", 3, log="ConnectionResetError", reason="given up after 3 attempts"),
    Row("raise_out_of_memory", "out_of_memory", 2, log="MemoryError", reason="given up after 2 attempts"),
    Row("exit_at_once", "lost", 2, exit_code=7, reason="exit code 7"),
    Row("segfault", "lost", 2, exit_code=-signal.SIGSEGV, log="in segfault", reason="SIGSEGV"),
    Row("abort", "lost", 2, exit_code=-signal.SIGABRT, log="Aborted", reason="SIGABRT"),
    Row("kill_self", "lost", 2, exit_code=-signal.SIGKILL, reason="set aside after it ended 2 workers"),
    Row("hang_up", "lost", 2, exit_code=-signal.SIGKILL),
    Row("write_garbage", "lost", 2, -signal.SIGKILL, reason="it sent what is no message (this is no JSON"),
    Row("stop_self", "hang", 2, -signal.SIGKILL, reason="no sign of life", limit="heartbeat_timeout_s"),
    Row("loop_in_native_code", "hang", 1, -signal.SIGKILL, "in loop_in_native_code", limit="heartbeat_timeout_s"),
    Row(
        "loop_without_progress", "hang", 1, -signal.SIGKILL, "in loop_without_progress", limit="progress_timeout_s"
    ),
]


HARMLESS = [row for row in TABLE if row.kind in ("", "bug") and row.attempts == 1]
"""Those after which a worker is as good as before: one run has them all."""


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, Outcome]:
    """A run of everything that does no harm to its worker."""
    before = descriptors()
    engine = Engine(tmp_path_factory.mktemp("harmless") / "an odd näme")
    outcome = engine.run(*(each for row in HARMLESS for each in faulty(row)), *GOOD, retry=RETRY, heartbeat_s=0.1)
    assert engine.leftovers() == []
    assert descriptors() == before
    return engine, outcome


def faulty(row: Row) -> tuple[Job, Job]:
    """The job of a row, and one that reads its output."""
    name = str(TABLE.index(row))
    return job(f"bad/{name}", row.body), job(f"below/{name}", "nothing", needs=[f"bad/{name}"])


@pytest.mark.parametrize("row", HARMLESS, ids=lambda row: row.body)
def test_what_a_worker_survives_costs_what_the_table_says(together: tuple[Engine, Outcome], row: Row) -> None:
    check_costs(*together, row)


def test_a_worker_survives_all_of_them(together: tuple[Engine, Outcome]) -> None:
    engine, outcome = together
    assert len(engine.events("WorkerStarted")) == 2
    assert len(outcome.root_causes) == sum(bool(row.kind) for row in HARMLESS)


@pytest.mark.parametrize("row", [row for row in TABLE if row not in HARMLESS], ids=lambda row: row.body)
def test_a_fault_costs_what_the_table_says(engine: Engine, row: Row) -> None:
    limits = {row.limit: SHORT_S} if row.limit else {}
    # Each attempt that hangs takes as long as its limit: one of these rows has a second.
    retry = replace(RETRY, hang=row.attempts) if row.kind == "hang" else RETRY
    outcome = engine.run(*faulty(row), *GOOD, retry=retry, heartbeat_s=0.1, **limits)
    # The engine fixture adds: no child lives, no unfinished output, no descriptor is left.
    check_costs(engine, outcome, row)
    assert len(outcome.root_causes) == bool(row.kind)
    if row.kind == "lost":
        codes = [event["exit_code"] for event in engine.events("WorkerExited")]
        assert codes.count(row.exit_code) == row.attempts


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
