"""How far a run is while it goes on: one reckoning, by the engine's process, for everybody who looks.

    engine --> LiveRun --> Progress --+--> live view
                                      '--> progress.json --> status, in any other terminal

The journal has no progress inside of jobs, so nobody could reckon the same from it. The file is rewritten about
once a second, is never forced to disk, and goes when the run ends: what is missing or damaged costs a percentage.

Jobs take a multiple of what was planned for them, their pace: of a kind of which some are done, theirs; else what
the progress of one that runs tells; else that of all others, as far as they are much of the plan. The time left is
that of the longest path at this pace, or of all work shared by the workers, whichever is more.
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
"""Bytes; a worker takes some 300 of them."""

RATE_WINDOW_S = 10.0
_TELLING = 0.1
"""Part of a job from which on its own progress tells how long it still takes."""
_AT_LEAST = 0.1
"""Part of a job that is still to come, at least, where it tells of none."""
_PRIOR = 0.5
"""Part of the planned work that counts as done as planned, for kinds of which nothing is known yet."""
_JOBS_PER_S = 2000
"""Of a plan that is reckoned anew: it is done so seldom that it takes no time to speak of."""

log = logging.getLogger("pipeline")

_Amount = Annotated[float, Meta(ge=0, le=1e15)]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is, and how long it will still take.

    Attributes:
        part: Of the work that was to do, what is done, from 0 to 1.
        remaining_s: Estimate of the seconds left; None while nothing has told of work yet, as everything loads.
        samples_per_s: Over the last seconds, of what draws or judges samples.
        tokens_per_s: Over the last seconds, drawn and trained on.
        stopping: What was said when the run was asked to stop, or "".
        shared_store: What there is to say of the way to its shared store, or "".
        running: How far the jobs are that run, those that have told it.
        time: When this was so, in seconds of the clock: of an engine that was killed nothing later is known.
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
    """What the engine of a run told last; None where it has told nothing that can be read."""
    try:
        return read_json(read_plain(folder.progress, _LARGEST, follow=True), Progress)
    except (OSError, ForeignDataError):
        return None


class ProgressFile:
    """Leaves the progress of a run in its folder, for as long as the run goes on."""

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
        """Write it if it is time to; that the run is about to stop is always written."""
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
    """Takes what an engine tells of its run, with the plan's estimates and enough of the past to give rates. Pure.

    Attributes:
        view: What was told.
        now: The moment that the rest is of, in wall-clock seconds.
        samples_per_s: Over the last seconds, of what draws or judges samples.
        tokens_per_s: Over the last seconds, drawn and trained on.
        part: Of the work that was to do, what is done, from 0 to 1.
        remaining_s: Estimate of the seconds left.
        has_worked: Whether a job has told of work, so that the estimate is more than that of the plan.
        stopping: What was said when the run was asked to stop, or "".
        shared_store: What there is to say of the way to its shared store, or "".
    """

    def __init__(
        self, plan: Plan, stored: Collection[str], slots: int = 1, workers: int = 1, load_s: float = WORKER_LOAD_S
    ) -> None:
        """Begin before the first event.

        Args:
            plan: The plan.
            stored: Ids of the jobs that need not run.
            slots: Workers on each device.
            workers: All workers, until they report.
            load_s: Seconds that a worker takes to its first job.
        """
        self.view = RunView(plan.jobs.values(), stored)
        self.now = self.part = self.remaining_s = 0.0
        self.samples_per_s = self.tokens_per_s = 0.0
        self.has_worked, self.stopping, self.shared_store = False, "", ""
        self._plan, self._workers, self._load_s = plan, workers, load_s
        self._kinds = {job.id: duration_name(job) for job in plan.jobs.values()}
        self._places = {job.id: job.devices * slots if job.devices > 1 else 1 for job in plan.jobs.values()}
        """Job -> workers whose places it takes."""
        unsettled = (job for job in plan.jobs.values() if not self.view.jobs[job.id].settled)
        self._prior_s = _PRIOR * sum(job.seconds * self._places[job.id] for job in unsettled)
        self._planned_s, self._took_s = defaultdict[str, float](float), defaultdict[str, float](float)
        """Kind -> what was planned for its jobs that are done, and what they took."""
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
        """How far it is now, for whoever cannot hear the engine."""
        same = ("part", "samples_per_s", "tokens_per_s", "stopping", "shared_store")
        return Progress(
            **{name: getattr(self, name) for name in same},
            remaining_s=self.remaining_s if self.has_worked else None,
            running=tuple(_told(job_id, attempt) for job_id, attempt in self.view.running().items()),
            time=self.now,
        )

    def take(self, event: Event) -> None:
        """Change the state as one event says."""
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
                self.has_worked = self.has_worked or attempt.part > 0
                loaded_s = self._loaded_s.get(job.id, 0.0)
                self._loaded_s[job.id] = loaded_s + self.view.last * (did_load - attempt.loading)
            case "JobFinished":
                self._finished(event, job.id, job.attempts[-1])
        if job.status == "pending":
            self.part = 0.0  # what was done is to do again

    def _finished(self, event: Event, job_id: str, attempt: AttemptView) -> None:
        self.has_worked = True
        self._warm.add(attempt.worker)
        self._samples += self._samples_of(job_id, event["samples"])
        self._tokens += event["tokens"]
        took_s = max(0.0, attempt.elapsed_s(self.view.last) - event["load_s"])
        self._spent_s += took_s * self._places[job_id]
        self._planned_s[self._kinds[job_id]] += self._plan.jobs[job_id].seconds
        self._took_s[self._kinds[job_id]] += took_s

    def tick(self, now: float) -> None:
        """It is later now."""
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
        # A lost attempt takes its progress back, which is no negative speed.
        self.samples_per_s = max(0, samples - samples_then) / window_s
        self.tokens_per_s = max(0, tokens - tokens_then) / window_s

    def _samples_of(self, job_id: str, done: int) -> int:
        """Of what a job has done; one that is planned without samples counts sequences, or something else."""
        return done if self._plan.jobs[job_id].samples else 0

    def _estimate(self) -> None:
        """How much is done, and how long the rest takes, from how long all jobs still take."""
        running, left_s, work_s, spent_s = self.view.running(), dict[str, float](), 0.0, self._spent_s
        paces, others = self._paces(running)
        for job in self._plan.jobs.values():
            whole_s = 0.0
            if not self.view.jobs[job.id].settled:
                whole_s = job.seconds * paces.get(self._kinds[job.id], others)
            attempt = running.get(job.id)
            left_s[job.id] = whole_s if attempt is None else self._left_s(job.id, attempt, whole_s)
            work_s += left_s[job.id] * self._places[job.id]
            spent_s += max(0.0, whole_s - left_s[job.id]) * self._places[job.id]
        workers = sum(worker.status != "quarantined" for worker in self.view.workers.values()) or self._workers
        longest_s = max(self._plan.longest_paths(left_s).values(), default=0.0)
        self.remaining_s = max(0.0, longest_s, work_s / workers)
        if work_s > 0 and not self._warm:  # until a worker can work, where none has yet
            begun_s = max((attempt.elapsed_s(self.now) for attempt in running.values()), default=0.0)
            self.remaining_s += max(0.0, self._load_s - begun_s)
        done = spent_s / (spent_s + work_s) if spent_s + work_s > 0 else 1.0
        self.part = max(self.part, min(1.0, done))

    def _paces(self, running: Mapping[str, AttemptView]) -> tuple[dict[str, float], float]:
        """What jobs of each kind take beside what was planned, as far as it was seen, and what others do."""
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
        """Seconds that a job which runs still takes, of so many: by its progress, or else by the time so far."""
        worked_s = self._worked_s(job_id, attempt)
        if attempt.part >= _TELLING:
            return worked_s * (1 - attempt.part) / attempt.part
        return max(whole_s - worked_s, _AT_LEAST * whole_s)

    def _worked_s(self, job_id: str, attempt: AttemptView) -> float:
        """Seconds since it began, less those that it spent loading: as it says, or until it says anything."""
        loaded_s = self._loaded_s.get(job_id, 0.0) + self.now * attempt.loading
        if not loaded_s and not attempt.part and attempt.worker not in self._warm:
            loaded_s = self._load_s
        return max(0.0, attempt.elapsed_s(self.now) - loaded_s)


def _told(job_id: str, attempt: AttemptView) -> EventFields:
    told = {name: getattr(attempt, name) for name in ("worker", "done", "total", "tokens", "loading")}
    numbers = dict(attempt.numbers)
    return {"event": "JobProgress", "job": job_id, "attempt": attempt.number, **told, "numbers": numbers}
