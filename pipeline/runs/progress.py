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
from collections import Counter, defaultdict, deque
from collections.abc import Collection
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
_TELLING = 0.2
"""Part of a job from which on its own progress alone tells how long it still takes."""
_UNSEEN, _AT_LEAST = 0.5, 0.1
"""Parts of a job that are still to come, at least: while it may still be loading, and while it runs."""
_PRIOR = 0.5
"""Part of the planned work that counts as done as planned, for kinds of which nothing is known yet."""
_JOBS_PER_S = 1000
"""Of a plan whose paths are measured again: it is done so seldom that it takes no time to speak of."""

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


@dataclass
class _Pace:
    """What jobs of a kind took, beside what was planned for them, in seconds."""

    planned_s: float = 0.0
    took_s: float = 0.0

    def add(self, planned_s: float, took_s: float) -> None:
        self.planned_s += planned_s
        self.took_s += took_s


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
        self,
        plan: Plan,
        stored: Collection[str] = (),
        slots: int = 1,
        workers: int = 1,
        load_s: float = WORKER_LOAD_S,
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
        self._left_s: Counter[str] = Counter()
        """Kind -> planned work of jobs that are not settled."""
        self._expected_s = self._spent_s = 0.0
        self._done: defaultdict[str, _Pace] = defaultdict(_Pace)
        self._seen: dict[str, float] = {}
        """Kind -> pace that one which runs tells."""
        self._others = 1.0
        """Pace of kinds of which nothing is known."""
        self._warm: set[int] = set()
        """Workers that have finished a job, and so have loaded what they need."""
        self._loads: dict[str, float] = {}
        """Job -> since when it says that it loads."""
        self._loaded_s: dict[str, float] = {}
        """Job -> what it has spent on that before."""
        self._samples = self._tokens = 0
        self._past: deque[tuple[float, int, int]] = deque([(0.0, 0, 0)])
        self._path_s: dict[str, float] = {}
        """Job -> the longest path that begins with it, from the longest on."""
        self._measured = 0.0
        for job in self.view.jobs.values():
            if not job.settled:
                self._expect(job.id, 1)
        self._measure_paths()

    @property
    def progress(self) -> Progress:
        """How far it is now, for whoever cannot hear the engine."""
        return Progress(
            part=self.part,
            remaining_s=self.remaining_s if self.has_worked else None,
            samples_per_s=self.samples_per_s,
            tokens_per_s=self.tokens_per_s,
            stopping=self.stopping,
            shared_store=self.shared_store,
            running=tuple(_told(job_id, attempt) for job_id, attempt in self.view.running().items()),
            time=self.now,
        )

    def take(self, event: Event) -> None:
        """Change the state as one event says."""
        job = self.view.jobs.get(event.get("job", ""))
        was_settled = job is not None and job.settled
        self.view.take(event)
        if event["event"] == "WorkerStarting":
            self._warm.discard(int(event.get("worker", -1)))
        if job is None:
            return
        self._expect(job.id, was_settled - job.settled)
        if job.status == "pending":
            self.part = 0.0  # what was done is to do again
            self._measured = self._measured if not was_settled else -math.inf
        if event["event"] == "JobProgress":
            self._hear(job.id, job.attempts[-1])
        if event["event"] == "JobFinished":
            self._samples += self._samples_of(job.id, event["samples"])
            self._tokens += event["tokens"]
            self.has_worked = True
            took_s = max(0.0, job.attempts[-1].elapsed_s(self.view.last) - event["load_s"])
            self._warm.add(job.attempts[-1].worker)
            self._spent_s += took_s * self._places[job.id]
            self._done[self._kinds[job.id]].add(self._plan.jobs[job.id].seconds, took_s)
        if job.status != "running":
            self._loads.pop(job.id, None)
            self._loaded_s.pop(job.id, None)

    def _hear(self, job_id: str, attempt: AttemptView) -> None:
        """A job has told how far it is, or that it loads."""
        self.has_worked = self.has_worked or attempt.part > 0
        if attempt.loading:
            self._loads.setdefault(job_id, self.view.last)
        elif (since := self._loads.pop(job_id, None)) is not None:
            self._loaded_s[job_id] = self._loaded_s.get(job_id, 0.0) + max(0.0, self.view.last - since)

    def tick(self, now: float) -> None:
        """It is later now."""
        self.now = now
        self._measure_rates(self.view.elapsed_s(now))
        self._estimate()

    def _expect(self, job_id: str, times: int) -> None:
        """There is so often more, or less, to do of a job."""
        planned_s = times * self._plan.jobs[job_id].seconds * self._places[job_id]
        self._left_s[self._kinds[job_id]] += planned_s  # type: ignore[assignment] # Counters add floats
        self._expected_s += max(0.0, planned_s)

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

    # -- how long still ----------------------------------------------------------------------------------------

    def _estimate(self) -> None:
        running = self.view.running()
        self._look_at(running)
        if self.now >= self._measured + len(self._plan.jobs) / _JOBS_PER_S:
            self._measure_paths()
        pending = (path for job_id, path in self._path_s.items() if self.view.jobs[job_id].status == "pending")
        path_s, spent_s = next(pending, 0.0), self._spent_s
        work_s = sum(planned_s * self._pace(kind) for kind, planned_s in self._left_s.items())
        for job_id, attempt in running.items():
            whole_s, left_s = self._whole_s(job_id), self._job_left_s(job_id, attempt)
            path_s = max(path_s, self._path_s[job_id] - whole_s + left_s)
            work_s -= (whole_s - left_s) * self._places[job_id]
            spent_s += max(0.0, whole_s - left_s) * self._places[job_id]
        workers = sum(worker.status != "quarantined" for worker in self.view.workers.values()) or self._workers
        self.remaining_s = max(0.0, path_s, work_s / workers)
        if work_s > 0 and not self._warm:  # until a worker can work, where none has yet
            begun_s = max((attempt.elapsed_s(self.now) for attempt in running.values()), default=0.0)
            self.remaining_s += max(0.0, self._load_s - begun_s)
        done = spent_s / (spent_s + work_s) if spent_s + work_s > 0 else 1.0
        self.part = max(self.part, min(1.0, done))

    def _look_at(self, running: dict[str, AttemptView]) -> None:
        """Let the progress of jobs tell how long those like them take, and all that was seen what others do."""
        known, self._seen = _Pace(_PRIOR * self._expected_s, _PRIOR * self._expected_s), {}
        for own in self._done.values():
            known.add(own.planned_s, own.took_s)
        for job_id, attempt in running.items():
            planned_s, kind, worked_s = (
                self._plan.jobs[job_id].seconds,
                self._kinds[job_id],
                self._worked_s(job_id),
            )
            if planned_s and (trust := self._trust(attempt)):
                told = worked_s / attempt.part / planned_s
                self._seen[kind] = trust * told + (1 - trust) * self._pace(kind)
                known.add(trust * attempt.part * planned_s, trust * worked_s)
        self._others = known.took_s / known.planned_s if known.planned_s else 1.0

    def _pace(self, kind: str) -> float:
        done = self._done.get(kind)
        if done is not None and done.planned_s:
            return done.took_s / done.planned_s
        return self._seen.get(kind, self._others)

    def _trust(self, attempt: AttemptView) -> float:
        """How much the progress of a job tells, from 0 to 1; while its worker may still be loading nothing."""
        cold = attempt.worker not in self._warm and attempt.elapsed_s(self.now) < self._load_s
        return 0.0 if cold else min(1.0, attempt.part / _TELLING)

    def _whole_s(self, job_id: str) -> float:
        return self._plan.jobs[job_id].seconds * self._pace(self._kinds[job_id])

    def _job_left_s(self, job_id: str, attempt: AttemptView) -> float:
        """Of a job that runs: by its estimate at first, then more and more by its own progress."""
        whole_s, worked_s = self._whole_s(job_id), self._worked_s(job_id)
        may_load = not attempt.part and (self._kinds[job_id] not in self._done or attempt.worker not in self._warm)
        by_time_s = max(whole_s - worked_s, (_UNSEEN if may_load else _AT_LEAST) * whole_s)
        trust = self._trust(attempt)
        by_part_s = worked_s * (1 - attempt.part) / attempt.part if trust else 0.0
        return trust * by_part_s + (1 - trust) * by_time_s

    def _worked_s(self, job_id: str) -> float:
        """Seconds since a job that runs began, less those that it spent loading: as it says, or as was planned."""
        attempt = self.view.jobs[job_id].attempts[-1]
        planned_s = 0.0 if attempt.worker in self._warm else self._load_s
        told_s = self._loaded_s.get(job_id, 0.0) + max(0.0, self.now - self._loads.get(job_id, self.now))
        return max(0.0, attempt.elapsed_s(self.now) - (told_s or planned_s))

    def _measure_paths(self) -> None:
        """Lengths of the longest paths at the pace seen so far."""
        self._measured = self.now
        left = {job.id: 0.0 if job.settled else self._whole_s(job.id) for job in self.view.jobs.values()}
        paths = self._plan.longest_paths(left)
        self._path_s = dict(sorted(paths.items(), key=lambda item: item[1], reverse=True))


def _told(job_id: str, attempt: AttemptView) -> EventFields:
    return {
        "event": "JobProgress",
        "job": job_id,
        "worker": attempt.worker,
        "attempt": attempt.number,
        "done": attempt.done,
        "total": attempt.total,
        "tokens": attempt.tokens,
        "numbers": dict(attempt.numbers),
        "loading": attempt.loading,
    }
