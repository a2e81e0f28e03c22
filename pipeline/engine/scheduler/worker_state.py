"""Where each worker of a run stands, as plain data, and how that changes.

starting --> idle --> running or lent --> idle, with a fresh process by way of starting
any of them --> gone          its process has ended; another starts
any of them --> quarantined   it is given no more jobs, until it is released
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from pipeline.engine.status import GpuLoad


class WorkerPhase(Enum):
    """What a worker is doing."""

    starting = "starting"
    idle = "idle"
    running = "running"
    lent = "lent"
    """Its device serves a job of several devices that another worker was given."""
    gone = "gone"
    quarantined = "quarantined"


@dataclass
class WorkerState:
    """One place in the pool and what it does.

    Attributes:
        index: Number of the worker.
        device: Its device in words.
        phase: What it is doing; changed by the methods alone.
        job_id: The job that it runs, or to which its device is lent; or "".
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
    phase: WorkerPhase = WorkerPhase.starting
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

    @property
    def usable(self) -> bool:
        """Whether it is given jobs at all."""
        return self.phase is not WorkerPhase.quarantined

    # -- its process -------------------------------------------------------------------------------------------

    def ready(self, device: str, visible: str) -> WorkerState:
        """The place with a process that is up; what an earlier one held is not in it."""
        made = WorkerState(self.index, device, WorkerPhase.idle, up=True, fresh=True, visible=visible)
        if self.job_id:  # started anew for a job that is to come, or while its device is lent
            made.phase, made.job_id, made.started_s = self.phase, self.job_id, self.started_s
        return made

    def lost(self) -> WorkerState:
        """The place without a process."""
        return WorkerState(self.index, self.device, WorkerPhase.gone if self.usable else self.phase)

    def starts(self) -> None:
        """A process begins in a place without one."""
        self.phase = WorkerPhase.starting

    def renew(self) -> None:
        """Its process is being replaced; a job that it has stays with it."""
        self.up = self.fresh = False
        self.holds = []
        if self.phase is WorkerPhase.idle:
            self.phase = WorkerPhase.starting

    # -- its job -----------------------------------------------------------------------------------------------

    def take(self, job_id: str, now_s: float, *, lent: bool) -> None:
        """It is given a job, or its device is lent to one."""
        assert self.phase is WorkerPhase.idle
        self.phase = WorkerPhase.lent if lent else WorkerPhase.running
        self.job_id, self.started_s = job_id, now_s
        self.done, self.total, self.tokens, self.begun = 0, 0, 0, False

    def free(self) -> None:
        """Its job is over."""
        self.job_id = ""
        if self.usable:
            self.phase = WorkerPhase.idle if self.up else WorkerPhase.starting

    # -- its device --------------------------------------------------------------------------------------------

    def quarantine(self) -> None:
        """It is given no more jobs; one that it has may go on."""
        self.phase = WorkerPhase.quarantined

    def release(self) -> None:
        """It is given jobs again, and has its process still."""
        idle = WorkerPhase.idle if self.up else WorkerPhase.starting
        self.phase = WorkerPhase.running if self.job_id else idle

    # -- its memory --------------------------------------------------------------------------------------------

    def keeps_models(self, affinity: str, *, shared: bool) -> bool:
        """Whether it may keep models in its memory for a job.

        On a device that it shares with other workers, only if the job works with the same: what one holds for
        later, the others lack now.
        """
        return not shared or (affinity != "" and self.holds == [affinity])

    def remember(self, affinity: str, most: int, *, shared: bool) -> None:
        """Note which models it has in memory now: those of its last jobs, or on a shared device of this one."""
        if shared:
            self.holds = [affinity] if affinity else []
        elif affinity:
            others = [held for held in self.holds if held != affinity]
            self.holds = [*others, affinity][-most:]
