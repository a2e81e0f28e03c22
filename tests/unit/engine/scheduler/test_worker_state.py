"""What a worker is doing follows from what is known of it."""

from __future__ import annotations

import pytest

from pipeline.engine.scheduler.state import WorkerPhase, WorkerState


def up() -> WorkerState:
    return WorkerState(0).ready("cpu", "")


def test_a_worker_is_given_one_job_at_a_time() -> None:
    worker = up()
    worker.take("a", 3.0, lent=False)
    assert (worker.phase, worker.started_s) == (WorkerPhase.running, 3.0)
    with pytest.raises(AssertionError):
        worker.take("b", 4.0, lent=False)
    worker.free()
    assert worker.phase is WorkerPhase.idle


@pytest.mark.parametrize("phase", [WorkerPhase.running, WorkerPhase.lent], ids=lambda phase: phase.value)
def test_a_process_is_replaced_under_a_job_that_is_to_come(phase: WorkerPhase) -> None:
    worker = up()
    worker.take("a", 3.0, lent=phase is WorkerPhase.lent)
    worker.holds = ["model"]
    worker.ends()
    assert (worker.phase, worker.up, worker.fresh, worker.holds) == (phase, False, False, [])
    worker = worker.ready("cpu", "")
    assert (worker.phase, worker.job_id, worker.started_s, worker.fresh) == (phase, "a", 3.0, True)


def test_a_worker_whose_process_is_being_replaced_takes_no_job() -> None:
    worker = up()
    worker.take("a", 3.0, lent=True)
    worker.ends()
    worker.free()
    assert worker.phase is WorkerPhase.starting


def test_one_in_quarantine_stays_there_whatever_becomes_of_its_job_and_its_process() -> None:
    worker = up()
    worker.take("a", 3.0, lent=False)
    worker.quarantined = True
    for change in (worker.ends, worker.free):
        change()
        assert worker.phase is WorkerPhase.quarantined
    worker = worker.lost().ready("cpu", "")
    assert worker.phase is WorkerPhase.quarantined
    worker.quarantined = False
    assert worker.phase is WorkerPhase.idle
