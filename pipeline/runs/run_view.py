"""Derive the state of a run from its events, for live views, status and questions about a job. Pure.

Events are taken one by one, as the engine tells them or as `journal.read_event` finds them in its journal, so a
view can follow a run that goes on. Events and fields that are not known are passed over, and a field that is
missing has its empty value: a journal may come from another version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from pipeline.engine.journal import Event
from pipeline.engine.workers.messages import GpuLoad
from pipeline.plan.graph import Job
from pipeline.runs.record import grouped

# -- job view ----------------------------------------------------------------------------------------------------
# What the view of a run is made of: its jobs and how many of them are where, their attempts, its workers.


SETTLED = frozenset({"done", "stored", "failed", "blocked"})
"""Statuses of a job that nothing more happens to in this run."""


@dataclass(kw_only=True)
class AttemptView:
    """One try at a job. Times are wall-clock seconds since 1970.

    Attributes:
        number: From 1.
        worker: Index of its worker.
        device: The worker's device in words.
        started: When the worker began it, or None where it did not come to that.
        ended: When it ended, or None while it runs.
        outcome: ``running``, ``done``, ``failed`` or ``stopped`` (by the end of the run).
        kind: Class of the failure, such as ``lost`` or ``bug``; else "".
        reason: The failure in words.
        log: Path of its log in the run's folder, or "".
        traceback: Traceback of an exception.
        retry: Whether the failure was followed by another attempt.
        run_s: Seconds that a finished attempt took, by the worker's clock.
        members: Workers that lend it their devices.
        done: Samples that are finished, as far as the engine tells while it runs.
        total: Samples that it has.
        tokens: Tokens so far.
        numbers: Numbers of its present step, as ``loss``; None for one that is not finite.
        loading: Whether it imports libraries or loads a model just now.
    """

    number: int
    worker: int = -1
    device: str = ""
    started: float | None = None
    ended: float | None = None
    outcome: str = "running"
    kind: str = ""
    reason: str = ""
    log: str = ""
    traceback: str = ""
    retry: bool = False
    run_s: float = 0.0
    members: tuple[int, ...] = ()
    done: int = 0
    total: int = 0
    tokens: int = 0
    numbers: Mapping[str, float | None] = field(default_factory=dict)
    loading: bool = False

    @property
    def part(self) -> float:
        """Return the finished part, from 0 to 1."""
        return min(1.0, self.done / self.total) if self.total else 0.0

    def elapsed_s(self, now: float) -> float:
        """Return the seconds between its start and its end, or `now`."""
        if self.started is None:
            return 0.0
        return max(0.0, (now if self.ended is None else self.ended) - self.started)


@dataclass(kw_only=True)
class JobCounts:
    """Numbers of jobs in each state, of a run or of one chain in one round.

    Attributes:
        total: All jobs.
        stored: Jobs whose output was in the store before they would have run.
        done: Jobs done in this run.
        running: Jobs that run now.
        failed: Jobs that failed.
        blocked: Jobs that cannot run because another one failed.
    """

    total: int = 0
    stored: int = 0
    done: int = 0
    running: int = 0
    failed: int = 0
    blocked: int = 0

    @property
    def there(self) -> int:
        """Return the number of jobs with an output."""
        return self.done + self.stored

    @property
    def given_up(self) -> int:
        """Return the number of jobs that will have none."""
        return self.failed + self.blocked

    @property
    def left(self) -> int:
        """Return the number of jobs still to be begun."""
        return self.total - self.there - self.given_up - self.running

    @property
    def settled(self) -> bool:
        """Whether no job is left to do."""
        return self.there + self.given_up == self.total

    def move(self, before: str, after: str) -> None:
        """Move one job from one state to another; pending jobs are in none."""
        for status, change in ((before, -1), (after, 1)):
            if status != "pending":
                setattr(self, status, getattr(self, status) + change)

    def __add__(self, other: JobCounts) -> JobCounts:
        return JobCounts(**{name: number + getattr(other, name) for name, number in vars(self).items()})


@dataclass(kw_only=True)
class JobView:
    """State of a job.

    Attributes:
        id: Id of the job.
        chain: Its chain, or "" if unknown because there is no plan.
        round: Its round.
        status: ``pending``, ``running``, ``done``, ``stored``, ``failed`` or ``blocked``.
        attempts: Its attempts, in order.
        reason: Why it failed.
        kind: Class of that failure.
        root_cause: The failed job that blocks it, or "".
        waits: Why it waits although nothing that it reads is missing, or "".
        stopped: Whether it was stopped with the run and goes on in the next.
        found_stored: Whether another run finished it meanwhile.
        reopened: Why it ran again in this run, each time that it did.
    """

    id: str
    chain: str = ""
    round: int = 0
    status: str = "pending"
    attempts: list[AttemptView] = field(default_factory=list)
    reason: str = ""
    kind: str = ""
    root_cause: str = ""
    waits: str = ""
    stopped: bool = False
    found_stored: bool = False
    reopened: list[str] = field(default_factory=list)

    @property
    def settled(self) -> bool:
        """Whether nothing more happens to it in this run."""
        return self.status in SETTLED


@dataclass(kw_only=True)
class WorkerView:
    """One place in the pool.

    Attributes:
        index: Number of the worker.
        device: Its device in words.
        pid: Id of its present process; 0 where there is none.
        job_id: The job that it runs, or "".
        lent_to: The job of another worker that has its device, or "".
        status: ``starting``, ``waiting`` for a place on a cluster, ``idle``, ``gone``, ``quarantined``, or ``given
            back`` as its device is, whether or not it has a job.
        leaves: Whether its device is given back once its job is over.
        rss_bytes: Resident memory at the last heartbeat.
        gpu: Its GPU at the last heartbeat; None without one, or without a driver that tells.
        node: The machine that it is on, where a run has several.
    """

    index: int
    device: str = ""
    pid: int = 0
    job_id: str = ""
    lent_to: str = ""
    status: str = "idle"
    leaves: bool = False
    rss_bytes: int = 0
    gpu: GpuLoad | None = None
    node: str = ""

    @property
    def state(self) -> str:
        """Return the status in one word: also ``running`` a job, or ``lent`` to that of another worker."""
        if self.status != "idle":
            return self.status
        return "running" if self.job_id else "lent" if self.lent_to else "idle"


@dataclass(frozen=True, kw_only=True)
class Quarantine:
    """A device that is used no more.

    Attributes:
        worker: Index of the worker it belonged to.
        device: The device in words.
        reason: Why.
        jobs: Ids of the jobs that failed on it.
        time: When.
    """

    worker: int
    device: str
    reason: str
    jobs: tuple[str, ...]
    time: float


RACE = "race"
"""Who asks for what a race has decided."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A request to change the run.

    Attributes:
        request: Its id.
        text: What was asked.
        by: Who asked.
        reason: Why it was refused, or "".
        time: When it was done or refused.
    """

    request: str
    text: str
    by: str
    reason: str
    time: float

    def __str__(self) -> str:
        refused = f"; refused: {self.reason}" if self.reason else ""
        return f"{datetime.fromtimestamp(self.time):%H:%M:%S} {self.by} asked: {self.text}{refused}"


@dataclass(frozen=True, kw_only=True)
class Span:
    """A time during which a worker, and so its device, was taken by an attempt at a job.

    Attributes:
        job: Id of the job.
        chain: Its chain.
        round: Its round.
        stage: Its stage.
        attempt: Number of the attempt, from 1.
        worker: Index of the worker.
        device: The device, in words.
        start: Seconds since 1970.
        end: Likewise; None while it goes on.
        outcome: ``done``, ``failed``, ``stopped``, ``running``, or ``lost`` with a run that was killed.
    """

    job: str
    chain: str
    round: int
    stage: str
    attempt: int
    worker: int
    device: str
    start: float
    end: float | None
    outcome: str


_NOT_DONE = ("failed", "blocked", "pending", "ready", "running")


class RunView:
    """The state of one run as far as its events tell.

    Attributes:
        jobs: Job id -> job; without a plan only those that events name.
        cells: (Chain, round) -> numbers of its jobs in each state, in plan order.
        workers: Index -> worker.
        quarantined: Devices that are used no more, in order.
        started: When it began, or None while it has not.
        last: When its last event was, or its engine told otherwise that it goes on.
        finished: The event that ended it, or None.
        pid: Process of the engine, or None where that was not recorded.
        host: Machine of the engine, or "".
        total: Number of jobs.
        retries: Class of failure -> attempts that failed by it and were followed by another.
        answers: Requests to change the run, in order.
    """

    def __init__(self, planned: Iterable[Job] = (), stored: Collection[str] = ()) -> None:
        """Begin before the first event.

        Args:
            planned: The jobs of its plan; none where that is not known.
            stored: Ids of those that need not run.
        """
        self.jobs: dict[str, JobView] = {}
        self.cells: dict[tuple[str, int], JobCounts] = {}
        self.workers: dict[int, WorkerView] = {}
        self.quarantined: list[Quarantine] = []
        self.started: float | None = None
        self.last = 0.0
        self.finished: Event | None = None
        self.pid: int | None = None
        self.host = ""
        self.retries: Counter[str] = Counter()
        for job in planned:
            view = self._enter(JobView(id=job.id, chain=job.chain, round=job.round))
            if job.id in stored:
                self._set(view, "stored")
        self.total = len(self.jobs)
        self._planned = bool(self.jobs)  # then a job that only events name has left the plan
        self.answers: list[Answer] = []

    # -- questions ---------------------------------------------------------------------------------------------

    @property
    def interrupted(self) -> str:
        """The signal that ended the run before its work was done, or ""."""
        return str((self.finished or {}).get("interrupted") or "")

    @property
    def halted(self) -> str:
        """Why the run ended early by itself, for example a full disk, or ""."""
        return str((self.finished or {}).get("halted") or "")

    def state(self, engine_runs: bool | None) -> str:
        """Return the run's state in one word.

        Args:
            engine_runs: Whether the process that carries it out lives; None where nobody can tell.

        Returns:
            ``running``, ``done``, ``failed`` (some jobs failed), ``interrupted``, ``halted`` (it ended early by
            itself), ``killed`` (the engine is gone without a word), ``not started``, or ``unknown``.
        """
        if self.finished is not None:
            if self.interrupted:
                return "interrupted"
            if self.halted:
                return "halted"
            return "failed" if any(self.finished.get(status) for status in _NOT_DONE) else "done"
        if engine_runs is None:
            return "unknown"
        if engine_runs:
            return "running"
        return "not started" if self.started is None else "killed"

    def elapsed_s(self, now: float, engine_runs: bool | None = True) -> float:
        """Return the seconds from the run's start to its end.

        To `now` while it runs, to `last` if it was killed.
        """
        if self.started is None:
            return 0.0
        return max(0.0, (now if self.finished is None and engine_runs else self.last) - self.started)

    def counts(self) -> JobCounts:
        """Count all jobs by status."""
        return replace(sum(self.cells.values(), start=JobCounts()), total=self.total)

    def running(self) -> dict[str, AttemptView]:
        """Return running job -> its attempt, in the order of workers."""
        ids = (worker.job_id for worker in self.workers.values() if worker.job_id)
        return {job_id: self.jobs[job_id].attempts[-1] for job_id in ids}

    @property
    def nodes(self) -> set[str]:
        """The machines that its workers were on last; empty where nobody has to tell them apart."""
        return {worker.node for worker in self.workers.values() if worker.node}

    @property
    def started_workers(self) -> list[WorkerView]:
        """Return the workers that have, or had, a process."""
        return [worker for worker in self.workers.values() if worker.device]

    def having(self, status: str) -> list[JobView]:
        """Return jobs with a status, in plan order."""
        return [job for job in self.jobs.values() if job.status == status]

    @property
    def waiting(self) -> dict[str, str]:
        """Job that another run or machine makes -> what was said of that."""
        return {job.id: job.waits for job in self.jobs.values() if job.waits}

    def blocked_by(self) -> dict[str, list[str]]:
        """Return failed job -> ids of the jobs that it blocks."""
        return grouped((job.root_cause, job.id) for job in self.having("blocked"))

    def failures(self) -> list[tuple[JobView, AttemptView | None]]:
        """Failed jobs with their last attempt."""
        return [(job, job.attempts[-1] if job.attempts else None) for job in self.having("failed")]

    def attempts(self, *, killed: bool) -> Iterator[tuple[JobView, AttemptView]]:
        """Return all attempts, in the order of jobs.

        Args:
            killed: Whether its engine is gone without a word: then none goes on, and those that did are lost.
        """
        reason = "it was under way when the run was killed"
        for job in self.jobs.values():
            for attempt in job.attempts:
                if killed and attempt.outcome == "running":
                    attempt = replace(attempt, outcome="lost", kind="lost", reason=reason, ended=self.last)
                yield job, attempt

    def timeline(self, jobs: Mapping[str, Job], *, killed: bool) -> list[Span]:
        """Return its spans, by start; a multi-GPU job has a span for each device.

        Args:
            jobs: Id -> job, of those that were planned.
            killed: As for `attempts`.
        """
        spans = [
            Span(
                job=job.id,
                chain=job.chain,
                round=job.round,
                stage=jobs[job.id].stage if job.id in jobs else "",
                attempt=attempt.number,
                worker=worker,
                device=attempt.device if worker == attempt.worker else self.workers[worker].device,
                start=attempt.started,
                end=attempt.ended,
                outcome=attempt.outcome,
            )
            for job, attempt in self.attempts(killed=killed)
            if attempt.started is not None
            for worker in (attempt.worker, *attempt.members)
        ]
        return sorted(spans, key=lambda span: (span.start, span.worker))

    # -- events ------------------------------------------------------------------------------------------------

    def feed(self, events: Iterable[Event]) -> None:
        """Take several events."""
        for event in events:
            self.take(event)

    def take(self, event: Event) -> None:
        """Change the state as one event says."""
        if self.finished is None:  # uploads may go on after that
            self.last = float(event.get("time") or self.last)
        name = str(event.get("event"))
        if "job" in event:
            job_id = str(event["job"])
            if job := self.jobs.get(job_id) or (None if self._planned else self._enter(JobView(id=job_id))):
                self._job_event(name, event, job)
        elif "worker" in event:
            self._worker_event(name, event, self._worker(int(event["worker"])))
        elif name == "RunStarted":
            self.started = self.last
            self.pid, self.host = event.get("pid"), str(event.get("host", ""))
            self.total = int(event.get("jobs", self.total))
        elif name == "RequestAnswered":
            texts = {name: str(event.get(name, "")) for name in ("request", "text", "by", "reason")}
            self.answers.append(Answer(**texts, time=self.last))
            self.total = int(event.get("jobs", self.total))
        elif name == "RunFinished":
            self.finished = event
            for job in self.having("running"):
                self._stop(event, job)

    def _worker_event(self, name: str, event: Event, worker: WorkerView) -> None:
        match name:
            case "WorkerStarting":
                worker.status = "starting"
            case "WorkerWaits":
                worker.status = "waiting"
            case "WorkerStarted":
                worker.pid, worker.status, worker.job_id = int(event.get("pid") or 0), "idle", ""
                worker.device, worker.node = str(event.get("device", "")), str(event.get("node", ""))
            case "Heartbeat":
                gpu = event.get("gpu")
                worker.rss_bytes = event.get("rss_bytes", 0)
                worker.gpu = gpu if isinstance(gpu, GpuLoad) else None
            case "WorkerExited":
                job, worker.job_id = self.jobs.get(worker.job_id), ""
                worker.pid, worker.rss_bytes, worker.gpu = 0, 0, None
                worker.status = "given back" if worker.leaves else "gone"
                if job is not None and job.status == "running":
                    # Of a worker that was lost the next event says what became of its job.
                    self._stop(event, job)
            case "DeviceQuarantined":
                source = {"worker": worker.index, "device": str(event.get("device", "")) or worker.device}
                reason, jobs = str(event.get("reason", "")), tuple(event.get("failed_jobs") or ())
                self.quarantined.append(Quarantine(**source, reason=reason, jobs=jobs, time=self.last))  # type: ignore[arg-type]
            case "WorkerLeaves":
                worker.leaves = True
            case "DeviceReleased":
                worker.status, worker.leaves = "idle" if worker.pid else "starting", False
                self.quarantined = [aside for aside in self.quarantined if aside.worker != worker.index]
        if any(aside.worker == worker.index for aside in self.quarantined):
            worker.status = "quarantined"

    def _job_event(self, name: str, event: Event, job: JobView) -> None:
        match name:
            case "JobStarted":
                self._job_started(event, job)
            case "JobProgress":
                attempt = self._attempt(event, job)
                attempt.done, attempt.total = event.get("done", 0), event.get("total", 0)
                attempt.tokens, attempt.numbers = event.get("tokens", 0), event.get("numbers") or {}
                attempt.loading = event.get("loading", False)
            case "JobFinished":
                self._end(event, job, "done").run_s = float(event.get("run_s") or 0.0)
                self._settle(job, "done")
            case "AttemptFailed":
                self._attempt_failed(event, job)
            case "JobFailed":
                self._settle(job, "failed")
                job.reason, job.kind = str(event.get("reason", "")), str(event.get("kind", ""))
                if job.attempts and job.attempts[-1].outcome == "running":
                    self._end(event, job, "failed")
            case "JobBlocked":
                self._settle(job, "blocked")
                job.root_cause = str(event.get("root_cause", ""))
            case "JobStopped":
                self._stop(event, job)
                job.stopped = True
            case "JobReopened":
                self._set(job, "pending")
                job.reopened.append(str(event.get("reason", "")))
            case "JobWaits":
                job.waits = str(event.get("reason", ""))
            case "JobFoundStored":
                self._settle(job, "stored")
                job.found_stored = True

    def _job_started(self, event: Event, job: JobView) -> None:
        worker = self._worker(int(event.get("worker", -1)))
        worker.job_id = job.id
        attempt = self._attempt(event, job)
        attempt.worker, attempt.device, attempt.started = worker.index, worker.device, self.last
        attempt.members = tuple(event.get("members") or ())
        for member in map(self._worker, attempt.members):
            member.lent_to = job.id
        self._settle(job, "running")

    def _attempt_failed(self, event: Event, job: JobView) -> None:
        attempt = self._end(event, job, "failed")
        for name in ("kind", "reason", "log", "traceback"):
            setattr(attempt, name, str(event.get(name) or ""))
        attempt.device = str(event.get("device") or attempt.device)
        attempt.retry = bool(event.get("retry"))
        self._set(job, "pending")
        self.retries.update([attempt.kind] * attempt.retry)

    def _end(self, event: Event, job: JobView, outcome: str) -> AttemptView:
        attempt = self._attempt(event, job)
        attempt.outcome, attempt.ended = outcome, self.last
        worker = self.workers.get(attempt.worker)
        if worker is not None and worker.job_id == job.id:
            worker.job_id = ""
        for member in map(self._worker, attempt.members):
            member.lent_to = "" if member.lent_to == job.id else member.lent_to
        return attempt

    def _stop(self, event: Event, job: JobView) -> None:
        self._end(event, job, "stopped")
        self._set(job, "pending")

    def _settle(self, job: JobView, status: str) -> None:
        self._set(job, status)
        job.waits, job.stopped = "", False

    def _set(self, job: JobView, status: str) -> None:
        self.cells[job.chain, job.round].move(job.status, status)
        job.status = status
        if status == "pending":
            job.root_cause = ""

    def _enter(self, job: JobView) -> JobView:
        self.cells.setdefault((job.chain, job.round), JobCounts()).total += 1
        return self.jobs.setdefault(job.id, job)

    def _worker(self, index: int) -> WorkerView:
        return self.workers.setdefault(index, WorkerView(index=index))

    def _attempt(self, event: Event, job: JobView) -> AttemptView:
        """Return the attempt of an event: by its number, else the last."""
        number = int(event.get("attempt") or (job.attempts[-1].number if job.attempts else 1))
        for attempt in reversed(job.attempts):
            if attempt.number == number:
                return attempt
        attempt = AttemptView(number=number, worker=int(event.get("worker", -1)))
        job.attempts.append(attempt)
        return attempt
