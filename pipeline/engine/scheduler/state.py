"""State of a run, and how each event changes it. No clock, no process, no file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from pipeline.config.schema import Barrier, ExecutionConfig, Keep
from pipeline.engine.devices.select import Layout
from pipeline.engine.scheduler.ready import (
    EXCLUSIVE,
    Kind,
    Needs,
    ReadyQueue,
    kind_of,
    paths_for_rows,
    ranks_of_rows,
)
from pipeline.engine.workers.messages import FailureKind
from pipeline.plan.graph import Job, Plan

# -- job state ---------------------------------------------------------------------------------------------------
# Status of each job of a run, as plain data.
#
#     pending -> ready -> running -> done
#     pending or ready -> stored        there before the run, or made by another run meanwhile
#     running -> ready, failed          a failed attempt that is retried, or was the last one
#     pending -> blocked                a job that it depends on has failed
#     done, stored -> pending           its output was found damaged


class JobStatus(Enum):
    """Status of a job."""

    pending = "pending"
    ready = "ready"
    running = "running"
    done = "done"
    stored = "stored"
    failed = "failed"
    blocked = "blocked"


# Not sets: the hash of an enum member is a Python function.
THERE = (JobStatus.done, JobStatus.stored)
SETTLED = (JobStatus.done, JobStatus.stored, JobStatus.failed, JobStatus.blocked)


@dataclass
class JobState:
    """One job of the run.

    Attributes:
        job: The job.
        status: Its status.
        waits_for: Number of inputs that are not there yet.
        attempts: Number of attempts begun.
        sent_s: When the last attempt was sent to its worker.
        failures: Number of failed attempts by kind of failure.
        reason: Why it failed, or is blocked.
        root_cause: The failed job that blocks it, or "".
        workers: While it runs, its workers in rank order; the first is given the job, the others lend their
            devices.
        exclusive: While it runs, whether it shares its device with no other job.
        limit_mb: While it runs beside others, MiB of its device reserved for it; else 0.
        must_be_exclusive: Whether its next attempt must have a device to itself, because memory ran out beside
            others.
        keep_models: Whether the worker that runs it may keep models of earlier jobs.
    """

    job: Job
    status: JobStatus = JobStatus.pending
    waits_for: int = 0
    attempts: int = 0
    sent_s: float = 0.0
    failures: Counter[FailureKind] = field(default_factory=Counter)
    reason: str = ""
    root_cause: str = ""
    workers: tuple[int, ...] = ()
    exclusive: bool = True
    limit_mb: int = 0
    must_be_exclusive: bool = False
    keep_models: bool = True


# -- worker state ------------------------------------------------------------------------------------------------
# Status of each worker of a run, as plain data, and how it changes.


class WorkerPhase(Enum):
    """Status of a worker."""

    starting = "starting"
    idle = "idle"
    running = "running"
    lent = "lent"  # its device serves a multi-GPU job that another worker was given
    gone = "gone"
    quarantined = "quarantined"  # it gets no more jobs; one that it has may go on


@dataclass
class WorkerState:
    """A slot of the pool and the state of its worker.

    Attributes:
        index: Number of the worker.
        device: Its device in words.
        quarantined: Whether it gets no more jobs.
        away: Whether its device is given back: it begins no more jobs, and has no process afterwards.
        gone: Whether its process has ended and no other was started.
        job_id: The job that it runs, or to which its device is lent; else "".
        lent: Whether the job uses only its device, and runs in another worker.
        waits: Whether it waits for a place to start a process in.
        up: Whether it has a process that could take a job.
        begun: Whether it has reported that the code of its job runs.
        fresh: Whether its process has run no job yet, and so holds no device memory.
        visible: CUDA_VISIBLE_DEVICES of its process.
        holds: Affinity keys of the models in its memory, the last used at the end.
        rss_bytes: Resident memory at the last heartbeat.
        held_mb: MiB of its device that it holds between jobs, where others share the device.
        ahead: Prefetched jobs, which it begins by itself after the current one, in this order.
    """

    index: int
    device: str = ""
    quarantined: bool = False
    away: bool = False
    gone: bool = False
    job_id: str = ""
    lent: bool = False
    waits: bool = False
    up: bool = False
    begun: bool = False
    fresh: bool = False
    visible: str = ""
    holds: list[str] = field(default_factory=list)
    rss_bytes: int = 0
    held_mb: int = 0
    ahead: list[str] = field(default_factory=list)

    @property
    def phase(self) -> WorkerPhase:
        """Return the status, from the state of the device, the job and the process."""
        if self.quarantined:
            return WorkerPhase.quarantined
        if self.lent:
            return WorkerPhase.lent
        if self.job_id:
            return WorkerPhase.running
        if self.gone:
            return WorkerPhase.gone
        return WorkerPhase.idle if self.up else WorkerPhase.starting

    def ready(self, device: str, visible: str) -> WorkerState:
        """Return the state with a new process: nothing that an earlier one held is in it.

        An assigned job stays.
        """
        made = WorkerState(self.index, device, quarantined=self.quarantined, up=True, fresh=True, visible=visible)
        return replace(made, job_id=self.job_id, lent=self.lent, away=self.away)

    def ends(self) -> None:
        """Note that its process is ended on purpose; a job that is assigned to it, or uses its device, stays."""
        self.up = self.fresh = False
        self.holds = []

    def lost(self) -> WorkerState:
        """Return the state after its process has ended, with everything in it gone."""
        return WorkerState(self.index, self.device, quarantined=self.quarantined, away=self.away, gone=True)

    def take(self, job_id: str, *, lent: bool) -> None:
        """Give it a job, or lend its device to one."""
        assert self.phase is WorkerPhase.idle
        self.job_id, self.lent, self.begun = job_id, lent, False

    def free(self) -> None:
        """Note that its job is over."""
        self.job_id, self.lent = "", False

    def remember(self, affinity: str, most: int, *, shared: bool) -> None:
        """Note the models now in its memory: those of its last jobs, or on a shared device those of this job."""
        if shared:
            self.holds = [affinity] if affinity else []
        elif affinity:
            others = [model for model in self.holds if model != affinity]
            self.holds = [*others, affinity][-most:]


# -- fault attribution -------------------------------------------------------------------------------------------
# Fault attribution: whether the job or the device is at fault when workers die. Pure.


BLAMED_ON_DEVICES = frozenset({FailureKind.lost, FailureKind.hang, FailureKind.device})
"""Failures that a broken device would cause. Raised exceptions and lost connections are not among them."""


class Blame:
    """Counts the jobs that each device has failed since it last finished one.

    A device becomes a suspect when it has failed several different jobs in a row that failed on no other device.
    If the same jobs then fail on another device too, the jobs are at fault.
    """

    def __init__(self, limit: int) -> None:
        """Start without failures.

        Args:
            limit: Number of different jobs in a row that make a device a suspect.
        """
        self._limit = limit
        self._suspicions: dict[Hashable, list[str]] = {}
        self._failed_on: dict[str, set[Hashable]] = {}

    def failed_on(self, job_id: str) -> Collection[Hashable]:
        """Return the devices on which a job has failed, which its next attempt should avoid."""
        return self._failed_on.get(job_id, frozenset())

    def finished(self, device: Hashable) -> None:
        """Note that a device finished a job, so it works."""
        self._suspicions.pop(device, None)

    def suspect(self, device: Hashable) -> list[str]:
        """Return the jobs that implicate a device if they are enough, else an empty list."""
        jobs = self._suspicions.get(device, [])
        return list(jobs) if len(jobs) >= self._limit else []

    def failed(self, job_id: str, device: Hashable, kind: FailureKind) -> None:
        """Note a failed attempt."""
        if kind not in BLAMED_ON_DEVICES:
            return
        devices = self._failed_on.setdefault(job_id, set())
        devices.add(device)
        if len(devices) > 1:
            for jobs in self._suspicions.values():
                if job_id in jobs:
                    jobs.remove(job_id)
        elif job_id not in (jobs := self._suspicions.setdefault(device, [])):
            jobs.append(job_id)


class RunState:
    """Every job and worker of a run.

    Attributes:
        plan: The plan.
        jobs: Job id -> its state.
        workers: Workers by index. Processes that come up, jobs that end and changes of a slot go through the
            methods here, so that idle workers are found without a scan.
        ready: Jobs that could start now, on any worker.
        retries: Ready jobs that failed on a worker before, which the next attempt avoids.
        reserved: Job with a reservation -> the machine whose idle workers are kept for it; in order.
        blame: Which device has failed which job.
        layout: The devices, and which worker is on which.
        needs: Memory needs of the jobs.
        unsettled: Number of jobs that are neither done nor given up.
        running: Jobs that run.
        held: Jobs that are not to start, as they are about to leave the plan.
    """

    def __init__(
        self,
        plan: Plan,
        stored: Collection[str],
        layout: Layout,
        settings: ExecutionConfig | None = None,
        *,
        needs: Needs | None = None,
        rows_first: bool = False,
    ) -> None:
        """Set up the state before the first event.

        Args:
            plan: The plan.
            stored: Ids of the jobs that need not run.
            layout: The devices, and which worker is on which.
            settings: Barrier, retries, number of models that a worker keeps; the defaults if None.
            needs: Memory needs of the jobs; unknown if None.
            rows_first: Whether to finish row by row and round by round, as a budget may end the run at any job.
        """
        settings = settings or ExecutionConfig()
        self.layout = layout
        self.needs = Needs(layout) if needs is None else needs
        self.workers = [WorkerState(index) for index in range(self.layout.workers)]
        # Contains all idle workers, and some that are not idle any more: every worker becomes idle through here.
        self._candidates: set[int] = set()
        self._usable: list[int] | None = None
        # For each kind of job: where it may run, and on how many devices at once; valid for this value of
        # `needs.changes`.
        self._fitting: dict[Kind, tuple[list[int], int]] = {}
        self._changes = 0
        self.blame = Blame(settings.retry.device_failures)
        self._models_in_memory = settings.models_in_memory
        self._is_strict = rows_first or settings.barrier is Barrier.round
        # With a barrier the rows of a round are done before the next round.
        usual = (settings.keep, settings.priority, settings.barrier) == (Keep.all, None, Barrier.none)
        self._rows_early, self._rows_first = usual and not rows_first, rows_first
        self._adopt(plan, {}, set(stored))

    def _adopt(self, plan: Plan, known: dict[str, JobState], stored: set[str]) -> None:
        """Take a plan, whose jobs begin in the known states; none of these is ready."""
        self.plan, self.held = plan, set[str]()
        self.jobs = {
            job.id: replace(known[job.id], job=job) if job.id in known else JobState(job)
            for job in plan.jobs.values()
        }
        settled = stored | {job_id for job_id, state in self.jobs.items() if state.status in SETTLED}
        # The order under a budget does not depend on what was timed.
        whole_s = {job.id: job.size_s if self._rows_first else job.seconds for job in plan.jobs.values()}
        left_s = {job_id: 0.0 if job_id in settled else seconds for job_id, seconds in whole_s.items()}
        early = self._rows_early
        paths = paths_for_rows(plan, left_s, len(self.workers)) if early else plan.longest_paths(left_s)
        self.ready = ReadyQueue(plan, paths, ranks_of_rows(plan) if self._rows_first else None)
        self.retries: dict[str, None] = {}
        self._kinds = list({kind_of(job): job for job in plan.jobs.values()}.values())
        self._fitting.clear()
        self.reserved: dict[str, int] = {}
        # Unsettled jobs of each round, and jobs that wait only for their round.
        self._open, self._for_round = Counter[int](), list[str]()
        self.unsettled = self.running = 0
        for state in self.jobs.values():
            self._open[state.job.round] += state.status not in SETTLED
            self.unsettled += state.status not in SETTLED
            self.running += state.status is JobStatus.running
        for job_id in sorted(stored & self.jobs.keys() - known.keys()):
            self._set(self.jobs[job_id], JobStatus.stored)
        waiting = [state for state in self.jobs.values() if state.status is JobStatus.pending]
        for state in self.jobs.values():
            state.waits_for = self._count_missing(state.job.id)
        self._release([state.job.id for state in waiting if state.waits_for == 0])

    def hold(self, job_ids: Iterable[str]) -> list[str]:
        """Let no more of some jobs start; return those that run."""
        for state in map(self.jobs.__getitem__, set(job_ids) - self.held):
            if state.status is JobStatus.ready:
                self._unqueue(state)
                self._set(state, JobStatus.pending)
            self.held.add(state.job.id)
        return [job_id for job_id in self.held if self.jobs[job_id].status is JobStatus.running]

    def change_plan(self, plan: Plan, missing: Collection[str], delayed: Collection[str] = ()) -> list[str]:
        """Go on with another plan; a job with the same id and key in both goes on where it is.

        Args:
            plan: The plan. Every job that runs is in it.
            missing: Ids of the jobs in it whose outputs are needed and not there, as the store says.
            delayed: Ids of the jobs that something else releases.

        Returns:
            Ids of the jobs that are newly blocked, as they need a job that has failed.
        """
        needed, known = set(missing), dict[str, JobState]()
        for job_id, state in self.jobs.items():
            same = job_id in plan.jobs and plan.jobs[job_id].key == state.job.key
            assert same or state.status is not JobStatus.running
            if same and state.status in (JobStatus.running, JobStatus.failed):
                known[job_id] = state
            elif same and job_id in needed:
                known[job_id] = replace(state, status=JobStatus.pending, reason="", root_cause="")
            elif same and state.status is JobStatus.done:
                known[job_id] = state
        self._adopt(plan, known, plan.jobs.keys() - needed)
        for job_id in delayed:
            if job_id in needed:
                self.wait(job_id)
        failed = [job_id for job_id, state in self.jobs.items() if state.status is JobStatus.failed]
        return [blocked for job_id in failed for blocked in self._block_below(job_id)]

    # -- workers -----------------------------------------------------------------------------------------------

    def worker_ready(self, index: int, device: str, visible: str = "") -> None:
        """Note that a worker is up; models that it held before are not in this process."""
        self.workers[index] = self.workers[index].ready(device, visible)
        self._candidates.add(index)

    def quarantine(self, index: int, *, quarantined: bool = True) -> None:
        """Quarantine a worker, or release it."""
        self.workers[index].quarantined = quarantined
        self._places_changed(index)

    def leave(self, index: int, *, away: bool = True) -> None:
        """Let a worker begin no more jobs because its device is given back, or let it begin jobs again."""
        self.workers[index].away = away
        self._places_changed(index)

    def adopt_layout(self, layout: Layout) -> None:
        """Go on with other devices; workers of new ones have no process yet."""
        self.layout = layout
        self.needs.adopt(layout)
        new = range(len(self.workers), layout.workers)
        self.workers += [WorkerState(index, away=True, gone=True) for index in new]

    def _places_changed(self, index: int) -> None:
        self._candidates.add(index)
        self._usable = None
        self._fitting.clear()

    def worker_lost(self, index: int) -> str:
        """Note that a worker ended. If its device was lent, its job goes on: it uses only the device.

        Returns:
            The job that it ran, or "".
        """
        worker = self.workers[index]
        if worker.lent:
            worker.ends()
            return ""
        job_id = self._free(index) if worker.job_id else ""
        self.workers[index] = worker.lost()
        return job_id

    @property
    def is_plain(self) -> bool:
        """Whether each device has one worker and is large enough for every job, so that memory is not checked."""
        return self.layout.slots == 1 and self.needs.fit_everywhere(self._kinds)

    def usable_workers(self) -> list[int]:
        """Return the workers that may begin jobs."""
        return [worker.index for worker in self.workers if not (worker.quarantined or worker.away)]

    def usable_devices(self) -> list[int]:
        """Return the devices with a usable worker."""
        if self._usable is None:
            self._usable = sorted({self.layout.device_of(index) for index in self.usable_workers()})
        return self._usable

    def waiting_devices(self) -> list[int]:
        """Return the devices of which nobody knows when they take jobs."""
        return [self.layout.device_of(worker.index) for worker in self.workers if worker.waits]

    def fitting_devices(self, job: Job) -> list[int]:
        """Return the usable devices on which a job fits."""
        return self._places(job)[0]

    def most_devices(self, job: Job) -> int:
        """Return how many of the fitting devices a job could have at once."""
        return self._places(job)[1]

    def _places(self, job: Job) -> tuple[list[int], int]:
        if self._changes != self.needs.changes:
            self._changes = self.needs.changes
            self._fitting.clear()
        if (kind := kind_of(job)) not in self._fitting:
            devices = self.needs.fitting(job, self.usable_devices())
            self._fitting[kind] = devices, self.layout.most_together(devices)
        return self._fitting[kind]

    def slots_of(self, job: Job) -> int:
        """Return how many worker slots a job takes: all slots of its devices if it needs several, else one."""
        return job.devices * self.layout.slots if job.devices > 1 else 1

    def charge(self, job_id: str, device: int) -> float:
        """Return the MiB reserved for a job on a device, or `EXCLUSIVE`."""
        state = self.jobs[job_id]
        if state.must_be_exclusive or (state.status is JobStatus.running and state.exclusive):
            return EXCLUSIVE
        return self.needs.charge(state.job, device)

    def idle_workers(self) -> list[WorkerState]:
        """Return the workers that could take a job, in order of index."""
        workers = [self.workers[index] for index in sorted(self._candidates)]
        idle = [worker for worker in workers if worker.phase is WorkerPhase.idle and not worker.away]
        if len(idle) < len(workers):
            self._candidates = {worker.index for worker in idle}
        return idle

    # -- jobs --------------------------------------------------------------------------------------------------

    @property
    def can_start(self) -> bool:
        """Whether a job could start now if a worker were idle."""
        return bool(self.ready or self.retries)

    def reserve(self, job_id: str, node: int = 0) -> None:
        """Keep idle workers of a machine for a ready job until it starts."""
        self.reserved[job_id] = node

    def start(
        self, job_id: str, index: int, members: Sequence[int] = (), now_s: float = 0.0, *, ahead: bool = False
    ) -> None:
        """Give a ready job to an idle worker, and lend it the devices of further idle workers.

        Args:
            job_id: The job.
            index: The worker.
            members: The others.
            now_s: Current time.
            ahead: Whether to prefetch it: it goes to a worker that has other jobs before it, and has its device to
                itself.
        """
        state, leader = self.jobs[job_id], self.workers[index]
        assert state.status is JobStatus.ready
        assert len({index, *members}) == state.job.devices
        charge = EXCLUSIVE if ahead else self.charge(job_id, self.layout.device_of(index))
        self._unqueue(state)
        self._set(state, JobStatus.running)
        state.attempts += 1
        state.workers, state.keep_models = (index, *members), True
        state.exclusive = math.isinf(charge)
        state.limit_mb = 0 if state.exclusive else int(charge)
        if ahead:
            leader.ahead.append(job_id)
            return
        state.sent_s = now_s
        for worker in state.workers:
            self.workers[worker].take(job_id, lent=worker != index)
        if not members:
            leader.fresh = False
            shared = self.layout.slots > 1
            # On shared devices a worker may hold only the models of its job: memory kept for later is missing to
            # the others.
            state.keep_models = not shared or leader.holds == [state.job.affinity]
            leader.remember(state.job.affinity, self._models_in_memory, shared=shared)

    def begin_ahead(self, index: int, now_s: float) -> None:
        """Note that a worker goes on to its next prefetched job."""
        worker = self.workers[index]
        job_id = worker.ahead.pop(0)
        worker.take(job_id, lent=False)
        self.jobs[job_id].sent_s = now_s

    def give_back(self, job_id: str, index: int) -> None:
        """Take back a prefetched job that its worker will not begin, as if it had not been assigned."""
        state = self.jobs[job_id]
        self.workers[index].ahead.remove(job_id)
        state.attempts -= 1
        state.workers = ()
        self.retry(job_id)

    def is_current(self, index: int, job_id: str, attempt: int) -> bool:
        """Return whether a worker may report on an attempt: its latest, and not one that only uses its device."""
        worker = self.workers[index]
        return worker.job_id == job_id and not worker.lent and self.jobs[job_id].attempts == attempt

    def finished(self, index: int, peak_mb: int | None = None, held_mb: int = 0) -> None:
        """Note that a worker has finished its job.

        Args:
            index: The worker.
            peak_mb: Peak memory of the job on its device in MiB; None if unknown.
            held_mb: MiB that the worker still holds.
        """
        workers = self.jobs[self.workers[index].job_id].workers
        job_id = self._free(index)
        self.workers[index].held_mb = held_mb
        self.needs.measured(self.jobs[job_id].job, peak_mb)
        for worker in workers:
            self.blame.finished(self.layout.device_of(worker))
        self._arrive(job_id, JobStatus.done)

    def found(self, job_id: str) -> None:
        """Note that the output of a ready or pending job is stored after all: another run has made it."""
        if self.jobs[job_id].status is JobStatus.ready:
            self._unqueue(self.jobs[job_id])
        self._arrive(job_id, JobStatus.stored)

    def wait(self, job_id: str) -> None:
        """Hold a job back for a moment, or until something outside of this run; `retry` releases it."""
        state = self.jobs[job_id]
        if state.status is JobStatus.ready:
            self._unqueue(state)
        self._set(state, JobStatus.pending)

    def reopen(self, job_id: str) -> bool:
        """Note that the output of a finished job is gone or unusable, so that it has to run again.

        The caller checks whether its own inputs are still there.

        Returns:
            False if the job did not count as finished, so that nothing changes.
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
        self.retry(job_id)
        return True

    def raised(self, index: int, held_mb: int = 0) -> str:
        """Note that a worker's job raised; the worker is free again.

        Args:
            index: The worker.
            held_mb: Memory of its device that it still holds.

        Returns:
            The job, still to be failed or retried.
        """
        self.workers[index].held_mb = held_mb
        return self._free(index)

    def ran_out_of_memory(self, job_id: str, index: int) -> bool:
        """Note that a job ran out of device memory, and raise its estimated need.

        Returns:
            Whether other jobs may be at fault. The next attempt then has a device to itself.
        """
        state, device = self.jobs[job_id], self.layout.device_of(index)
        if state.exclusive:
            self.needs.ran_out_exclusively(state.job, device)
            return False
        self.needs.ran_out_beside_others(state.job, device)
        state.must_be_exclusive = True
        return True

    def retry(self, job_id: str) -> None:
        """Let a job be tried again after an attempt without result, once its inputs are there."""
        state = self.jobs[job_id]
        self._set(state, JobStatus.pending)
        state.waits_for = self._count_missing(job_id)
        if state.waits_for == 0:
            self._release([job_id])

    def fail(self, job_id: str, reason: str) -> list[str]:
        """Give up a job and all jobs that depend on it.

        Returns:
            Ids of the jobs that it blocks.
        """
        state = self.jobs[job_id]
        state.reason = reason
        self._set(state, JobStatus.failed)
        blocked = self._block_below(job_id)
        self._release(())
        return blocked

    def _block_below(self, job_id: str) -> list[str]:
        blocked = []
        frontier = self.plan.readers(job_id)
        while frontier:
            below = self.jobs[frontier.pop()]
            if below.status is JobStatus.pending:
                below.reason, below.root_cause = f"needs {job_id}, which failed", job_id
                self._set(below, JobStatus.blocked)
                blocked.append(below.job.id)
                frontier += self.plan.readers(below.job.id)
        return blocked

    # -- inside ------------------------------------------------------------------------------------------------

    def _free(self, index: int) -> str:
        """Take the job from a worker, and return the devices lent to it."""
        job_id = self.workers[index].job_id
        for worker in self.jobs[job_id].workers:
            self.workers[worker].free()
            self._candidates.add(worker)
        self.jobs[job_id].workers = ()
        return job_id

    def _count_missing(self, job_id: str) -> int:
        return sum(self.jobs[upstream].status not in THERE for upstream in self.plan.inputs(job_id))

    def _arrive(self, job_id: str, status: JobStatus) -> None:
        """Note that the output of a job is there."""
        self._set(self.jobs[job_id], status)
        arrived = []
        for reader in map(self.jobs.__getitem__, self.plan.readers(job_id)):
            # A reader that runs or is settled has read an earlier output with the same content.
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
        self._open[state.job.round] -= change
        state.status = status

    def _release(self, job_ids: Iterable[str]) -> None:
        """Make jobs ready whose inputs are there, but hold them back until their round begins."""
        first = (
            min((number for number, jobs in self._open.items() if jobs), default=0) if self._is_strict else None
        )
        waiting, self._for_round = [*self._for_round, *job_ids], []
        for state in map(self.jobs.__getitem__, waiting):
            if first is not None and state.job.round > first:
                self._for_round.append(state.job.id)
            elif state.status is JobStatus.pending and not state.waits_for and state.job.id not in self.held:
                self._set(state, JobStatus.ready)
                if self.blame.failed_on(state.job.id) or state.must_be_exclusive:
                    self.retries[state.job.id] = None
                else:
                    self.ready.push(state.job)
