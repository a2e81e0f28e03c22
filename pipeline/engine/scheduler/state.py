"""The state of a run as plain data, and how each event changes it. No clock, no process, no file.

pending -> ready -> running -> done -----.
   |        ^ |        |-----> failed    |
   |        | |        |                 |
   |        '-|--------'                 |   a failed attempt that is retried
   |          '-> stored                 |   there before the run, or made by another run meanwhile
   '-> blocked      |                    |   something it reads has failed
   ^----------------'--------------------'   its output was found damaged
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from pipeline.config.schema import Barrier
from pipeline.engine.devices.layout import Layout, plain_layout
from pipeline.engine.scheduler.fault_attribution import Blame
from pipeline.engine.scheduler.memory_needs import WHOLE, Needs
from pipeline.engine.scheduler.ready import ReadyQueue, kind_of
from pipeline.engine.status import GpuLoad
from pipeline.engine.workers.failure import FailureKind
from pipeline.errors import PlanError
from pipeline.plan.graph import Plan
from pipeline.plan.job import Job


class JobStatus(Enum):
    """Where a job stands."""

    pending = "pending"
    ready = "ready"
    running = "running"
    done = "done"
    stored = "stored"
    failed = "failed"
    blocked = "blocked"


THERE = frozenset({JobStatus.done, JobStatus.stored})
SETTLED = frozenset({JobStatus.done, JobStatus.stored, JobStatus.failed, JobStatus.blocked})


@dataclass
class JobState:
    """One job of the run.

    Attributes:
        job: The job.
        status: Where it stands.
        waits_for: Inputs that are not there yet.
        attempts: How many were begun.
        failures: How many of them failed in each way.
        reason: Why it failed, or is blocked.
        root_cause: The failed job that blocks it, or "".
        workers: While it runs, its workers in the order of ranks; the first is given the job, the others lend
            their devices.
        whole: While it runs, whether it shares its device with no other job.
        alone: Whether its next attempt must have a device to itself, since memory ran out beside others.
        keep_models: Whether the worker that runs it may keep models of earlier jobs.
    """

    job: Job
    status: JobStatus = JobStatus.pending
    waits_for: int = 0
    attempts: int = 0
    failures: Counter[FailureKind] = field(default_factory=Counter)
    reason: str = ""
    root_cause: str = ""
    workers: tuple[int, ...] = ()
    whole: bool = True
    alone: bool = False
    keep_models: bool = True


@dataclass
class WorkerState:
    """One place in the pool and what it does.

    Attributes:
        index: Number of the worker.
        device: Its device in words.
        status: ``starting``, ``idle``, ``running``, ``parked``, ``gone`` or ``quarantined``.
        job_id: The job that it runs, or for which it is parked: its device is lent to that job; or "".
        started_s: When that job was given to it.
        up: Whether there is a process that could take a job.
        begun: Whether it has said that the code of its job runs.
        fresh: Whether that process has run no job, and so holds no memory of its device.
        visible: What the process was given as CUDA_VISIBLE_DEVICES.
        holds: Affinity keys whose models it has in memory, the one used last at the end.
        done: Samples of its job that are finished.
        total: Samples that its job has.
        tokens: Tokens of its job so far.
        rss_bytes: Resident memory at the last heartbeat.
        gpu: Its GPU at the last heartbeat.
        held_mb: Memory of its device that it holds between jobs, where others share the device.
    """

    index: int
    device: str = ""
    status: str = "starting"
    job_id: str = ""
    started_s: float = 0.0
    up: bool = False
    begun: bool = False
    fresh: bool = False
    visible: str = ""
    holds: list[str] = field(default_factory=list)
    done: int = 0
    total: int = 0
    tokens: int = 0
    rss_bytes: int = 0
    gpu: GpuLoad | None = None
    held_mb: int = 0


Cell = tuple[str, int]
"""A chain and a round."""


class RunState:
    """Every job and worker of a run.

    Attributes:
        plan: What is carried out.
        jobs: Job id -> its state.
        workers: By index.
        ready: Jobs that could start now, on any worker.
        retries: Jobs that could start now and have failed on a worker before, which the next attempt avoids.
        reserved: The job of several devices for which idle workers are kept, or "".
        blame: Which device has failed which job.
        layout: The devices, and which worker is on which.
        needs: What jobs take of their memory.
        cells: Chain and round -> number of jobs by status.
        unsettled: Jobs that are neither there nor given up.
        running: Jobs that run.
        seconds_left: Estimated seconds of unsettled jobs, each times the workers whose places it takes.
        samples: Of jobs that finished in this run.
        tokens: Of jobs that finished in this run.
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
        """
        self.layout = plain_layout(num_workers) if layout is None else layout
        self.needs = Needs(self.layout) if needs is None else needs
        self.plan = plan
        self.jobs = {job.id: JobState(job) for job in plan.jobs.values()}
        self.workers = [WorkerState(index) for index in range(num_workers)]
        self.ready = ReadyQueue(plan.path_s)
        self.retries: dict[str, None] = {}
        self._kinds = list({kind_of(job): job for job in plan.jobs.values()}.values())
        self.reserved = ""
        self.blame = Blame(device_failures)
        self.cells: dict[Cell, Counter[JobStatus]] = {}
        self.unsettled = len(self.jobs)
        self.running = 0
        self.seconds_left = sum(job.seconds * self.slots_of(job) for job in plan.jobs.values())
        self.samples = 0
        self.tokens = 0
        self._models_in_memory = models_in_memory
        self._barrier = barrier
        self._unsettled_in_round = Counter(job.round for job in plan.jobs.values())
        self._held_back: dict[int, list[str]] = {}
        self._enter(set(stored))

    def _enter(self, stored: set[str]) -> None:
        for state in self.jobs.values():
            self.cells.setdefault(cell_of(state.job), Counter())[JobStatus.pending] += 1
        for job_id in sorted(stored & set(self.jobs)):
            self._set(self.jobs[job_id], JobStatus.stored)
        for state in self.jobs.values():
            state.waits_for = self._count_missing(state.job.id)
        self._release([state.job.id for state in self.jobs.values() if state.waits_for == 0])

    # -- workers -----------------------------------------------------------------------------------------------

    def worker_ready(self, index: int, device: str, visible: str = "") -> None:
        """A worker reported that it is up; whatever it held before is not in this process."""
        before = self.workers[index]
        made = WorkerState(index, device=device, status="idle", up=True, fresh=True, visible=visible)
        if before.job_id:  # started anew for a job that is to come, or parked
            made.status, made.job_id, made.started_s = before.status, before.job_id, before.started_s
        self.workers[index] = made

    def worker_lost(self, index: int) -> str:
        """A worker ended. One that is parked is not missed: the job has only its device.

        Returns:
            The job that it ran, or "".
        """
        worker = self.workers[index]
        if self.is_lent(index):
            worker.up = worker.fresh = False
            return ""
        job_id = self._free(index) if worker.job_id else ""
        status = "quarantined" if worker.status == "quarantined" else "gone"
        self.workers[index] = WorkerState(index, device=worker.device, status=status)
        return job_id

    def quarantine(self, index: int) -> None:
        """Give a place no more jobs."""
        self.workers[index].status = "quarantined"

    def renew(self, index: int) -> None:
        """The process of a worker is being replaced on purpose, for a job that needs the memory it holds."""
        worker = self.workers[index]
        worker.up = worker.fresh = False
        if worker.status == "idle":
            worker.status = "starting"

    def is_lent(self, index: int) -> bool:
        """Whether the device of a worker serves a job that another worker was given."""
        job_id = self.workers[index].job_id
        return bool(job_id) and self.jobs[job_id].workers[0] != index

    def is_gathered(self, job_id: str) -> bool:
        """Whether no process of its own workers holds memory that a job of several devices is about to use."""
        workers = [self.workers[index] for index in self.jobs[job_id].workers]
        return all(worker.up and (worker.fresh or len(workers) == 1) for worker in workers)

    def usable_workers(self) -> list[int]:
        """Places that are not quarantined."""
        return [worker.index for worker in self.workers if worker.status != "quarantined"]

    @property
    def is_plain(self) -> bool:
        """Whether each device has one worker and will do for every job: then nobody need look at memory."""
        return self.layout.slots == 1 and self.needs.fit_everywhere(self._kinds)

    @property
    def most_needed(self) -> int:
        """MiB of a device that the most demanding job needs of those that could start now, as far as is known."""
        needs = [self.needs.of_kind(*kind[1:]) for kind in self.ready.alike]
        return max(
            [need or 0 for need in (*needs, *(self.needs.of(self.jobs[name].job) for name in self.retries))],
            default=0,
        )

    def usable_devices(self) -> list[int]:
        """Devices of which a place is left."""
        return sorted({self.layout.device_of(index) for index in self.usable_workers()})

    def fitting_devices(self, job: Job) -> list[int]:
        """Those of them on which a job may run."""
        return self.needs.fitting(job, self.usable_devices())

    def slots_of(self, job: Job) -> int:
        """How many workers' places a job takes: those of several devices, or one."""
        return job.devices * self.layout.slots if job.devices > 1 else 1

    def charge(self, job_id: str, device: int) -> float:
        """MiB that are set aside for a job on a device, or `WHOLE`."""
        state = self.jobs[job_id]
        if state.alone or (state.status is JobStatus.running and state.whole):
            return WHOLE
        return self.needs.charge(state.job, device)

    def idle_workers(self) -> list[WorkerState]:
        """Workers that could take a job."""
        return [worker for worker in self.workers if worker.status == "idle"]

    # -- jobs --------------------------------------------------------------------------------------------------

    @property
    def can_start(self) -> bool:
        """Whether a job could start now if a worker were idle."""
        return bool(self.ready or self.retries)

    def too_wide(self) -> list[str]:
        """Jobs that could start now but for needing more devices, or larger ones, than are left."""
        found = [name for name in self.retries if self._is_too_wide(self.jobs[name].job)]
        for alike in self.ready.alike.values():
            names = (name for _, bucket in alike.buckets() for ids in bucket.values() for name in ids)
            first = next(names)
            if self._is_too_wide(self.jobs[first].job):
                found += [first, *names]
        return found

    def _is_too_wide(self, job: Job) -> bool:
        return job.devices > len(self.fitting_devices(job))

    def reserve(self, job_id: str) -> None:
        """Keep idle workers for a ready job until it starts."""
        self.reserved = job_id

    def start(self, job_id: str, index: int, members: Sequence[int] = (), now_s: float = 0.0) -> int:
        """A ready job goes to an idle worker, and with it the devices of further idle ones, which are parked.

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
        state.workers = (index, *members)
        for place in state.workers:
            worker = self.workers[place]
            assert worker.status == "idle"
            worker.status, worker.job_id, worker.started_s = "parked", job_id, now_s
            worker.done, worker.total, worker.tokens, worker.begun = 0, 0, 0, False
        leader = self.workers[index]
        leader.status, leader.total = "running", state.job.samples
        state.whole = math.isinf(charge)
        if not members:
            leader.fresh = False
            state.keep_models = self._keeps_models(leader, state.job.affinity)
            self._remember(leader, state.job.affinity)
        return state.attempts

    def is_current(self, index: int, job_id: str, attempt: int) -> bool:
        """Whether a worker's message is about the attempt that it was given last."""
        return self.workers[index].job_id == job_id and self.jobs[job_id].attempts == attempt

    def finished(
        self, index: int, samples: int, tokens: int, peak_mb: int | None = None, held_mb: int = 0
    ) -> None:
        """A worker has finished its job.

        Args:
            index: The worker.
            samples: Of the job.
            tokens: Of the job.
            peak_mb: Most memory of its device that it held meanwhile; None where that is unknown.
            held_mb: What of that it still holds.
        """
        workers = self.jobs[self.workers[index].job_id].workers
        job_id = self._free(index)
        self.workers[index].held_mb = held_mb
        self.needs.measured(self.jobs[job_id].job, peak_mb)
        self.samples += samples
        self.tokens += tokens
        for worker in workers:
            self.blame.finished(self.layout.device_of(worker))
        self._arrive(job_id, JobStatus.done)

    def found(self, job_id: str) -> None:
        """The output of a ready job is there after all: another run has made it."""
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
        if state.whole:
            self.needs.ran_out_alone(state.job, device)
            return False
        self.needs.ran_out_beside_others(state.job, device)
        state.alone = True
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
            worker = self.workers[place]
            worker.job_id = ""
            if worker.status != "quarantined":
                worker.status = "idle" if worker.up else "starting"
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
        if state.job.id == self.reserved:
            self.reserved = ""
        if state.job.id in self.retries:
            del self.retries[state.job.id]
        else:
            self.ready.remove(state.job)

    def _keeps_models(self, worker: WorkerState, affinity: str) -> bool:
        """Whether a worker may keep models in its memory for a job.

        On a device with several workers, only if the job works with the same: what one holds for later, the others
        lack now.
        """
        return self.layout.slots == 1 or (affinity != "" and worker.holds == [affinity])

    def _remember(self, worker: WorkerState, affinity: str) -> None:
        if self.layout.slots > 1:
            worker.holds = [affinity] if affinity else []
        elif affinity:
            others = [held for held in worker.holds if held != affinity]
            worker.holds = [*others, affinity][-self._models_in_memory :]

    def _set(self, state: JobState, status: JobStatus) -> None:
        counts = self.cells[cell_of(state.job)]
        counts[state.status] -= 1
        counts[status] += 1
        self.running += (status is JobStatus.running) - (state.status is JobStatus.running)
        change = (status in SETTLED) - (state.status in SETTLED)
        self.unsettled -= change
        self.seconds_left -= change * state.job.seconds * self.slots_of(state.job)
        self._unsettled_in_round[state.job.round] -= change
        state.status = status

    def _release(self, job_ids: Iterable[str]) -> None:
        """Make jobs ready whose inputs are there, or keep them until their round is open."""
        for job_id in job_ids:
            state = self.jobs[job_id]
            if state.status is JobStatus.pending:
                self._held_back.setdefault(state.job.round, []).append(job_id)
        self._open_rounds()

    def _open_rounds(self) -> None:
        open_rounds = self._held_back
        if self._barrier is Barrier.round:
            first = min((number for number, left in self._unsettled_in_round.items() if left), default=0)
            open_rounds = {number: ids for number, ids in self._held_back.items() if number <= first}
        for number in sorted(open_rounds):
            for job_id in self._held_back.pop(number):
                state = self.jobs[job_id]
                if state.status is not JobStatus.pending or state.waits_for:
                    continue  # an input was found damaged while it was held back; that input will release it
                self._set(state, JobStatus.ready)
                if self.blame.failed_on(job_id) or state.alone:
                    self.retries[job_id] = None
                else:
                    self.ready.push(state.job)


def cell_of(job: Job) -> Cell:
    """Where a job is counted."""
    return job.chain, job.round


def too_few_devices(job: Job, devices: Sequence[int], layout: Layout, needs: Needs) -> str:
    """Say why a job cannot run on some devices: there are too few of them, or they are too small."""
    usable = len(devices)
    if job.devices <= usable:
        return _too_large(job, devices, layout, needs)
    there = "there is 1" if usable == 1 else f"there are {usable}"
    return (
        f"{job.id} needs {job.devices} devices at once, and {there}. Ask for fewer (training.gpus_per_job), or "
        "run with more (distributed.num_gpus, execution.workers)"
    )


def _too_large(job: Job, devices: Sequence[int], layout: Layout, needs: Needs) -> str:
    places = [layout.places[device] for device in devices]
    have = ", ".join(f"{place.label} has {_gib(place.free_mb or 0)} free" for place in places)
    fitting = len(needs.fitting(job, devices))
    each = "" if job.devices == 1 else f" on each of {job.devices} devices"
    found = "no device of this run has so much" if not fitting else f"only {fitting} of this run have so much"
    return (
        f"{job.id} needs {_gib(needs.of(job) or 0)} of device memory{each}, and {found}: {have}. Try a smaller "
        "training.micro_batch_size or generation.batch_size, or share the training by training.gpus_per_job and "
        "training.strategy=fsdp; or correct what memory_mb says"
    )


def _gib(mebibytes: int) -> str:
    return f"{mebibytes / 1024:.1f} GiB"


def check_runnable(
    plan: Plan, layout: Layout, stored: Collection[str] = (), peaks: Mapping[str, int] | None = None
) -> None:
    """Refuse what this engine cannot carry out.

    Args:
        plan: The plan.
        layout: The devices.
        stored: Ids of the jobs that need not run.
        peaks: Memory that jobs took in earlier runs, by `Job.memory_kind`.

    Raises:
        PlanError: A job needs more devices than there are, or larger ones, its id cannot name a folder, or its
            payload is no plain data.
    """
    needs, devices = Needs(layout, peaks), range(len(layout.places))
    for job in plan.jobs.values():
        if job.id not in stored and job.devices > len(needs.fitting(job, devices)):
            raise PlanError(too_few_devices(job, devices, layout, needs))
        if any(part in ("", ".", "..") for part in job.id.split("/")) or "\0" in job.id:
            raise PlanError(f"'{job.id}' cannot be the id of a job: its log would leave the run's folder")
        try:
            json.dumps(job.payload)
        except (TypeError, ValueError) as error:
            raise PlanError(
                f"{job.id}: its payload cannot be sent to a worker ({error}); it must be plain data: numbers, "
                "texts, lists and mappings"
            ) from error
