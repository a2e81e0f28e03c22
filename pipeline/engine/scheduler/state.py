"""The state of a run, and how each event changes it. No clock, no process, no file."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from pipeline.config.schema import Barrier
from pipeline.engine.devices.layout import Layout, plain_layout
from pipeline.engine.scheduler.fault_attribution import NODE_FACTOR, Blame
from pipeline.engine.scheduler.first_rows import paths_for_rows
from pipeline.engine.scheduler.job_state import SETTLED, THERE, JobState, JobStatus
from pipeline.engine.scheduler.memory_needs import EXCLUSIVE, Needs
from pipeline.engine.scheduler.ready import ReadyQueue, kind_of
from pipeline.engine.scheduler.round_gate import RoundGate
from pipeline.engine.scheduler.whereabouts import Whereabouts
from pipeline.engine.scheduler.worker_state import WorkerState
from pipeline.engine.scheduler.worker_table import WorkerTable
from pipeline.plan.graph import Plan
from pipeline.plan.job import Job


class RunState:
    """Every job and worker of a run.

    Attributes:
        plan: What is carried out.
        jobs: Job id -> its state.
        table: The workers, and which of them are idle.
        workers: By index.
        ready: Jobs that could start now, on any worker.
        retries: Jobs that could start now and have failed on a worker before, which the next attempt avoids.
        reserved: Job that was promised a place -> the machine on which idle workers are kept for it; in order.
        blame: Which device has failed which job.
        layout: The devices, and which worker is on which.
        needs: What jobs take of their memory.
        whereabouts: Which machine has which outputs at hand.
        with_orders: Workers that have orders ahead, and some that have none any more.
        unsettled: Jobs that are neither there nor given up.
        running: Jobs that run.
    """

    def __init__(
        self,
        plan: Plan,
        stored: Collection[str],
        num_workers: int,
        *,
        barrier: Barrier = Barrier.none,
        models_in_memory: int = 1,
        device_failures: int = 3,
        layout: Layout | None = None,
        needs: Needs | None = None,
        rows_early: bool = False,
    ) -> None:
        """Set up the state before the first event.

        Args:
            plan: The plan.
            stored: Ids of the jobs that need not run.
            num_workers: Size of the pool.
            barrier: Whether a round waits for all earlier ones.
            models_in_memory: How many models a worker keeps.
            device_failures: Different jobs in a row that make a device the suspect.
            layout: Where the workers are; one on each device if None.
            needs: What jobs take of the devices' memory; nothing is known if None.
            rows_early: Whether a first row of each method is to be there in the first half of the run.
        """
        stored = set(stored)
        self.layout = plain_layout(num_workers) if layout is None else layout
        self.needs = Needs(self.layout) if needs is None else needs
        self.plan, self.whereabouts = plan, Whereabouts(plan)
        self.jobs = {job.id: JobState(job) for job in plan.jobs.values()}
        self.table = WorkerTable(self.layout, self.needs)
        self.workers = self.table.workers
        left_s = {job.id: 0.0 if job.id in stored else job.seconds for job in plan.jobs.values()}
        paths = paths_for_rows(plan, left_s, num_workers) if rows_early else plan.longest_paths(left_s)
        self.ready = ReadyQueue(plan, paths)
        self.retries: dict[str, None] = {}
        self._kinds = list({kind_of(job): job for job in plan.jobs.values()}.values())
        self.reserved: dict[str, int] = {}
        self.with_orders: set[int] = set()
        self.blame = Blame(device_failures)
        self.node_blame = Blame(NODE_FACTOR * device_failures)
        self.unsettled = len(self.jobs)
        self.running = 0
        self._models_in_memory = models_in_memory
        self._gate = RoundGate((job.round for job in plan.jobs.values()), strict=barrier is Barrier.round)
        self._enter(stored)

    def _enter(self, stored: set[str]) -> None:
        for job_id in sorted(stored & set(self.jobs)):
            self._set(self.jobs[job_id], JobStatus.stored)
        for state in self.jobs.values():
            state.waits_for = self._count_missing(state.job.id)
        self._release([state.job.id for state in self.jobs.values() if state.waits_for == 0])

    # -- workers -----------------------------------------------------------------------------------------------

    def worker_ready(self, index: int, device: str, visible: str = "", node: str = "") -> None:
        """A worker reported that it is up; whatever it held before is not in this process."""
        self.table.ready(index, device, visible, node)
        self.whereabouts.joined(node)

    def worker_lost(self, index: int) -> str:
        """A worker ended. One that is lent is not missed: the job has only its device.

        Returns:
            The job that it ran, or "".
        """
        worker = self.workers[index]
        if worker.lent:
            worker.ends()
            return ""
        job_id = self._free(index) if worker.job_id else ""
        self.table.lost(index)
        return job_id

    def is_gathered(self, job_id: str) -> bool:
        """Whether no process of its own workers holds memory that a job of several devices is about to use."""
        workers = [self.workers[index] for index in self.jobs[job_id].workers]
        return all(worker.up and (worker.fresh or len(workers) == 1) for worker in workers)

    @property
    def is_plain(self) -> bool:
        """Whether each device has one worker and will do for every job: then nobody need look at memory."""
        return self.layout.slots == 1 and self.needs.fit_everywhere(self._kinds)

    def usable_devices(self) -> list[int]:
        """Devices of which a place is left."""
        return self.table.usable_devices()

    def fitting_devices(self, job: Job) -> list[int]:
        """Those of them on which a job may run."""
        return self.table.fitting_devices(job)

    def slots_of(self, job: Job) -> int:
        """How many workers' places a job takes: those of several devices, or one."""
        return job.devices * self.layout.slots if job.devices > 1 else 1

    def charge(self, job_id: str, device: int) -> float:
        """MiB that are set aside for a job on a device, or `EXCLUSIVE`."""
        state = self.jobs[job_id]
        if state.must_be_exclusive or (state.status is JobStatus.running and state.exclusive):
            return EXCLUSIVE
        return self.needs.charge(state.job, device)

    def idle_workers(self) -> list[WorkerState]:
        """Workers that could take a job."""
        return self.table.idle()

    # -- jobs --------------------------------------------------------------------------------------------------

    @property
    def can_start(self) -> bool:
        """Whether a job could start now if a worker were idle."""
        return bool(self.ready or self.retries)

    def reserve(self, job_id: str, node: int = 0) -> None:
        """Keep idle workers of a machine for a ready job until it starts."""
        self.reserved[job_id] = node

    def start(self, job_id: str, index: int, members: Sequence[int] = (), now_s: float = 0.0) -> int:
        """A ready job goes to an idle worker, and with it the devices of further idle ones, which are lent to it.

        Returns:
            The number of the attempt.
        """
        state = self.jobs[job_id]
        assert state.status is JobStatus.ready
        assert len({index, *members}) == state.job.devices
        charge = self.charge(job_id, self.layout.device_of(index))
        self._unqueue(state)
        self._set(state, JobStatus.running)
        state.attempts += 1
        state.sent_s = now_s
        state.workers = (index, *members)
        for place in state.workers:
            self.workers[place].take(job_id, now_s, lent=place != index)
        leader = self.workers[index]
        state.exclusive = math.isinf(charge)
        state.limit_mb = 0 if state.exclusive else int(charge)
        if not members:
            leader.fresh = False
            shared = self.layout.slots > 1
            state.keep_models = leader.keeps_models(state.job.affinity, shared=shared)
            leader.remember(state.job.affinity, self._models_in_memory, shared=shared)
        return state.attempts

    def hand_ahead(self, job_id: str, index: int) -> str:
        """A ready job goes to a worker that has others before it.

        Returns:
            The job that it is to follow.
        """
        state, worker = self.jobs[job_id], self.workers[index]
        after = worker.ahead[-1] if worker.ahead else worker.job_id
        self._unqueue(state)
        self._set(state, JobStatus.running)
        state.attempts += 1
        state.workers, state.exclusive, state.limit_mb, state.keep_models = (index,), True, 0, True
        worker.ahead.append(job_id)
        self.with_orders.add(index)
        return after

    def begin_ahead(self, index: int, now_s: float) -> None:
        """A worker that has finished its job begins the next that it was given."""
        worker = self.workers[index]
        job_id = worker.ahead.pop(0)
        worker.take(job_id, now_s, lent=False)
        worker.by_itself = True
        self.jobs[job_id].sent_s = now_s

    def give_back_next(self, index: int) -> None:
        """A worker will not begin the job that it was given: as if it had not been."""
        job_id = self._free(index)
        self.jobs[job_id].attempts -= 1
        self.retry(job_id)

    def give_back(self, job_id: str, index: int) -> None:
        """A worker will not begin a job that it was given ahead: likewise."""
        self.workers[index].ahead.remove(job_id)
        self.jobs[job_id].attempts -= 1
        self.jobs[job_id].workers = ()
        self.retry(job_id)

    def is_current(self, index: int, job_id: str, attempt: int) -> bool:
        """Whether a worker's message is about the attempt that it was given last."""
        return self.workers[index].job_id == job_id and self.jobs[job_id].attempts == attempt

    def finished(self, index: int, peak_mb: int | None = None, held_mb: int = 0) -> None:
        """A worker has finished its job.

        Args:
            index: The worker.
            peak_mb: Most memory of its device that it held meanwhile; None where that is unknown.
            held_mb: What of that it still holds.
        """
        workers = self.jobs[self.workers[index].job_id].workers
        job_id = self._free(index)
        self.workers[index].held_mb = held_mb
        self.needs.measured(self.jobs[job_id].job, peak_mb)
        for worker in workers:
            self.blame.finished(self.layout.device_of(worker))
            self.node_blame.finished(self.workers[worker].node)
        self._arrive(job_id, JobStatus.done)

    def found(self, job_id: str) -> None:
        """The output of a job that is ready or waits is there after all: another run has made it."""
        if self.jobs[job_id].status is JobStatus.ready:
            self._unqueue(self.jobs[job_id])
        self._arrive(job_id, JobStatus.stored)

    def wait(self, job_id: str) -> None:
        """A job must wait for a moment, or for something outside of this run; `retry` lets it go on."""
        state = self.jobs[job_id]
        if state.status is JobStatus.ready:
            self._unqueue(state)
        self._set(state, JobStatus.pending)

    def reopen(self, job_id: str) -> bool:
        """The output of a job is gone or cannot be used, so the job has to run again.

        Whether what it reads itself is still there is for the caller to see.

        Returns:
            False where it was not taken for finished, so that nothing changes.
        """
        state = self.jobs[job_id]
        if state.status not in THERE:
            return False
        self._set(state, JobStatus.pending)
        for reader in map(self.jobs.__getitem__, self.plan.readers(job_id)):
            if reader.status is JobStatus.ready:
                self._unqueue(reader)
                self._set(reader, JobStatus.pending)
            if reader.status is JobStatus.pending:
                reader.waits_for = self._count_missing(reader.job.id)
        state.waits_for = self._count_missing(job_id)
        if state.waits_for == 0:
            self._release([job_id])
        return True

    def raised(self, index: int, held_mb: int = 0) -> str:
        """A worker's job raised; the worker is free again.

        Args:
            index: The worker.
            held_mb: Memory of its device that it still holds.

        Returns:
            The job, still to be failed or retried.
        """
        self.workers[index].held_mb = held_mb
        return self._free(index)

    def ran_out_of_memory(self, job_id: str, index: int) -> bool:
        """Memory of the device ran out for a job that a worker ran; what it needs is more than was thought.

        Returns:
            Whether other jobs may be to blame. Its next attempt then has a device to itself.
        """
        state, device = self.jobs[job_id], self.layout.device_of(index)
        if state.exclusive:
            self.needs.ran_out_exclusively(state.job, device)
            return False
        self.needs.ran_out_beside_others(state.job, device)
        state.must_be_exclusive = True
        return True

    def retry(self, job_id: str) -> None:
        """A job whose attempt gave nothing may be tried again, once its inputs are there."""
        state = self.jobs[job_id]
        self._set(state, JobStatus.pending)
        state.waits_for = self._count_missing(job_id)
        if state.waits_for == 0:
            self._release([job_id])

    def fail(self, job_id: str, reason: str) -> list[str]:
        """Give a job up, and with it all that depends on it.

        Returns:
            Ids of the jobs that are blocked by it.
        """
        state = self.jobs[job_id]
        state.reason = reason
        self._set(state, JobStatus.failed)
        blocked = []
        frontier = self.plan.readers(job_id)
        while frontier:
            below = self.jobs[frontier.pop()]
            if below.status is JobStatus.pending:
                below.reason, below.root_cause = f"needs {job_id}, which failed", job_id
                self._set(below, JobStatus.blocked)
                blocked.append(below.job.id)
                frontier += self.plan.readers(below.job.id)
        self._open_rounds()
        return blocked

    # -- inside ------------------------------------------------------------------------------------------------

    def _free(self, index: int) -> str:
        """Take the job from a worker, and give the devices back that were lent to it."""
        job_id = self.workers[index].job_id
        for place in self.jobs[job_id].workers:
            self.table.free(place)
        self.jobs[job_id].workers = ()
        return job_id

    def _count_missing(self, job_id: str) -> int:
        return sum(self.jobs[upstream].status not in THERE for upstream in self.plan.inputs(job_id))

    def _arrive(self, job_id: str, status: JobStatus) -> None:
        """The output of a job is there."""
        self._set(self.jobs[job_id], status)
        arrived = []
        for reader in map(self.jobs.__getitem__, self.plan.readers(job_id)):
            # A reader that runs or is settled has read an earlier output of the same content.
            if reader.status is JobStatus.pending and reader.waits_for > 0:
                reader.waits_for -= 1
                if reader.waits_for == 0:
                    arrived.append(reader.job.id)
        self._release(arrived)

    def _unqueue(self, state: JobState) -> None:
        self.reserved.pop(state.job.id, None)
        if state.job.id in self.retries:
            del self.retries[state.job.id]
        else:
            self.ready.remove(state.job)

    def _set(self, state: JobState, status: JobStatus) -> None:
        self.running += (status is JobStatus.running) - (state.status is JobStatus.running)
        change = (status in SETTLED) - (state.status in SETTLED)
        self.unsettled -= change
        if change:
            self._gate.settled(state.job.round, change)
        state.status = status

    def _release(self, job_ids: Iterable[str]) -> None:
        """Make jobs ready whose inputs are there, or keep them until their round is open."""
        for job_id in job_ids:
            state = self.jobs[job_id]
            if state.status is JobStatus.pending:
                self._gate.hold(state.job.round, job_id)
        self._open_rounds()

    def _open_rounds(self) -> None:
        for job_id in self._gate.let_go():
            state = self.jobs[job_id]
            if state.status is not JobStatus.pending or state.waits_for:
                continue  # an input was found damaged while it was held back; that input will release it
            self._set(state, JobStatus.ready)
            if self.blame.failed_on(job_id) or state.must_be_exclusive:
                self.retries[job_id] = None
            else:
                self.ready.push(state.job)
