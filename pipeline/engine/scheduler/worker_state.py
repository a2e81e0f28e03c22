"""Where each worker of a run stands, as plain data, and how that changes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum


class WorkerPhase(Enum):
    """What a worker is doing."""

    starting = "starting"
    idle = "idle"
    running = "running"
    lent = "lent"  # its device serves a job of several devices that another worker was given
    gone = "gone"
    quarantined = "quarantined"  # it is given no more jobs; one that it has may go on


@dataclass
class WorkerState:
    """One place in the pool and what it does.

    Attributes:
        index: Number of the worker.
        device: Its device in words.
        node: The machine that it is on, where a run has several.
        quarantined: Whether it is given no more jobs.
        gone: Whether its process has ended and no other was started.
        absent: Whether its machine is still to join the run, if it ever does.
        job_id: The job that it runs, or to which its device is lent; or "".
        lent: Whether it is its device alone that the job has.
        started_s: When that job was given to it.
        up: Whether there is a process that could take a job.
        begun: Whether it has said that the code of its job runs.
        fresh: Whether that process has run no job, and so holds no memory of its device.
        visible: What the process was given as CUDA_VISIBLE_DEVICES.
        holds: Affinity keys whose models it has in memory, the one used last at the end.
        rss_bytes: Resident memory at the last heartbeat.
        held_mb: Memory of its device that it holds between jobs, where others share the device.
        ahead: Jobs that it was given to begin by itself after that one, in this order.
        recalled: Whether it was asked to give those back.
        unanswered: How often it was asked so and has not answered yet.
        by_itself: Whether it is to begin its job by itself, having been given it ahead.
    """

    index: int
    device: str = ""
    node: str = ""
    quarantined: bool = False
    gone: bool = False
    absent: bool = False
    job_id: str = ""
    lent: bool = False
    started_s: float = 0.0
    up: bool = False
    begun: bool = False
    fresh: bool = False
    visible: str = ""
    holds: list[str] = field(default_factory=list)
    rss_bytes: int = 0
    held_mb: int = 0
    ahead: list[str] = field(default_factory=list)
    recalled: bool = False
    unanswered: int = 0
    by_itself: bool = False

    @property
    def phase(self) -> WorkerPhase:
        """What it is doing: it follows from what is known of its device, its job and its process."""
        if self.quarantined:
            return WorkerPhase.quarantined
        if self.lent:
            return WorkerPhase.lent
        if self.job_id:
            return WorkerPhase.running
        if self.gone:
            return WorkerPhase.gone
        return WorkerPhase.idle if self.up else WorkerPhase.starting

    def ready(self, device: str, visible: str, node: str = "") -> WorkerState:
        """A process is up; what an earlier one held is not in it. A job that is to come stays."""
        made = WorkerState(self.index, device, node, self.quarantined, up=True, fresh=True, visible=visible)
        return replace(made, job_id=self.job_id, lent=self.lent, started_s=self.started_s)

    def ends(self) -> None:
        """Its process is ended on purpose; a job that is to come, or has its device, stays."""
        self.up = self.fresh = False
        self.holds = []

    def lost(self) -> WorkerState:
        """Its process has ended, and with it all that was there."""
        return WorkerState(self.index, self.device, self.node, self.quarantined, gone=True)

    def take(self, job_id: str, now_s: float, *, lent: bool) -> None:
        """It is given a job, or its device is lent to one."""
        assert self.phase is WorkerPhase.idle
        self.job_id, self.lent, self.started_s, self.begun, self.by_itself = job_id, lent, now_s, False, False

    def free(self) -> None:
        """Its job is over."""
        self.job_id, self.lent = "", False

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
