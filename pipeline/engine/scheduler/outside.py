"""The outside of a run: carries out what was decided, in order, and asks the store what decisions hang on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.engine.events import Event
from pipeline.engine.journal import Journal
from pipeline.engine.scheduler.effects import (
    Effect,
    OnDisk,
    Process,
    Record,
    ReleaseClaim,
    Say,
    Send,
    SetAside,
    Tell,
)
from pipeline.engine.scheduler.job_state import THERE
from pipeline.engine.scheduler.state import RunState
from pipeline.engine.store.store import NOT_STORED, Store
from pipeline.engine.store.verified import Verified
from pipeline.engine.workers.pool import Pool
from pipeline.errors import StoreError
from pipeline.locks import Claim
from pipeline.plan.job import Job

log = logging.getLogger("pipeline")


@dataclass(kw_only=True)
class Outside:
    """What a run acts on.

    Attributes:
        pool: Who works.
        store: Where outputs go.
        journal: Gets every change of state.
        verified: What was found good among the stored outputs.
        on_event: Told every event, see `engine.events`.
        claims: Job -> the right to compute its key, which no other run that shares the store has meanwhile.
        broken: Why the journal can no longer be written, or "". The run must end then: nobody could tell from its
            journal what happened after.
    """

    pool: Pool
    store: Store
    journal: Journal
    verified: Verified
    on_event: Callable[[Event], None] = lambda _: None
    claims: dict[str, Claim] = field(default_factory=dict)
    broken: str = ""

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
            case Tell():
                self.on_event({"event": effect.event, **effect.fields})
            case Say():
                log.log(effect.level, "%s", effect.text)
            case Send():
                self.pool.send(effect.worker, effect.order)
            case Process():
                getattr(self.pool, effect.action)(effect.worker)
            case ReleaseClaim():
                if claim := self.claims.pop(effect.job_id, None):
                    claim.release()
            case SetAside():
                self._set_aside(effect.key, effect.problem)

    def record(self, event: str, **fields: object) -> None:
        """Have an event on disk and then tell it, or remember that it could not be written."""
        if self.broken:
            return
        try:
            written = self.journal.write(event, **fields)
        except StoreError as error:
            self.broken = str(error)
        else:
            self.on_event(written)

    # -- what only the disk knows ------------------------------------------------------------------------------

    def before(self, job: Job) -> OnDisk:
        """Claim the key of a job that is about to start, and look whether another run has made its output.

        One that cannot be used is set aside before anything is decided.

        Raises:
            StoreError: It cannot be moved.
        """
        if not job.key:
            return OnDisk()
        claim = self.store.claim(job.key)
        if claim is None:
            return OnDisk(claimed=False)
        self.claims[job.id] = claim
        problem = self.verified.problem(job.key)
        if problem not in (None, NOT_STORED):
            self._set_aside(job.key, problem)
        return OnDisk(stored=problem is None)

    def after(self, job: Job) -> OnDisk:
        """Look whether a job that is said to be done has left its output, where it has one."""
        return OnDisk(stored=not job.key or self.store.is_committed(job.key))

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

    def _is_gone(self, job_id: str, state: RunState) -> bool:
        key = state.plan.jobs[job_id].key
        return state.jobs[job_id].status in THERE and not self.store.has(key, checksums=False)
