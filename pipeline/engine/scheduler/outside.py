"""The outside of a run: carries out what was decided, in order, and asks the store what decisions hang on."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pipeline.engine.events import FOLLOWS_FROM_STORE, SHARED_STORE, Event, Listener
from pipeline.engine.journal import Journal
from pipeline.engine.scheduler.run import (
    Effect,
    OnDisk,
    ProcessOrder,
    Record,
    ReleaseClaim,
    Say,
    Send,
    SetAside,
    Tell,
)
from pipeline.engine.scheduler.state import THERE, RunState
from pipeline.engine.store.shared import Answer, Session, Traffic
from pipeline.engine.store.store import NOT_STORED, REMOVED, Scratch, Store
from pipeline.engine.store.verified import Verified
from pipeline.engine.workers.pool import Pool
from pipeline.errors import StoreError
from pipeline.locks import Claim
from pipeline.plan.graph import Job

FORCE_S = 0.2
"""How long an event may wait to be on disk that follows from the store: a loss of power forgets so much."""

log = logging.getLogger("pipeline")


@dataclass(kw_only=True)
class Outside:
    """What a run acts on.

    Attributes:
        pool: Who works.
        store: Where outputs go.
        journal: Gets every change of state.
        verified: What was found good among the stored outputs.
        scratch: Whose lock says that the run lives; None where keys are claimed each by a lock of its own.
        listener: Told what happens.
        claims: Job -> the right to compute its key, which no other run that shares the store has meanwhile.
        broken: Why the journal can no longer be written, or "". The run must end then: nobody could tell from its
            journal what happened after.
        clock: Monotonic seconds.
        shared: The store that other machines share, if there is one.
    """

    pool: Pool
    store: Store
    journal: Journal
    verified: Verified
    scratch: Scratch | None = None
    listener: Listener = field(default_factory=Listener)
    claims: dict[str, Claim] = field(default_factory=dict)
    broken: str = ""
    clock: Callable[[], float] = time.monotonic
    shared: Session | None = None
    _untold: list[Event] = field(default_factory=list)
    _must_force: bool = False
    _forced_s: float = 0.0
    _traffic: Traffic = field(default_factory=Traffic)
    _noted_s: float = -math.inf

    # -- what was decided --------------------------------------------------------------------------------------

    def carry_out(self, effect: Effect) -> None:
        """Do one thing.

        Raises:
            StoreError: A damaged output cannot be moved.
            WorkerError: A worker cannot be started.
        """
        match effect:
            case Record():
                self.record(effect.event, **effect.fields)
                return
            case Tell():
                self._untold.append({"event": effect.event, **effect.fields})
                return
            case Say():
                log.log(effect.level, "%s", effect.text)
                return
        if self._must_force:
            self.settle()
        match effect:
            case Send():
                self.pool.send(effect.worker, effect.order)
            case ProcessOrder():
                getattr(self.pool, effect.action)(effect.worker)
            case ReleaseClaim():
                if claim := self.claims.pop(effect.job_id, None):
                    claim.release()
            case SetAside():
                self._set_aside(effect.key, effect.problem)

    def record(self, event: str, **fields: object) -> None:
        """Have an event in the journal with the next `settle`."""
        if not self.broken:
            self._untold.append(self.journal.append(event, **fields))
            self._must_force |= event not in FOLLOWS_FROM_STORE

    def settle(self) -> None:
        """Write what was recorded, in one go, and tell it; or remember that it could not be written.

        Called at the end of a turn, before anything is waited for. What only the journal tells is on disk then,
        and before the next action of any kind; the rest is within `FORCE_S`.
        """
        if not self.broken:
            try:
                if self._must_force or self.force_due_s <= self.clock():
                    self._must_force, self._forced_s = False, self.clock()
                    self.journal.force()
                else:
                    self.journal.flush()
            except StoreError as error:
                self.broken = str(error)
                self._untold.clear()
        untold, self._untold = self._untold, []
        for event in untold:
            self.listener.on_event(event)

    def note_traffic(self, every_s: float = 0.0) -> None:
        """Have in the journal what came from the shared store and went there, unless that was just done."""
        if self.shared is None or self.clock() < self._noted_s + every_s:
            return
        if (traffic := self.shared.traffic) != self._traffic:
            self._traffic, self._noted_s = traffic, self.clock()
            self.record(SHARED_STORE, **vars(traffic))

    @property
    def force_due_s(self) -> float:
        """When what was written has to be on disk; infinite where all of it is."""
        return self._forced_s + FORCE_S if self.journal.unforced else math.inf

    # -- what only the disk knows ------------------------------------------------------------------------------

    def before(self, job: Job, state: RunState) -> OnDisk:
        """Claim the key of a job that is about to start, and look whether another run has made its output.

        One that cannot be used is set aside before anything is decided. One whose weights were removed will do
        where nothing that is left reads it.

        Raises:
            StoreError: It cannot be moved.
        """
        if not job.key:
            return OnDisk()
        claim = self.claims.pop(job.id, None) if self.shared is not None else None
        if claim is None:  # one that waits for the shared store has it already
            claim = self.store.claim(job.key, self.scratch.claim if self.scratch else None)
        if claim is None:
            return OnDisk(claimed=False)
        try:
            found = self._stored(job, state)
            if self.shared is not None and not found.stored:
                found = self._elsewhere(self.shared, job, state)
        except BaseException:
            claim.release()  # who asks again is not to wait for itself
            raise
        self.claims[job.id] = claim
        return found

    def _elsewhere(self, shared: Session, job: Job, state: RunState) -> OnDisk:
        """What the shared store says of a job whose output is not here; never waits for it."""
        answer = shared.ask(job.id, job.key)
        if answer is Answer.mine:
            inputs = state.plan.inputs(job.id)
            lost = (up for up in inputs if state.jobs[up].status in THERE and not self._is_whole(state, up))
            return OnDisk(lost=frozenset(lost))
        if answer is Answer.there and (found := self._stored(job, state)).stored:
            return found
        return OnDisk(claimed=False, waits="")

    def expect(self, jobs: Iterable[Job]) -> None:
        """Fetch outputs that are stored elsewhere alone."""
        if self.shared is not None:
            self.shared.expect({job.id: job.key for job in jobs})

    @property
    def wakes(self) -> list[int]:
        """Descriptors that end a wait for workers."""
        return [self.shared.fileno()] if self.shared is not None else []

    def answered(self, state: RunState) -> dict[str, OnDisk]:
        """The jobs of which the shared store knows more than before, and what is here of each."""
        told = self.shared.answered() if self.shared else ()
        keys = {job_id: state.plan.jobs[job_id].key for job_id in told}
        return {job_id: OnDisk(stored=self.store.has(key, checksums=False)) for job_id, key in keys.items()}

    @property
    def is_asking(self) -> bool:
        """Whether so much is asked of the shared store that no further job should begin."""
        return self.shared is not None and self.shared.is_busy

    def _stored(self, job: Job, state: RunState) -> OnDisk:
        problem = self.verified.problem(job.key)
        if problem == REMOVED:
            readers = [state.jobs[reader].status for reader in state.plan.readers(job.id)]
            # One without readers is asked for itself, or nobody would have it run again.
            return OnDisk(stored=bool(readers) and all(status in THERE for status in readers))
        if problem not in (None, NOT_STORED):
            self._set_aside(job.key, problem)
        return OnDisk(stored=problem is None)

    def after(self, job: Job) -> OnDisk:
        """Look whether a job that is said to be done has left its output, where it has one."""
        if not job.key:
            return OnDisk(stored=True)
        stored = self.store.is_committed(job.key) and not self.store.is_removed(job.key)
        if stored and self.shared is not None:
            self.shared.finished(job.key, job.id)
        return OnDisk(stored=stored)

    def damage(self, key: str, state: RunState) -> OnDisk:
        """Look at an output that a job could not use, and whether what it takes to make it anew is there."""
        maker = next((job.id for job in state.plan.jobs.values() if job.key == key), "")
        missing: set[str] = set()
        above = [maker] if maker else []
        while above:
            gone = {up for up in state.plan.inputs(above.pop()) if self._is_gone(up, state)} - missing
            missing |= gone
            above += gone
        return OnDisk(problem=self.store.problem(key) or "", maker=maker, missing=frozenset(missing))

    def _set_aside(self, key: str, problem: str) -> None:
        aside = self.store.set_aside(key)
        where = f"set aside to {aside}" if aside else "gone"
        log.warning("stored output %s is damaged (%s): %s", key, problem, where)

    def _is_whole(self, state: RunState, job_id: str) -> bool:
        key = state.plan.jobs[job_id].key
        return not key or (self.store.is_committed(key) and not self.store.is_removed(key))

    def _is_gone(self, job_id: str, state: RunState) -> bool:
        key = state.plan.jobs[job_id].key
        return state.jobs[job_id].status in THERE and not self.store.has(key, checksums=False)
