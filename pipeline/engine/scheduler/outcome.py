"""Outcome of a run: the end of every job, every attempt with its times, and the account of device time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from msgspec import Struct

from pipeline.engine.scheduler.state import JobStatus
from pipeline.plan.graph import WORKER_LOAD, Durations, Job, Plan, Timed, load_name, typical

# -- makespan ----------------------------------------------------------------------------------------------------
# Account of device time, compared with the least that any schedule could have taken. Pure functions. devices x
# makespan = work + load + dependency + retry + tail. Work is the time of successful attempts without loading. A
# device is idle if it is not working, loading, starting a process or spending time on an attempt that fails. Idle
# time is "dependency" as long as jobs are still to start but none is ready, and "tail" once the last job was
# started.


class Attempt(Struct, frozen=True, kw_only=True):
    """One attempt at a job, with times on the engine's monotonic clock.

    Attributes:
        job_id: The job.
        attempt: Number of the attempt, from 1.
        worker: Index of the worker; the first one, if the job needs several devices.
        devices: Number of devices, or of worker slots where each device has several.
        sent_s: When the job was sent to the worker.
        ended_s: When the engine learnt of its end.
        load_s: Seconds of the attempt spent loading.
        start_s: Seconds until its process was ready, for the first attempt in a process; else None.
        outcome: ``done``, ``stopped``, or the kind of failure.
        flops: FLOPs that it computed.
    """

    job_id: str
    attempt: int
    worker: int
    sent_s: float
    ended_s: float
    load_s: float = 0.0
    start_s: float | None = None
    outcome: str = "done"
    devices: int = 1
    flops: float = 0.0

    @property
    def succeeded(self) -> bool:
        """Whether the attempt gave a result."""
        return self.outcome == "done"

    @property
    def total_s(self) -> float:
        """Duration of the attempt in seconds."""
        return self.ended_s - self.sent_s

    @property
    def work_s(self) -> float:
        """Duration without loading, in seconds."""
        return max(0.0, self.total_s - self.load_s)


@dataclass(kw_only=True)
class WorkerSpan:
    """The life of one worker.

    Attributes:
        worker: Its index; its replacement has the same one.
        started_s: When it was started.
        ready_s: When it could take jobs, or None if it never could.
        ended_s: When the engine learnt of its end, or None if it lived to the end of the run.
        used: Whether an attempt has ended in it.
    """

    worker: int
    started_s: float
    ready_s: float | None = None
    ended_s: float | None = None
    used: bool = False


@dataclass(frozen=True, kw_only=True)
class Makespan:
    """Account of a run. Times are in seconds, and from `load_s` on in device-seconds.

    Attributes:
        actual_s: From the start of the run to the end of the last job.
        lower_bound_s: No schedule of the same work on the same devices is shorter. The largest of three bounds:
            the longest path, the work per device, and the jobs that each need more than half of the devices, since
            no two of them run at once.
        critical_path_s: Longest path of jobs that read each other, at measured durations.
        work_s: Sum of measured durations, each multiplied by the number of devices of the job.
        devices: Number of devices, or of job slots where each device has several.
        slots: Job slots on each device.
        predicted_s: What `actual_s` was predicted to be; None if it was not, or if the run ended before its plan.
        load_s: Time spent starting workers, also replacements, and loading models.
        dependency_s: Time idle while other jobs were still to start.
        retry_s: Time of attempts that gave no result.
        tail_s: Time idle after the last job was started.
    """

    actual_s: float
    lower_bound_s: float
    critical_path_s: float
    work_s: float
    devices: int
    load_s: float
    dependency_s: float
    retry_s: float
    tail_s: float
    slots: int = 1
    predicted_s: float | None = None

    @property
    def ratio(self) -> float:
        """Actual over lower bound."""
        return self.actual_s / self.lower_bound_s if self.lower_bound_s else 1.0

    def __str__(self) -> str:
        unit = "device" if self.slots == 1 else "place"
        best = (
            f"at best it could have taken {self.lower_bound_s:.1f} s (longest chain of jobs "
            f"{self.critical_path_s:.1f} s; work {self.work_s:.1f} s on {self.devices} {unit}"
            f"{'s' if self.devices != 1 else ''})"
        )
        lost = (
            f"loading {self.load_s:.1f} s, waiting for inputs {self.dependency_s:.1f} s, "
            f"failed or stopped attempts {self.retry_s:.1f} s, idle at the end {self.tail_s:.1f} s"
        )
        said = "" if self.predicted_s is None else f", predicted were {self.predicted_s:.1f} s"
        return f"took {self.actual_s:.1f} s{said}; {best}. {unit.capitalize()} time not used for work: {lost}"


def account(
    plan: Plan,
    attempts: Sequence[Attempt],
    spans: Iterable[WorkerSpan],
    devices: int,
    start_s: float,
    slots: int = 1,
) -> Makespan | None:
    """Compute the account of a run.

    Args:
        plan: The plan, carried out wholly or in part.
        attempts: Every attempt.
        spans: Every worker.
        devices: Number of workers in the pool.
        start_s: When the run began.
        slots: Workers on each device.

    Returns:
        The account, or None if no attempt succeeded.
    """
    succeeded = [attempt for attempt in attempts if attempt.succeeded]
    if not succeeded:
        return None
    end_s = max(attempt.ended_s for attempt in attempts)
    durations = dict.fromkeys(plan.jobs, 0.0) | {attempt.job_id: attempt.work_s for attempt in succeeded}
    critical_path_s = max(plan.longest_paths(durations).values())
    work_s = sum(attempt.work_s * attempt.devices for attempt in succeeded)
    alone_s = sum(attempt.work_s for attempt in succeeded if 2 * attempt.devices > devices)
    retry_s = sum(attempt.total_s * attempt.devices for attempt in attempts if not attempt.succeeded)
    starts = _starts(spans, end_s)
    starts_s = sum(until - since for since, until in starts)
    load_s = sum((attempt.total_s - attempt.work_s) * attempt.devices for attempt in succeeded) + starts_s
    idle_s = devices * (end_s - start_s) - work_s - load_s - retry_s
    last_start_s = max(attempt.sent_s for attempt in attempts)
    taken = [(attempt.sent_s, attempt.ended_s, attempt.devices) for attempt in attempts]
    taken += [(since, until, 1) for since, until in starts]
    taken_late_s = sum(max(0.0, until - max(since, last_start_s)) * count for since, until, count in taken)
    tail_s = max(0.0, devices * (end_s - last_start_s) - taken_late_s)
    return Makespan(
        actual_s=end_s - start_s,
        lower_bound_s=max(critical_path_s, work_s / devices, alone_s),
        critical_path_s=critical_path_s,
        work_s=work_s,
        devices=devices,
        load_s=load_s,
        dependency_s=max(0.0, idle_s - tail_s),
        retry_s=retry_s,
        tail_s=tail_s,
        slots=slots,
    )


def _starts(spans: Iterable[WorkerSpan], end_s: float) -> list[tuple[float, float]]:
    """Return the intervals in which workers were being started, cut off at the end of the run."""
    starts = []
    for span in spans:
        over = next((at for at in (span.ready_s, span.ended_s) if at is not None), end_s)
        since = min(span.started_s, end_s)
        starts.append((since, max(since, min(over, end_s))))
    return starts


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a run.

    Attributes:
        jobs: Job id -> its status; after an interruption some are still pending or ready.
        reasons: Why jobs failed or are blocked.
        root_causes: Blocked job -> the failed job behind it.
        attempts: Every attempt, by the time of its end.
        workers: Every worker that was started.
        interrupted: ``SIGINT``, ``SIGTERM``, ``SIGHUP`` or ``SIGUSR2`` if that ended the run.
        halted: Why the run ended before its plan, for example a full disk, or "".
        is_spent: Whether that is its budget.
        makespan: The account of device time; None if no attempt succeeded, or the devices changed.
        peaks_mb: Highest measured peaks of device memory, by `Job.memory_kind`.
    """

    jobs: Mapping[str, JobStatus]
    reasons: Mapping[str, str] = field(default_factory=dict)
    root_causes: Mapping[str, str] = field(default_factory=dict)
    attempts: Sequence[Attempt] = ()
    workers: Sequence[WorkerSpan] = ()
    interrupted: str | None = None
    halted: str = ""
    is_spent: bool = False
    makespan: Makespan | None = None
    peaks_mb: Mapping[str, int] = field(default_factory=dict)

    def failures(self) -> list[tuple[str, str]]:
        """Return the failed jobs with reasons; the jobs that they block are in `root_causes`."""
        return [
            (job_id, self.reasons[job_id]) for job_id, status in self.jobs.items() if status is JobStatus.failed
        ]

    def reason(self, job_id: str) -> str:
        """Say why a job has no result; "" if nothing is wrong with it."""
        return self.reasons.get(job_id, "")

    def durations(self, plan: Plan, name_of: Callable[[Job], str]) -> Durations:
        """Return what jobs took and computed (without loading), and loading, for the estimates of later runs."""
        timed: dict[str, list[Timed]] = {}
        for attempt in self.attempts:
            if attempt.succeeded and attempt.job_id in plan.jobs:  # a job may have left the plan
                job = plan.jobs[attempt.job_id]
                timed.setdefault(name_of(job), []).append(Timed(job.size_s, attempt.work_s, attempt.flops))
        return Durations({name: typical(own) for name, own in timed.items()}, self.load_seconds(plan))

    def load_seconds(self, plan: Plan) -> dict[str, float]:
        """Return the measured seconds of loading, by the names of `pipeline.plan.graph`."""
        succeeded = [attempt for attempt in self.attempts if attempt.succeeded and attempt.job_id in plan.jobs]
        done = [(attempt, plan.jobs[attempt.job_id]) for attempt in succeeded]
        starts = [attempt.start_s + attempt.load_s for attempt, _ in done if attempt.start_s is not None]
        later: dict[str, list[float]] = {}
        for attempt, job in done:
            if attempt.start_s is None:
                later.setdefault(load_name(job), []).append(attempt.load_s)
        measured = {name: fmean(seconds) for name, seconds in later.items()}
        return measured | ({WORKER_LOAD: median(starts)} if starts else {})
