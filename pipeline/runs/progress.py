"""Progress of a run: computed once by the engine's process, for everybody who looks.

    engine --> LiveRun --> Progress --+--> live view
                                      '--> progress.json --> status, in any other terminal

The journal has no progress inside of jobs, so other processes could not compute this. The file is rewritten about
once a second, is never forced to disk, and is removed when the run ends: if it is missing or damaged, no
percentage is shown.

The pace of jobs is their actual time over the planned time. For each kind it comes from finished jobs, else from
the progress of a running one, else from all other jobs if these are much of the plan. The remaining time is that
of the longest path at this pace, or of all work divided among the workers, whichever is larger. It is told once
kinds that were timed, in this run or an earlier one, are most of the planned work.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Annotated

from msgspec import Meta

from pipeline.engine.journal import Event, EventFields
from pipeline.engine.run_folder import RunFolder
from pipeline.files import json_text, write_whole
from pipeline.foreign import ForeignDataError, read_json, read_plain
from pipeline.plan.graph import WORKER_LOAD_S, Plan, duration_name
from pipeline.runs.run_view import AttemptView, RunView

EVERY_S = 1.0
_LARGEST = 4 << 20
"""Largest size in bytes; a worker takes about 300."""

RATE_WINDOW_S = 10.0
_TELLING = 0.1
"""Fraction of a job from which its own progress predicts its remaining time."""
_AT_LEAST = 0.1
"""Least remaining fraction of a job that reports no progress."""
_PRIOR = 0.5
"""Fraction of the planned work with which the planned pace counts, for kinds without measurements."""
_KNOWN = 0.9
"""Fraction of the planned work that jobs of timed kinds have at least where an estimate is told."""
_JOBS_PER_S = 2000
"""Jobs of a plan per second between estimates: large plans are estimated rarely, so that it takes hardly any time.
"""

log = logging.getLogger("pipeline")

_Amount = Annotated[float, Meta(ge=0, le=1e15)]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a run, and its remaining time.

    Attributes:
        part: Fraction of the work that is done, from 0 to 1.
        remaining_s: Estimate of the seconds left; None while too little was timed for one. `part` is none then.
        samples_per_s: Samples drawn or judged per second, recently.
        tokens_per_s: Tokens drawn and trained on per second, recently.
        stopping: Message when the run was asked to stop, or "".
        shared_store: Message on the connection to its shared store, or "".
        running: Progress of the running jobs that report it.
        time: Time of this report, in clock seconds: nothing later is known of a killed engine.
    """

    part: Annotated[float, Meta(ge=0, le=1)]
    remaining_s: _Amount | None
    samples_per_s: _Amount = 0.0
    tokens_per_s: _Amount = 0.0
    stopping: str = ""
    shared_store: str = ""
    running: tuple[EventFields, ...] = ()
    time: _Amount = 0.0


def read_progress(folder: RunFolder) -> Progress | None:
    """Return the last progress report of a run's engine; None without a readable one."""
    try:
        return read_json(read_plain(folder.progress, _LARGEST, follow=True), Progress)
    except (OSError, ForeignDataError):
        return None


class ProgressFile:
    """Keeps the progress of a run in a file in its folder, as long as the run goes on."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._next_s = 0.0
        self._stopping, self._failed = "", False

    def __enter__(self) -> ProgressFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._folder.progress.unlink()

    def update(self, progress: Progress, now: float) -> None:
        """Write the file if it is due; a message on stopping is always written."""
        if now < self._next_s and progress.stopping == self._stopping:
            return
        self._next_s, self._stopping = now + EVERY_S, progress.stopping
        try:
            write_whole(self._folder.progress, json_text(asdict(progress)), durable=False)
        except OSError as error:
            if not self._failed:
                log.warning("status cannot tell how far the run is: %s", error)
            self._failed = True


# -- how far it is ---------------------------------------------------------------------------------------------


class LiveRun:
    """Follows the events of a run, with the plan's estimates and recent history for rates. Pure.

    Attributes:
        view: State from the events.
        now: Time of the other fields, in wall-clock seconds.
        samples_per_s: Samples drawn or judged per second, recently.
        tokens_per_s: Tokens drawn and trained on per second, recently.
        part: Fraction of the work that is done, from 0 to 1.
        remaining_s: Estimate of the seconds left.
        is_known: Whether enough of the work is of timed kinds for the estimate to be told.
        stopping: Message when the run was asked to stop, or "".
        shared_store: Message on the connection to its shared store, or "".
    """

    def __init__(
        self,
        plan: Plan,
        stored: Collection[str],
        slots: int = 1,
        workers: int = 1,
        load_s: float = WORKER_LOAD_S,
        timed: Collection[str] = (),
    ) -> None:
        """Begin before the first event.

        Args:
            plan: The plan.
            stored: Ids of the jobs that need not run.
            slots: Workers on each device.
            workers: Number of workers, until they report.
            load_s: Seconds until a worker's first job.
            timed: Kinds of jobs, by `duration_name`, whose planned seconds follow from earlier runs.
        """
        self.view = RunView(plan.jobs.values(), stored)
        self.now = self.part = self.remaining_s = 0.0
        self.samples_per_s = self.tokens_per_s = 0.0
        self.is_known, self.stopping, self.shared_store = False, "", ""
        self._plan, self._workers, self._load_s, self._timed = plan, workers, load_s, set(timed)
        self._kinds = {job.id: duration_name(job) for job in plan.jobs.values()}
        self._places = {job.id: job.devices * slots if job.devices > 1 else 1 for job in plan.jobs.values()}
        """Job -> workers whose places it takes."""
        unsettled = (job for job in plan.jobs.values() if not self.view.jobs[job.id].settled)
        self._prior_s = _PRIOR * sum(job.seconds * self._places[job.id] for job in unsettled)
        self._planned_s, self._took_s = defaultdict[str, float](float), defaultdict[str, float](float)
        """Kind -> planned seconds of its done jobs, and seconds that they took."""
        self._spent_s = 0.0
        self._warm: set[int] = set()
        """Workers that have finished a job, and so have loaded what they need."""
        self._loaded_s: dict[str, float] = {}
        """Job -> seconds for which it has loaded; less the present time while it does."""
        self._samples = self._tokens = 0
        self._past: deque[tuple[float, int, int]] = deque([(0.0, 0, 0)])
        self._due_s = -math.inf

    @property
    def progress(self) -> Progress:
        """Return the progress of now, for other processes."""
        same = ("part", "samples_per_s", "tokens_per_s", "stopping", "shared_store")
        return Progress(
            **{name: getattr(self, name) for name in same},
            remaining_s=self.remaining_s if self.is_known else None,
            running=tuple(_progress_event(job_id, attempt) for job_id, attempt in self.view.running().items()),
            time=self.now,
        )

    def take(self, event: Event) -> None:
        """Update the state with an event."""
        job = self.view.jobs.get(event.get("job", ""))
        did_load = job is not None and bool(job.attempts) and job.attempts[-1].loading
        self.view.take(event)
        if event["event"] == "WorkerStarting":
            self._warm.discard(int(event.get("worker", -1)))
        if job is None:
            return
        match event["event"]:
            case "JobStarted":
                self._loaded_s[job.id] = 0.0
            case "JobProgress":
                attempt = job.attempts[-1]
                loaded_s = self._loaded_s.get(job.id, 0.0)
                self._loaded_s[job.id] = loaded_s + self.view.last * (did_load - attempt.loading)
            case "JobFinished":
                self._finished(event, job.id, job.attempts[-1])
        if job.status == "pending":
            self.part = 0.0  # its work must be done again

    def _finished(self, event: Event, job_id: str, attempt: AttemptView) -> None:
        self._warm.add(attempt.worker)
        self._samples += self._samples_of(job_id, event["samples"])
        self._tokens += event["tokens"]
        took_s = max(0.0, attempt.elapsed_s(self.view.last) - event["load_s"])
        self._spent_s += took_s * self._places[job_id]
        self._planned_s[self._kinds[job_id]] += self._plan.jobs[job_id].seconds
        self._took_s[self._kinds[job_id]] += took_s

    def tick(self, now: float) -> None:
        """Advance the time."""
        self.now = now
        self._measure_rates(self.view.elapsed_s(now))
        if now >= self._due_s or self.view.finished:
            self._due_s = now + len(self._plan.jobs) / _JOBS_PER_S
            self._estimate()

    def _measure_rates(self, elapsed_s: float) -> None:
        running = self.view.running()
        samples = self._samples + sum(self._samples_of(job_id, one.done) for job_id, one in running.items())
        tokens = self._tokens + sum(attempt.tokens for attempt in running.values())
        while len(self._past) > 1 and self._past[1][0] <= elapsed_s - RATE_WINDOW_S:
            self._past.popleft()
        since_s, samples_then, tokens_then = self._past[0]
        self._past.append((elapsed_s, samples, tokens))
        window_s = max(elapsed_s - since_s, 1e-9)
        # A lost attempt takes its progress back, which is not a negative speed.
        self.samples_per_s = max(0, samples - samples_then) / window_s
        self.tokens_per_s = max(0, tokens - tokens_then) / window_s

    def _samples_of(self, job_id: str, done: int) -> int:
        """Return the finished samples of a job; jobs planned without samples count other units."""
        return done if self._plan.jobs[job_id].samples else 0

    def _estimate(self) -> None:
        """Estimate how much is done, and the remaining time, from the time that all jobs still take."""
        running, left_s, work_s, spent_s = self.view.running(), dict[str, float](), 0.0, self._spent_s
        paces, others = self._paces(running)
        planned_s = known_s = 0.0
        for job in self._plan.jobs.values():
            whole_s = 0.0
            if not self.view.jobs[job.id].settled:
                kind, places = self._kinds[job.id], self._places[job.id]
                whole_s = job.seconds * paces.get(kind, others)
                planned_s += job.seconds * places
                known_s += job.seconds * places * (kind in paces or kind in self._timed)
            attempt = running.get(job.id)
            left_s[job.id] = whole_s if attempt is None else self._left_s(job.id, attempt, whole_s)
            work_s += left_s[job.id] * self._places[job.id]
            spent_s += max(0.0, whole_s - left_s[job.id]) * self._places[job.id]
        self.is_known = known_s >= _KNOWN * planned_s
        away = ("quarantined", "waiting")
        usable = [not worker.leaves and worker.status not in away for worker in self.view.workers.values()]
        workers = sum(usable) or self._workers
        longest_s = max(self._plan.longest_paths(left_s).values(), default=0.0)
        self.remaining_s = max(0.0, longest_s, work_s / workers)
        if work_s > 0 and not self._warm:  # until a worker can work, if none can yet
            begun_s = max((attempt.elapsed_s(self.now) for attempt in running.values()), default=0.0)
            self.remaining_s += max(0.0, self._load_s - begun_s)
        done = spent_s / (spent_s + work_s) if spent_s + work_s > 0 else 1.0
        self.part = max(self.part, min(1.0, done))

    def _paces(self, running: Mapping[str, AttemptView]) -> tuple[dict[str, float], float]:
        """Return the pace of each kind of jobs, as far as observed, and that of all others."""
        planned_s, took_s = dict(self._planned_s), dict(self._took_s)
        for job_id, attempt in running.items():
            kind = self._kinds[job_id]
            if kind not in self._planned_s and attempt.part >= _TELLING:
                planned_s[kind] = attempt.part * self._plan.jobs[job_id].seconds
                took_s[kind] = self._worked_s(job_id, attempt)
        others = self._prior_s + sum(planned_s.values())
        paces = {kind: took_s[kind] / planned for kind, planned in planned_s.items() if planned}
        return paces, (self._prior_s + sum(took_s.values())) / others if others else 1.0

    def _left_s(self, job_id: str, attempt: AttemptView, whole_s: float) -> float:
        """Return the remaining seconds of a running job, by its progress, or else by the time so far."""
        worked_s = self._worked_s(job_id, attempt)
        if attempt.part >= _TELLING:
            return worked_s * (1 - attempt.part) / attempt.part
        return max(whole_s - worked_s, _AT_LEAST * max(whole_s, worked_s))

    def _worked_s(self, job_id: str, attempt: AttemptView) -> float:
        """Return the seconds since it began, without those of loading."""
        loaded_s = self._loaded_s.get(job_id, 0.0) + self.now * attempt.loading
        if not loaded_s and not attempt.part and attempt.worker not in self._warm:
            loaded_s = self._load_s
        return max(0.0, attempt.elapsed_s(self.now) - loaded_s)


def _progress_event(job_id: str, attempt: AttemptView) -> EventFields:
    amounts = {name: getattr(attempt, name) for name in ("worker", "done", "total", "tokens", "loading")}
    numbers = dict(attempt.numbers)
    return {"event": "JobProgress", "job": job_id, "attempt": attempt.number, **amounts, "numbers": numbers}
