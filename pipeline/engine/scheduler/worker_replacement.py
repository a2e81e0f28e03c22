"""Handing devices over: which processes end before a job starts, or after one, for the memory that they hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from pipeline.engine.scheduler.run_context import Parts
from pipeline.engine.scheduler.worker_state import WorkerPhase
from pipeline.plan.job import Job


class Handover:
    """Replaces processes on purpose, and gives jobs to their workers when that is done."""

    def __init__(self, parts: Parts, send: Callable[[Job, int], None]) -> None:
        """Nothing is being handed over yet.

        Args:
            parts: The run.
            send: Gives a job, with the number of its attempt, to its worker.
        """
        self._parts, self._state = parts, parts.state
        self._pool, self._layout = parts.pool, parts.layout
        self._send = send
        self._renewed: set[int] = set()
        """Workers whose processes are being replaced on purpose: their end is no loss."""
        self._emptied: set[int] = set()
        """Those of them whose end others on the same device wait for, since they hold memory of it."""

    def gather(self, job: Job, attempt: int, emptied: Collection[int]) -> None:
        """Replace processes that hold memory of the devices which a job is about to use, and send it then."""
        self._parts.gathering[job.id] = attempt
        workers = self._state.jobs[job.id].workers
        for worker in workers:
            self._parts.account.sent(worker)
            if len(workers) > 1 and not self._state.workers[worker].fresh:
                self._renew(worker)
        for worker in emptied:
            self._emptied.add(worker)
            self._renew(worker)
        self.send_if_gathered(job.id)

    def _renew(self, worker: int) -> None:
        self._renewed.add(worker)
        self._state.workers[worker].renew()
        self._pool.restart(worker)

    def send_if_gathered(self, job_id: str) -> None:
        """Give a job to its worker if all of its devices are its own."""
        if job_id in self._parts.gathering and self._state.is_gathered(job_id):
            devices = {self._layout.device_of(worker) for worker in self._state.jobs[job_id].workers}
            if not any(self._layout.device_of(worker) in devices for worker in self._emptied):
                self._send(self._parts.plan.jobs[job_id], self._parts.gathering.pop(job_id))

    def ended(self, index: int) -> bool:
        """Note the end of a worker process.

        Returns:
            Whether it was no loss: the job that has its device goes on, or waits for the process that follows.
        """
        self._emptied.discard(index)
        if self._parts.stopping or not (index in self._renewed or self._state.is_lent(index)):
            return False
        self._renewed.discard(index)
        self._state.workers[index].renew()
        if self._state.workers[index].usable:
            self._parts.account.worker_started(index)
        for job_id in list(self._parts.gathering):
            self.send_if_gathered(job_id)
        return True

    def renew_gpus(self, workers: Sequence[int]) -> None:
        """Replace the workers on GPUs that ranks had: a new one is ready once its GPU's memory has come back."""
        for index in workers:
            worker = self._state.workers[index]
            free = worker.phase in (WorkerPhase.idle, WorkerPhase.starting)
            if worker.visible and free and not self._parts.stopping:
                worker.renew()
                self._pool.restart(index)
