"""How a worker gets from one state into another."""

from __future__ import annotations

import pytest

from pipeline.engine.scheduler.worker_state import WorkerPhase, WorkerState


def up(phase: WorkerPhase = WorkerPhase.idle) -> WorkerState:
    worker = WorkerState(0).ready("cpu", "")
    if phase in (WorkerPhase.running, WorkerPhase.lent):
        worker.take("a", 1.0, lent=phase is WorkerPhase.lent)
    worker.phase = phase
    return worker


def test_a_worker_is_given_a_job_and_is_free_again() -> None:
    worker = up()
    worker.take("a", 3.0, lent=False)
    assert (worker.phase, worker.job_id, worker.started_s) == (WorkerPhase.running, "a", 3.0)
    with pytest.raises(AssertionError):
        worker.take("b", 4.0, lent=False)
    worker.free()
    assert (worker.phase, worker.job_id) == (WorkerPhase.idle, "")


@pytest.mark.parametrize("phase", [WorkerPhase.running, WorkerPhase.lent], ids=lambda phase: phase.value)
def test_a_process_is_replaced_under_a_job_that_is_to_come(phase: WorkerPhase) -> None:
    worker = up(phase)
    worker.holds = ["model"]
    worker.renew()
    assert (worker.phase, worker.up, worker.fresh, worker.holds) == (phase, False, False, [])
    worker = worker.ready("cpu", "")
    assert (worker.phase, worker.job_id, worker.up, worker.fresh) == (phase, "a", True, True)


def test_a_worker_whose_process_is_being_replaced_takes_no_job() -> None:
    worker = up()
    worker.renew()
    assert worker.phase is WorkerPhase.starting
    worker = up(WorkerPhase.lent)
    worker.renew()
    worker.free()
    assert worker.phase is WorkerPhase.starting


@pytest.mark.parametrize("phase", WorkerPhase, ids=lambda phase: phase.value)
def test_whatever_becomes_of_one_in_quarantine_it_stays_there(phase: WorkerPhase) -> None:
    worker = up(phase)
    worker.quarantine()
    worker.renew()
    worker.free()
    assert worker.lost().phase is worker.phase is WorkerPhase.quarantined
    assert not worker.usable


@pytest.mark.parametrize(
    ("job_id", "is_up", "phase"),
    [("a", True, WorkerPhase.running), ("", True, WorkerPhase.idle), ("", False, WorkerPhase.starting)],
)
def test_one_that_is_released_goes_on_where_it_is(job_id: str, is_up: bool, phase: WorkerPhase) -> None:
    worker = WorkerState(0, phase=WorkerPhase.quarantined, job_id=job_id, up=is_up)
    worker.release()
    assert worker.phase is phase
