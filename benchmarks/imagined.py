"""Imagined workers for the real engine: its loop, rules and journal run as they are, and time passes on paper.

    loop -- send --> ImaginedPool: a heap of what each worker will say, and when
         <-- wait -- the clock goes on to the next of it

What workers say is encoded and read back as over a pipe. Processor time that is spent in here, which a real run
does not have, is counted apart.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from pipeline.engine.devices.select import Layout
from pipeline.engine.store.store import NOT_STORED, Store
from pipeline.engine.workers.messages import (
    FromWorker,
    Heartbeat,
    JobFinished,
    JobProgress,
    JobStarted,
    RunJob,
    WorkerExited,
    WorkerReady,
    decode_report,
    encode,
)
from pipeline.engine.workers.pool import Hear, Pool
from pipeline.plan.graph import Plan

LATENCY_S = 0.002
"""From an order to the begin of the job."""
PROGRESS_S = 0.25
"""Between two reports of a job, see `pipeline.engine.workers.work`."""


class Clock:
    """Monotonic seconds that pass when somebody says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """What time it is."""
        return self.now_s


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """What an imagined machine takes; seconds and bytes per second.

    Attributes:
        start_s: Until a new worker process is ready.
        import_s: That its first job imports libraries for.
        load_s: To bring a model that a worker does not hold into its memory, the reading left out.
        remote: From the disk that all nodes share.
        local: What the node has read or written before.
        cached: Bytes that a node keeps of those.
        models: How many models a worker keeps.
    """

    start_s: float = 0.0
    import_s: float = 0.0
    load_s: float = 0.0
    remote: float = 1e9
    local: float = 8e9
    cached: float = 1e12
    models: int = 1


@dataclass
class _Imagined:
    """What an imagined process has in its memory, and has been given."""

    fresh: bool = True
    holds: list[str] = field(default_factory=list)
    life: int = 0
    """Grows with each process in this place: what an earlier one would have said is never heard."""


class ImaginedStore(Store):
    """Nothing is stored before the run, and every output is there once its job is done. Claims are real."""

    def __init__(self, root: Path, plan: Plan, sizes: Mapping[str, float]) -> None:
        super().__init__(root)
        self._sizes = {job.key: int(sizes.get(job.id, 0)) for job in plan.jobs.values()}

    def problem(self, key: str, *, checksums: bool = True) -> str | None:  # noqa: ARG002
        """Nobody asks but before a job starts."""
        return NOT_STORED

    def is_committed(self, key: str) -> bool:  # noqa: ARG002
        """Nobody asks but after a job."""
        return True

    def is_removed(self, key: str) -> bool:  # noqa: ARG002
        """Nothing is."""
        return False

    def manifest(self, key: str) -> dict[str, Any]:
        """One file of that size."""
        return {"files": {"output": {"size": self._sizes[key], "sha256": "0" * 64}}}


class Caches:
    """What each node has of the outputs on the disk that they share: the ones read or made last."""

    def __init__(self, sizes: Mapping[str, float], limit: float) -> None:
        self._sizes = sizes
        self._limit = limit
        self._there: dict[int, dict[str, None]] = {}
        self._bytes: dict[int, float] = {}
        self.read = self.moved = 0.0

    def reads(self, node: int, job_ids: Sequence[str]) -> tuple[float, float]:
        """Bytes of some outputs, and those of them that the node did not have."""
        there = self._there.setdefault(node, {})
        missing = sum(self._sizes.get(name, 0.0) for name in job_ids if name not in there)
        whole = sum(self._sizes.get(name, 0.0) for name in job_ids)
        for name in job_ids:
            self.has(node, name)
        self.read += whole
        self.moved += missing
        return whole, missing

    def has(self, node: int, job_id: str) -> None:
        """It has this output now, used last of all."""
        there = self._there.setdefault(node, {})
        known = there.pop(job_id, self) is None
        there[job_id] = None
        self._bytes[node] = self._bytes.get(node, 0.0) + (0.0 if known else self._sizes.get(job_id, 0.0))
        while self._bytes[node] > self._limit:
            first = next(iter(there))
            del there[first]
            self._bytes[node] -= self._sizes.get(first, 0.0)


class ImaginedPool(Pool):
    """As `Pool`, with workers that exist on paper alone and never fail.

    Attributes:
        cpu_s: Processor seconds of this process that went into imagining.
        messages: How many were delivered.
        turns: How often was waited.
        caches: What nodes have read and moved.
    """

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        seconds: Mapping[str, float],
        clock: Clock,
        *,
        sizes: Mapping[str, float] | None = None,
        speeds: Speeds | None = None,
        talking: bool = False,
        heartbeat_s: float = 10.0,
    ) -> None:
        """Imagine as many workers as a layout has.

        Args:
            plan: What they carry out.
            layout: Where they are.
            seconds: Job id -> what it takes, loading left out.
            clock: The time.
            sizes: Job id -> bytes of its output.
            speeds: Of the machines.
            talking: Whether workers send signs of life and progress too.
            heartbeat_s: Between two signs of life.
        """
        self.size = layout.workers
        self.cpu_s = 0.0
        self.messages = self.turns = 0
        self._plan, self._layout, self._seconds, self._time = plan, layout, seconds, clock
        self._speeds, self._talking, self._heartbeat_s = speeds or Speeds(), talking, heartbeat_s
        self._sizes = sizes or {}
        self.caches = Caches(sizes or {}, self._speeds.cached)
        self._events: list[tuple[float, int, int, int, bytes | FromWorker]] = []
        self._number = count()
        self._workers = [_Imagined() for _ in range(self.size)]
        self._until_s: dict[int, float] = {}

    # -- what the engine asks of it ------------------------------------------------------------------------------

    @property
    def lost(self) -> str:
        """Never."""
        return ""

    @property
    def notice(self) -> str:
        """Nothing."""
        return ""

    def interrupt(self) -> None:
        """Nothing to do: no job runs anywhere."""

    def start(self) -> None:
        """Have all of them ready a moment later."""
        with self._imagining():
            for index in range(self.size):
                self._begin_process(index, self._time.now_s)
                if self._talking:
                    self._say(index, self._time.now_s + self._heartbeat_s, Heartbeat(rss_bytes=1))

    def send(self, index: int, job: RunJob) -> None:
        """Imagine what the worker will say of a job."""
        encode(job)  # as the engine does for a pipe
        with self._imagining():
            worker, planned = self._workers[index], self._plan.jobs[job.job_id]
            node = self._layout.places[self._layout.device_of(index)].node
            _, moved = self.caches.reads(node, self._plan.inputs(job.job_id))
            load_s = moved / self._speeds.remote
            if worker.fresh:
                load_s += self._speeds.import_s
            if planned.devices > 1 or (planned.affinity and planned.affinity not in worker.holds):
                load_s += self._speeds.load_s
            if planned.devices == 1 and planned.affinity:
                others = [name for name in worker.holds if name != planned.affinity]
                worker.holds = [*others, planned.affinity][-self._speeds.models :]
            worker.fresh = False
            self.caches.has(node, job.job_id)
            about: dict[str, Any] = {"job_id": job.job_id, "attempt": job.attempt}
            begin_s = max(self._time.now_s, self._until_s.get(index, 0.0)) + LATENCY_S
            run_s = load_s + self._seconds[job.job_id]
            self._until_s[index] = begin_s + run_s
            self._say(index, begin_s, JobStarted(**about))
            done = JobFinished(**about, load_s=load_s, run_s=run_s, samples=100, tokens=10_000)
            self._say(index, begin_s + run_s, done)
            if self._talking:
                for step in range(1, int(run_s / PROGRESS_S)):
                    told = JobProgress(**about, done=step, total=1_000_000, tokens=step)
                    self._say(index, begin_s + step * PROGRESS_S, told)

    def flush(self) -> None:
        """Nothing is kept back."""

    def restart(self, index: int) -> None:
        """End a process, and begin another in its place."""
        with self._imagining():
            worker = self._workers[index]
            worker.life += 1
            now_s = self._time.now_s
            self._until_s.pop(index, None)
            self._say(index, now_s + LATENCY_S, WorkerExited(exit_code=-9))
            self._begin_process(index, now_s)

    def stop(self, deliver: Hear, hurry: Sequence[int] = ()) -> None:  # noqa: ARG002
        """Let all of them end."""
        for index in range(self.size):
            deliver(index, WorkerExited(exit_code=0))

    def wait(
        self,
        timeout_s: float | None,
        deliver: Hear,
        also: Sequence[int] = (),  # noqa: ARG002
    ) -> None:
        """Let time pass until one of them has something to say."""
        self.turns += 1
        with self._imagining():
            due = self._due()
        if not due:
            assert timeout_s is not None, "nobody will say anything any more"
            self._time.now_s += timeout_s
            return
        # What the loop waits for is not the next message: then there is a turn in which nobody says anything.
        next_s = due[0]
        if timeout_s is not None and self._time.now_s + timeout_s < next_s:
            self._time.now_s += timeout_s
            return
        self._time.now_s = max(self._time.now_s, next_s)
        while True:
            with self._imagining():
                taken = self._next()
            if taken is None:
                return
            index, message = taken
            self.messages += 1
            deliver(index, decode_report(message) if isinstance(message, bytes) else message)

    def watch_path(self, path: object) -> None:
        """Nothing to do: nobody is killed here."""

    # -- inside --------------------------------------------------------------------------------------------------

    def _begin_process(self, index: int, now_s: float) -> None:
        worker = self._workers[index]
        worker.fresh, worker.holds = True, []
        node = self._layout.places[self._layout.device_of(index)].node
        where = f"node {node}"
        ready = WorkerReady(pid=index + 1, device=f"device {index}", visible=str(index), node=where)
        self._say(index, now_s + LATENCY_S + self._speeds.start_s, ready)

    def _say(self, index: int, at_s: float, message: FromWorker) -> None:
        said = message if isinstance(message, WorkerExited) else encode(message)
        heapq.heappush(self._events, (at_s, next(self._number), index, self._workers[index].life, said))

    def _due(self) -> list[float]:
        return [self._events[0][0]] if self._events else []

    def _next(self) -> tuple[int, bytes | FromWorker] | None:
        """What is to be heard by now, if anything is left of it."""
        while self._events and self._events[0][0] <= self._time.now_s:
            at_s, _, index, life, said = heapq.heappop(self._events)
            if isinstance(said, bytes) and said.startswith(b'["Heartbeat"'):
                self._say(index, at_s + self._heartbeat_s, Heartbeat(rss_bytes=1))
                return index, said
            if life == self._workers[index].life:
                return index, said
        return None

    @contextmanager
    def _imagining(self) -> Iterator[None]:
        began_s = time.process_time()
        try:
            yield
        finally:
            self.cpu_s += time.process_time() - began_s
