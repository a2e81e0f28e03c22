"""The pool's own rules, on workers that only pretend."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from pipeline.engine.workers import pool as pool_module
from pipeline.engine.workers.messages import (
    FromWorker,
    JobStarted,
    RunJob,
    WorkerExited,
    WorkerReady,
    WorkerUnusable,
)
from pipeline.engine.workers.pool import MAX_FAILED_STARTS, Deliver, Pool, Worker
from pipeline.errors import WorkerError

READY = WorkerReady(pid=1, device="pretended")
STARTED = JobStarted(job_id="j", attempt=1)


class Pretender(Worker):
    """Says what it is told to say, through a real descriptor."""

    made: list[Pretender]

    def __init__(self, index: int, says: Sequence[FromWorker], *, stops_at: str = "ask") -> None:
        super().__init__(index)
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        self.queue: list[FromWorker] = list(says)
        self.stops_at = stops_at
        self.steps: list[str] = []

    def start(self) -> None:
        self.wake()

    def wake(self) -> None:
        os.write(self.write, b".")

    def send(self, job: RunJob) -> None:
        self.queue.append(STARTED)
        self.wake()

    def sources(self) -> Sequence[int]:
        return [self.read]

    def receive(self, deliver: Deliver) -> None:
        with suppress(BlockingIOError):
            os.read(self.read, 100)
        queue, self.queue = self.queue, []
        for message in queue:
            deliver(message)
            if isinstance(message, WorkerExited):
                os.close(self.read)
                os.close(self.write)

    def _step(self, name: str, exit_code: int) -> None:
        self.steps.append(name)
        if name == self.stops_at:
            self.queue.append(WorkerExited(exit_code=exit_code))
            self.wake()

    def ask_to_stop(self) -> None:
        self._step("ask", 0)

    def terminate(self) -> None:
        self._step("terminate", -15)

    def kill(self) -> None:
        self._step("kill", -9)

    def last_words(self) -> str:
        return "\n    no such library"


def pool_of(*scripts: Sequence[FromWorker], size: int = 1, stops_at: str = "ask", **options: Any) -> Pool:
    """A pool whose workers follow the scripts, in the order in which they are made; the last one repeats."""
    left = list(scripts)

    def make(index: int, _reaper: object) -> Worker:
        worker = Pretender(index, left.pop(0) if len(left) > 1 else left[0], stops_at=stops_at)
        Pretender.made.append(worker)
        return worker

    return Pool(make, size, stop_grace_s=options.pop("stop_grace_s", 0.05), **options)


@pytest.fixture(autouse=True)
def _count() -> None:
    Pretender.made = []


def run(pool: Pool, turns: int = 10) -> list[tuple[int, FromWorker]]:
    heard: list[tuple[int, FromWorker]] = []
    pool.start()
    try:
        for _ in range(turns):
            pool.wait(0.01, lambda index, message: heard.append((index, message)))
    finally:
        pool.stop(lambda index, message: heard.append((index, message)))
    return heard


def test_a_worker_that_ends_is_replaced() -> None:
    heard = [message for _, message in run(pool_of([READY, STARTED, WorkerExited(exit_code=1)], [READY]))]
    assert heard == [READY, STARTED, WorkerExited(exit_code=1), READY, WorkerExited(exit_code=0)]


@pytest.mark.parametrize("before", [[], [READY]], ids=["before it was ready", "while it was idle"])
def test_workers_that_end_before_their_first_job_end_the_run(before: list[FromWorker]) -> None:
    with pytest.raises(WorkerError, match=r"3 times in a row before it began a job.*exit code 1") as error:
        run(pool_of([*before, WorkerExited(exit_code=1)]))
    assert "no such library" in str(error.value)
    assert len(Pretender.made) == 3


def test_a_job_that_was_begun_wipes_the_slate_clean() -> None:
    bad, good = [WorkerExited(exit_code=1)], [READY, STARTED, WorkerExited(exit_code=1)]
    run(pool_of(bad, bad, good, bad, bad, good, [READY]))
    assert len(Pretender.made) == 7


def test_a_worker_that_is_not_ready_in_time_is_killed() -> None:
    with pytest.raises(WorkerError, match=r"3 times in a row"):
        run(pool_of([], stops_at="kill", start_timeout_s=0.02), turns=50)
    assert all(worker.steps == ["kill"] for worker in Pretender.made)


@pytest.mark.parametrize(("stops_at", "steps"), [("ask", 1), ("terminate", 2), ("kill", 3)])
def test_stopping_gets_firmer_step_by_step(stops_at: str, steps: int) -> None:
    heard = run(pool_of([READY], stops_at=stops_at))
    assert Pretender.made[0].steps == ["ask", "terminate", "kill"][:steps]
    assert isinstance(heard[-1][1], WorkerExited)


def test_being_hurried_skips_the_patience() -> None:
    pool = pool_of([READY], stops_at="kill", stop_grace_s=3600)
    read, write = os.pipe()
    os.write(write, b".")
    pool.start()
    pool.stop(lambda _index, _message: None, hurry=[read])
    os.close(read)
    os.close(write)
    assert Pretender.made[0].steps == ["ask", "terminate", "kill"]


def test_workers_that_are_replaced_on_purpose_are_no_failed_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_TERMINATE_TIMEOUT_S", 0.01)
    heard: list[FromWorker] = []
    pool = pool_of([READY], stops_at="kill")
    pool.start()
    try:
        for _ in range(MAX_FAILED_STARTS + 1):
            pool.wait(0.01, lambda _, message: heard.append(message))
            pool.restart(0)
            pool.wait(0.01, lambda _, message: heard.append(message))
    finally:
        pool.stop(lambda _, message: heard.append(message))
    assert heard.count(READY) >= MAX_FAILED_STARTS + 1
    assert not any(isinstance(message, WorkerUnusable) for message in heard)


# -- somewhere else ----------------------------------------------------------------------------------------------
