"""A run that is under way: its view, how fast it goes, how far it is, and how long it will still take. Pure."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Collection
from dataclasses import dataclass

from pipeline.engine.events import Event, JobProgress
from pipeline.plan.graph import WORKER_LOAD_S, Plan, duration_name
from pipeline.runs.progress import Progress
from pipeline.runs.run_view import AttemptView, RunView

# -- pace --------------------------------------------------------------------------------------------------------
# How much longer jobs take than was planned, for each kind of job; so that one wrong estimate spoils no
# other.


_TRUST = 0.5
"""Part of the planned work that counts as done as planned, for kinds of which nothing is known yet."""
_NOTABLE = 0.1
"""Change of a pace that makes paths be measured again."""


@dataclass
class Seen:
    """What is done of jobs, in seconds."""

    planned_s: float = 0.0
    took_s: float = 0.0


class Pace:
    """What jobs take, as a multiple of what was planned.

    Attributes:
        seen: Kind -> what one that runs tells of its pace.
        running: The part that is done of those that run.
    """

    def __init__(self) -> None:
        self.seen: dict[str, float] = {}
        self.running = Seen()
        self._done: defaultdict[str, Seen] = defaultdict(Seen)
        self._left_s: defaultdict[str, float] = defaultdict(float)
        self._all = Seen()
        self._expected_s = 0.0
        self._noted: dict[str, float] = {}

    def expect(self, kind: str, planned_s: float) -> None:
        """There is so much more, or less, to do."""
        self._left_s[kind] += planned_s
        self._expected_s += max(0.0, planned_s)

    def finished(self, kind: str, planned_s: float, took_s: float) -> None:
        """A job is done."""
        for each in (self._done[kind], self._all):
            each.planned_s += planned_s
            each.took_s += took_s

    def knows(self, kind: str) -> bool:
        """Whether a job of that kind is done."""
        return kind in self._done

    def of(self, kind: str) -> float:
        """Of a kind: as those took that are done; else as one that runs; else as all others, if they are much."""
        done = self._done.get(kind)
        if done is not None and done.planned_s:
            return done.took_s / done.planned_s
        if kind in self.seen:
            return self.seen[kind]
        prior_s = _TRUST * self._expected_s
        known_s = self._all.planned_s + self.running.planned_s + prior_s
        return (self._all.took_s + self.running.took_s + prior_s) / known_s if known_s else 1.0

    def left_s(self) -> float:
        """What is left to do, by one worker."""
        return sum(planned_s * self.of(kind) for kind, planned_s in self._left_s.items())

    def note(self) -> None:
        """Remember every pace, for `changed`."""
        self._noted = {kind: self.of(kind) for kind in self._left_s}

    def changed(self) -> bool:
        """Whether one is notably different from when it was noted."""
        return any(abs(self.of(kind) - was) > _NOTABLE * was for kind, was in self._noted.items())


RATE_WINDOW_S = 10.0
_TELLING = 0.2
"""Part of a job from which on its own progress alone tells how long it still takes."""
_TELLING_S = 30.0
"""Seconds after which it does so whatever its part."""
_UNSEEN = 0.5
"""Part of a job that is still to come, at least, while it has told no progress: it may well be loading yet."""
_AT_LEAST = 0.1
"""Part of a job that is still to come, as far as anyone knows, while it runs."""
_JOBS_PER_S = 1000
"""Of a plan whose paths are measured again: it is done so seldom that it takes no time to speak of."""


class LiveRun:
    """Takes what an engine tells of its run, with the plan's estimates and enough of the past to give rates.

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
        cluster: What there is to say of where its workers live, or "".
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
        self.has_worked, self.stopping, self.shared_store, self.cluster = False, "", "", ""
        self._plan, self._workers, self._load_s = plan, workers, load_s
        self._kinds = {job.id: duration_name(job) for job in plan.jobs.values()}
        self._places = {job.id: job.devices * slots if job.devices > 1 else 1 for job in plan.jobs.values()}
        """Job -> workers whose places it takes."""
        self._pace = Pace()
        for job in self.view.jobs.values():
            if not job.settled:
                self._expect(job.id, 1)
        self._warm: set[int] = set()
        """Workers that have finished a job, and so have loaded what they need."""
        self._first: dict[tuple[str, int], tuple[float, float]] = {}
        """Job, attempt -> when it first told of progress, by when it had loaded; and how far it was then."""
        self._loads: dict[tuple[str, int], float] = {}
        """Job, attempt -> since when it says that it loads."""
        self._loaded_s: dict[tuple[str, int], float] = {}
        """Job, attempt -> what it has spent on that before."""
        self._spent_s = 0.0
        """On jobs that are done, times their places."""
        self._samples = self._tokens = 0
        self._past: deque[tuple[float, int, int]] = deque([(0.0, 0, 0)])
        self._path_s: dict[str, float] = {}
        self._by_path: list[str] = []
        self._ranks: dict[str, int] = {}
        """Jobs from the longest path on, and the place of each among them."""
        self._begun = 0
        """How many of these at least are not pending."""
        self._measured_paths, self._reopened = 0.0, False
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
            cluster=self.cluster,
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
            self._begun = min(self._begun, self._ranks[job.id])
            # What was done is to do again.
            self.part, self._reopened = 0.0, self._reopened or was_settled
        if event["event"] == "JobProgress":
            self._hear(job.id, job.attempts[-1])
        if event["event"] == "JobFinished":
            self._samples += self._samples_of(job.id, event["samples"])
            self._tokens += event["tokens"]
            self.has_worked = True
            took_s = max(0.0, job.attempts[-1].elapsed_s(self.view.last) - event["load_s"])
            self._warm.add(job.attempts[-1].worker)
            self._spent_s += took_s * self._places[job.id]
            self._pace.finished(self._kinds[job.id], self._plan.jobs[job.id].seconds, took_s)
        if job.status != "running" and job.attempts:
            self._forget(job.id, job.attempts[-1])

    def _forget(self, job_id: str, attempt: AttemptView) -> None:
        """An attempt that is over is not asked about any more, and a run may have a million of them."""
        which = job_id, attempt.number
        self._first.pop(which, None)
        self._loads.pop(which, None)
        self._loaded_s.pop(which, None)

    def _hear(self, job_id: str, attempt: AttemptView) -> None:
        """A job has told how far it is, or that it loads."""
        which, now = (job_id, attempt.number), self.view.last
        if attempt.part:
            self.has_worked = True
            self._first.setdefault(which, (now, attempt.part))
        if attempt.loading:
            self._loads.setdefault(which, now)
        elif (since := self._loads.pop(which, None)) is not None:
            self._loaded_s[which] = self._loaded_s.get(which, 0.0) + max(0.0, now - since)

    def tick(self, now: float) -> None:
        """It is later now."""
        self.now = now
        self._measure_rates(self.view.elapsed_s(now))
        self._estimate()

    def _expect(self, job_id: str, times: int) -> None:
        if times:
            self._pace.expect(self._kinds[job_id], times * self._plan.jobs[job_id].seconds * self._places[job_id])

    def _measure_rates(self, elapsed_s: float) -> None:
        running = self.view.running()
        samples = self._samples + sum(
            self._samples_of(job_id, attempt.done) for job_id, attempt in running.items()
        )
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

    # -- how far, and how long still -----------------------------------------------------------------------------

    def _estimate(self) -> None:
        """The larger of the longest path and the work per worker, at the pace seen so far."""
        running = self.view.running()
        self._pace.seen, self._pace.running = {}, Seen()
        for job_id, attempt in running.items():
            self._look_at(job_id, attempt)
        due = self.now >= self._measured_paths + len(self._plan.jobs) / _JOBS_PER_S
        if self._reopened or (due and self._pace.changed()):
            self._measure_paths()
        path_s, work_s, spent_s = self._longest_pending_s(), self._pace.left_s(), self._spent_s
        for job_id, attempt in running.items():
            whole_s, left_s = self._whole_s(job_id), self._left_s(job_id, attempt)
            path_s = max(path_s, self._path_s[job_id] - whole_s + left_s)
            work_s -= (whole_s - left_s) * self._places[job_id]
            spent_s += max(0.0, whole_s - left_s) * self._places[job_id]
        places = [worker for worker in self.view.workers.values() if worker.status != "quarantined"]
        cold_s = self._loading_s(running) if work_s > 0 else 0.0
        self.remaining_s = max(0.0, path_s, work_s / max(1, len(places) or self._workers)) + cold_s
        done = spent_s / (spent_s + work_s) if spent_s + work_s > 0 else 1.0
        self.part = max(self.part, min(1.0, done))

    def _look_at(self, job_id: str, attempt: AttemptView) -> None:
        """Let the progress of a job tell how long those like it take, while none of them is done."""
        part, took_s = self._advance(job_id, attempt)
        planned_s, kind = self._plan.jobs[job_id].seconds, self._kinds[job_id]
        if planned_s and (trust := _trust(part, took_s)):
            self._pace.seen[kind] = trust * took_s / part / planned_s + (1 - trust) * self._pace.of(kind)
            self._pace.running.planned_s += trust * part * planned_s
            self._pace.running.took_s += trust * took_s

    def _whole_s(self, job_id: str) -> float:
        return self._plan.jobs[job_id].seconds * self._pace.of(self._kinds[job_id])

    def _left_s(self, job_id: str, attempt: AttemptView) -> float:
        """Of a job that runs: by its estimate at first, then more and more by its own progress."""
        whole_s, worked_s = self._whole_s(job_id), self._worked_s(job_id, attempt)
        known = self._pace.knows(self._kinds[job_id])
        by_time_s = max(whole_s - worked_s, _AT_LEAST * min(whole_s, worked_s))
        if whole_s and not known:
            # A guess may be far too low: what is left grows less, and never ends.
            by_time_s = whole_s * math.exp(-worked_s / whole_s)
        first = self._first.get((job_id, attempt.number))
        if first is None:
            loads = not known or attempt.worker not in self._warm
            return max(by_time_s, _UNSEEN * whole_s) if loads else by_time_s
        part, took_s = self._advance(job_id, attempt)
        if part:
            trust = _trust(part, took_s)
            return trust * took_s * (1 - attempt.part) / part + (1 - trust) * by_time_s
        # The step after the first takes so long already; most take as many of them as the first was.
        since_s, told = max(0.0, self.now - first[0]), first[1]
        trust = min(1.0, since_s / _TELLING_S)
        return max(by_time_s, trust * since_s * (1 - told) / told + (1 - trust) * by_time_s)

    def _advance(self, job_id: str, attempt: AttemptView) -> tuple[float, float]:
        """Part of a job that was done in so many seconds, from its first progress on: loading came before.

        Of a job that has told but once, and of much, the time until then tells enough, unless its worker had to
        load first; of little it tells nothing.
        """
        first = self._first.get((job_id, attempt.number))
        if first is None:
            return 0.0, 0.0
        at, told = first
        part = attempt.part
        if part > told:
            return part - told, max(0.0, self.now - at)
        if told < _TELLING or self._cold_s(attempt):
            return 0.0, 0.0
        return part, self._since_load_s(job_id, attempt)

    def _worked_s(self, job_id: str, attempt: AttemptView) -> float:
        """Seconds of work on a job; what came before its first progress is at most what was planned for that."""
        since_s = self._since_load_s(job_id, attempt)
        if (first := self._first.get((job_id, attempt.number))) is None:
            return since_s
        after_s = max(0.0, self.now - first[0])
        return min(since_s, first[1] * self._whole_s(job_id) + after_s)

    def _since_load_s(self, job_id: str, attempt: AttemptView) -> float:
        """Seconds since the job began, less those that it spent loading: as it says, or else as was planned."""
        which = job_id, attempt.number
        told_s = self._loaded_s.get(which, 0.0) + max(0.0, self.now - self._loads.get(which, self.now))
        return max(0.0, attempt.elapsed_s(self.now) - (told_s or self._cold_s(attempt)))

    def _cold_s(self, attempt: AttemptView) -> float:
        """Seconds that a worker is planned to load in its first job."""
        return 0.0 if attempt.worker in self._warm else self._load_s

    def _loading_s(self, running: dict[str, AttemptView]) -> float:
        """Until every worker can work, where none has yet."""
        if self._warm:
            return 0.0
        begun_s = max((attempt.elapsed_s(self.now) for attempt in running.values()), default=0.0)
        return max(0.0, self._load_s - begun_s)

    def _measure_paths(self) -> None:
        """Lengths of the longest paths at the pace seen so far."""
        self._measured_paths, self._reopened = self.now, False
        self._pace.note()
        left = {job.id: 0.0 if job.settled else self._whole_s(job.id) for job in self.view.jobs.values()}
        self._path_s = self._plan.longest_paths(left)
        self._by_path = sorted(self._path_s, key=self._path_s.__getitem__, reverse=True)
        self._ranks = {job_id: rank for rank, job_id in enumerate(self._by_path)}
        self._begun = 0

    def _longest_pending_s(self) -> float:
        """Length of the longest path that begins with a job which is still to be begun."""
        jobs, by_path = self.view.jobs, self._by_path
        while self._begun < len(by_path) and jobs[by_path[self._begun]].status != "pending":
            self._begun += 1
        return self._path_s[by_path[self._begun]] if self._begun < len(by_path) else 0.0


def _trust(part: float, worked_s: float) -> float:
    """How much the progress of a job tells, from 0 to 1: by its part, and of a long job by its time as well."""
    return min(1.0, max(part / _TELLING, worked_s / _TELLING_S)) if part else 0.0


def _told(job_id: str, attempt: AttemptView) -> JobProgress:
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
