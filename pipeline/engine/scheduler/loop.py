"""Run a plan: the event loop of the scheduler, in one thread. All clocks and side effects are here.

                 plan, what is stored
                          |
                          v
    signals --.     +-----------+   policy                 +------+  RunJob   +----------+
               '--> |    run    | -----------------------> | pool | --------> | worker 0 |--+
                    | (no I/O)  |                          |      | --------> | worker n |  | commit
                    +-----------+ <----- one wait -------- +------+ <-------- +----------+  v
                      |   |    JobFinished, JobRaised,          ^    messages          +---------+
                      |   |    JobProgress, WorkerExited        |                      |  store  |
                      |   |                                     +- sentinels           +---------+
                      |   '--> reactions, attempts: retry here or elsewhere, kill what hangs,
                      v        quarantine a device, or fail a job and block what depends on it
                 effects: journal (in one go a turn), whoever watches, run log, orders to the pool

Nothing is polled: the wait ends when a pipe, a sentinel or a signal has something, or when a deadline is due.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Protocol

from pipeline.config.schema import Backend, BudgetConfig, ExecutionConfig
from pipeline.engine.devices.inventory import Device
from pipeline.engine.devices.select import Held, Layout, Place, plain_layout
from pipeline.engine.journal import FOLLOWS_FROM_STORE, Event, Journal, Listener
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.scheduler import reactions
from pipeline.engine.scheduler import run as effects
from pipeline.engine.scheduler.outcome import Outcome, account
from pipeline.engine.scheduler.policy import Reserve, next_actions
from pipeline.engine.scheduler.ready import Needs
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.scheduler.state import THERE, JobStatus, RunState
from pipeline.engine.store.shared import SharedStore
from pipeline.engine.store.store import NOT_STORED, REMEDY, Scratch, Store, Verified, lock_of
from pipeline.engine.workers import messages
from pipeline.engine.workers.pool import Pool
from pipeline.errors import StoreError, explaining
from pipeline.files import Claim
from pipeline.outputs.manifest import REMOVED
from pipeline.plan.graph import Job, Plan, reached

# -- outside -----------------------------------------------------------------------------------------------------
# Side effects of a run: execute what the rules decided, in order, and query the store for what decisions depend
# on.


FORCE_S = 0.2
"""Longest delay, in seconds, until an event that follows from the store is on disk; a loss of power loses that
much."""

log = logging.getLogger("pipeline")


@dataclass(kw_only=True)
class Outside:
    """Executes the side effects of a run.

    Attributes:
        pool: The workers.
        store: Store of the outputs.
        journal: Receives every change of state.
        run_dir: Folder of the run: logs of the jobs, and links to their outputs.
        found: Notes on which stored outputs were found intact while planning; None if none was checked.
        verified: The same with what is found during the run.
        scratch: Folder of unfinished outputs.
        listener: Callbacks of the run.
        claims: Job -> lock on its key, so that no other run that shares the store computes it meanwhile.
        broken: Why the journal can no longer be written, or "". The run must end then: its journal would not show
            what happened afterwards.
        clock: Monotonic seconds.
        shared: The store shared with other machines, if there is one.
        held: The devices, where they may change while it runs.
    """

    pool: Pool
    store: Store
    journal: Journal
    run_dir: Path
    found: InitVar[Verified | None] = None
    verified: Verified = field(init=False)
    scratch: Scratch = field(init=False)
    listener: Listener = field(default_factory=Listener)
    claims: dict[str, Claim] = field(default_factory=dict)
    broken: str = ""
    clock: Callable[[], float] = time.monotonic
    shared: SharedStore | None = None
    held: Held | None = None
    _untold: list[Event] = field(default_factory=list)
    _must_force: bool = False
    _forced_s: float = 0.0

    def __post_init__(self, found: Verified | None) -> None:
        # The process id distinguishes two runs that were started in the same second.
        name = f"{self.run_dir.parent.name}-{self.run_dir.name}-{os.getpid()}"
        self.scratch = Scratch(self.store.scratch(name))
        self.verified = found or Verified(self.store, self.scratch.path / "verified")

    # -- what was decided --------------------------------------------------------------------------------------

    def carry_out(self, effect: effects.Effect) -> None:
        """Execute one effect.

        Raises:
            StoreError: A damaged output cannot be moved.
            WorkerError: A worker cannot be started.
        """
        if self._must_force and not isinstance(effect, effects.Record | effects.Tell | effects.Say):
            self.settle()
        match effect:
            case effects.Record():
                self.record(effect.event, **effect.fields)
            case effects.Tell():
                self._untold.append({"event": effect.event, **effect.fields})
            case effects.Say():
                log.log(effect.level, "%s", effect.text)
            case effects.Send():
                self.pool.send(effect.worker, effect.order)
            case effects.ProcessOrder():
                getattr(self.pool, effect.action)(effect.worker)
            case effects.ReleaseClaim():
                if claim := self.claims.pop(effect.job_id, None):
                    claim.release()
            case effects.SetAside():
                self._set_aside(effect.key, effect.problem)
            case effects.GiveBack():
                assert self.held is not None
                for words in self.held.give_back(effect.device):
                    log.warning("%s", words)

    def record(self, event: str, **fields: object) -> None:
        """Add an event to the journal with the next `settle`."""
        if not self.broken:
            self._untold.append(self.journal.append(event, **fields))
            self._must_force |= event not in FOLLOWS_FROM_STORE

    def settle(self) -> None:
        """Write the recorded events at once and pass them to the listener; or remember that writing failed.

        Call this at the end of a turn, before waiting. Events that only the journal records are then on disk
        before the next action of any kind; the others are within `FORCE_S`.
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

    @property
    def force_due_s(self) -> float:
        """When the written events must be forced to disk; infinite if all of them are."""
        return self._forced_s + FORCE_S if self.journal.unforced else math.inf

    # -- what only the disk knows ------------------------------------------------------------------------------

    def before(self, job: Job, state: RunState) -> effects.OnDisk:
        """Claim the key of a job that is about to start, and check whether another run has made its output.

        An unusable output is set aside before anything is decided. An output whose weights were removed is good
        enough if no remaining job reads it.

        Raises:
            StoreError: The output cannot be moved.
        """
        if not job.key:
            return effects.OnDisk()
        claim = self.store.claim(job.key)
        if claim is None:
            return effects.OnDisk(claimed=False)
        try:
            on_disk = self._stored(job, state)
        except BaseException:
            claim.release()  # a job that asks again must not wait for itself
            raise
        self.claims[job.id] = claim
        return on_disk

    def _stored(self, job: Job, state: RunState) -> effects.OnDisk:
        problem = self.verified.problem(job.key)
        if problem == REMOVED:
            readers = [state.jobs[reader].status for reader in state.plan.readers(job.id)]
            # An output without readers is wanted for itself, since nothing else would start its job.
            return effects.OnDisk(stored=bool(readers) and all(status in THERE for status in readers))
        if problem not in (None, NOT_STORED):
            self._set_aside(job.key, problem)
        return effects.OnDisk(stored=problem is None)

    def after(self, job: Job) -> effects.OnDisk:
        """Check whether a job that reports success has left its output, if it has one."""
        if not job.key:
            return effects.OnDisk(stored=True)
        stored = self.store.is_committed(job.key) and not self.store.is_removed(job.key)
        if stored and self.shared is not None:
            self.shared.finished(job.key, job.id)
        return effects.OnDisk(stored=stored)

    def damage(self, key: str, state: RunState) -> effects.OnDisk:
        """Check an output that a job could not use, and whether the inputs to make it again are there."""
        maker = next((job.id for job in state.plan.jobs.values() if job.key == key), "")
        missing = reached(
            [maker] if maker else [],
            lambda job_id: [name for name in state.plan.inputs(job_id) if self._is_gone(name, state)],
        )
        problem = self.store.problem(key) or ""
        return effects.OnDisk(problem=problem, maker=maker, missing=frozenset(missing - {maker}))

    def _set_aside(self, key: str, problem: str) -> None:
        aside = self.store.set_aside(key)
        where = f"set aside to {aside}" if aside else "gone"
        log.warning("stored output %s is damaged (%s): %s", key, problem, where)

    def _is_gone(self, job_id: str, state: RunState) -> bool:
        key = state.plan.jobs[job_id].key
        return state.jobs[job_id].status in THERE and not self.store.has(key, checksums=False)


# -- changes -----------------------------------------------------------------------------------------------------
# A run goes on with another plan when its steering says so: first running jobs that this plan lacks are stopped,
# as at the end of a run, while all others go on.


@dataclass(frozen=True, kw_only=True)
class Change:
    """Answer to a request to change a run.

    Attributes:
        request: Id of the request.
        text: What was asked, for people.
        by: Who asked.
        plan: The plan to go on with; None if it stays.
        missing: Ids of its jobs whose outputs are needed and not there.
        come: Devices that come, or come back, by their index in the layout.
        back: Devices to give back, likewise.
        reason: Why the request is refused.
    """

    request: str
    text: str
    by: str
    plan: Plan | None = None
    missing: Collection[str] = ()
    come: Mapping[int, tuple[Device, Place]] = field(default_factory=dict)
    back: Collection[int] = ()
    reason: str = ""


class Steering(Protocol):
    """Says how a run is to change. Both methods may read and write files; the run waits for them."""

    def next_change(self, state: RunState) -> Change | None:
        """Return the answer to the next request, if there is one; called several times a second."""

    def begin(self) -> None:
        """Write down that a plan is followed from now on.

        Raises:
            StoreError: It cannot be written, so the plan stays.
        """

    def gave_back(self, device: int) -> None:
        """Let other runs have a device, by its index in the layout."""


TICK_S = 0.2
_QUIET_TICK_S = 0.5
_NOTHING = effects.OnDisk()


@dataclass(kw_only=True)
class Loop:
    """Event loop of one run: waits, queries disk and clock, lets the rules decide, and executes their effects."""

    run: effects.Run
    outside: Outside
    signals: StopSignals
    steering: Steering | None = None
    change: Change | None = None
    """The change that waits for jobs to stop."""
    start_s: float = field(init=False)
    next_tick_s: float = field(init=False)
    told_stop: bool = False
    """Whether the user was told what a signal means for the running jobs."""

    def __post_init__(self) -> None:
        assert len(self.run.state.workers) == self.outside.pool.size
        self.start_s = self.next_tick_s = self.outside.clock()

    # -- the loop ----------------------------------------------------------------------------------------------

    def carry_out(self) -> Outcome:
        """Run to the end. No worker is alive afterwards, even after an exception."""
        state, record = self.run.state, self.outside.record
        host = os.uname().nodename
        record("RunStarted", jobs=len(state.jobs), unsettled=state.unsettled, pid=os.getpid(), host=host)
        self.outside.settle()
        with self.signals.calling(self.outside.pool.interrupt):
            try:
                self._start()
                self._work()
            finally:
                self._stop()
        outcome = self._outcome()
        ends = list(outcome.jobs.values())
        counts = {status.value: ends.count(status) for status in JobStatus}
        record("RunFinished", interrupted=outcome.interrupted, halted=outcome.halted, **counts)
        self.outside.settle()
        return outcome

    def _start(self) -> None:
        pool, scratch = self.outside.pool, self.outside.scratch
        with explaining(StoreError, f"could not make {scratch.path}", REMEDY):
            scratch.open()
        for worker in self.run.state.workers:
            self._decide(effects.Run.process_starts, worker.index)
        pool.start()
        for folder in (scratch.path, self.outside.verified.folder):
            pool.watch_path(folder)
            pool.watch_path(lock_of(folder))

    def _work(self) -> None:
        state = self.run.state
        while not self.signals.received and not self._halt():
            self._decide(reactions.release_due)
            answered = self._steer()  # also when nothing is left to do, as its answer may be more work
            self._start_jobs()
            if not (state.unsettled or answered):
                break
            self.outside.settle()
            self._tick(self.next_tick_s)
            self.outside.pool.wait(self._patience(), self._take, [self.signals.fileno()])
            self._decide(reactions.kill_hanging)
        self._tick(0.0)

    def _stop(self) -> None:
        self.run.stopping = True
        self._tell_stop()
        self.signals.drain()
        try:
            # A second Ctrl-C skips the gentle steps.
            self.outside.settle()
            self.outside.pool.stop(self._take, hurry=[self.signals.fileno()])
        finally:
            self.outside.settle()
            self.outside.scratch.close()

    def _steer(self) -> bool:
        """Carry out the next request, once no job runs that the plan is to lack; return whether there was one."""
        state = self.run.state
        if self.steering is None:
            return False
        self.change = change = self.change or self.steering.next_change(state)
        if change is None:
            return False
        reason = change.reason
        if change.plan is not None:
            jobs = change.plan.jobs
            leaving = [
                job.id for job in state.plan.jobs.values() if job.id not in jobs or jobs[job.id].key != job.key
            ]
            self._decide(reactions.let_go, leaving)
            if any(state.jobs[job_id].status is JobStatus.running for job_id in leaving):
                return True
            try:
                self.steering.begin()
            except StoreError as error:
                reason = str(error)
                self._decide(reactions.keep_plan)
            else:
                self._decide(reactions.change_plan, change.plan, change.missing)
        elif change.come or change.back:
            assert self.outside.held is not None
            for index, (device, _) in change.come.items():
                self.outside.held.take(index, device)
            places = {index: place for index, (_, place) in change.come.items()}
            self._decide(reactions.change_devices, places, change.back)
        self.change = None
        answer = {"request": change.request, "text": change.text, "by": change.by}
        self.outside.record("RequestAnswered", **answer, reason=reason, jobs=len(state.jobs))
        log.info("%s (asked by %s)%s", change.text, change.by, f": refused: {reason}" if reason else "")
        return True

    # -- decisions ---------------------------------------------------------------------------------------------

    def _decide(self, rule: Callable[..., None], *arguments: object) -> None:
        """Let a rule decide about something, and execute the effects."""
        self.run.now_s = self.outside.clock()
        rule(self.run, *arguments)
        for effect in self.run.decided():
            self.outside.carry_out(effect)

    def _start_jobs(self) -> None:
        """Give jobs to idle workers as the policy says, until none can start."""
        if not self.run.state.can_start or self.run.spent:
            return
        self._decide(reactions.give_up_too_wide)
        # A job may turn out to need no worker, which leaves a worker idle for the next job.
        while actions := next_actions(self.run.state, self.outside.clock()) or reactions.orders_ahead(self.run):
            for action in actions:
                if isinstance(action, Reserve):
                    self._decide(reactions.reserve, action)
                else:
                    job = self.run.state.plan.jobs[action.job_id]
                    self._decide(reactions.start, action, self.outside.before(job, self.run.state))

    def _take(self, index: int, message: messages.FromWorker) -> None:
        # Messages of workers that got the same signal during this wait follow from it: they end by themselves.
        self.run.stopping = self.run.stopping or self.signals.received is not None
        self._decide(reactions.react, index, message, self._look(index, message))
        # An inline worker lets the loop run only here, and so does a pool while it stops.
        if self.run.stopping or self.run.settings.backend is Backend.inline:
            self.outside.settle()
        if isinstance(message, messages.JobStarted | messages.JobProgress):
            self._tick(self.next_tick_s)
            self._tell_stop()

    def _look(self, index: int, message: messages.FromWorker) -> effects.OnDisk:
        """Query the store for what a decision about the end of an attempt needs."""
        if isinstance(message, messages.JobFinished | messages.JobRaised) and reactions.is_believed(
            self.run, index, message
        ):
            if isinstance(message, messages.JobFinished):
                return self.outside.after(self.run.state.plan.jobs[message.job_id])
            inputs = self.run.state.plan.jobs[message.job_id].inputs.values()
            if any(message.damaged_key in keys for keys in inputs):
                return self.outside.damage(message.damaged_key, self.run.state)
        return _NOTHING

    # -- what else there is to do ------------------------------------------------------------------------------

    def _halt(self) -> bool:
        was_spent = self.run.spent
        self._decide(effects.Run.check_budget)
        if self.run.spent != was_spent and (jobs := [job.job.id for job in self.run.running()]):
            self.outside.listener.on_stop(f"{effects.SPENT}; may still end: {', '.join(jobs)}")
        self.run.halted = self.run.halted or self.outside.broken
        return bool(self.run.halted)

    def _patience(self) -> float:
        now = self.outside.clock()
        dues = [self.next_tick_s + _QUIET_TICK_S - TICK_S, self.outside.force_due_s]
        dues += self.run.delayed.values()
        if (hangs_s := self.run.watchdog.next_s()) is not None:
            dues.append(hangs_s)
        return max(0.0, min(dues) - now)

    def _tick(self, due_s: float) -> None:
        now = self.outside.clock()
        if now >= due_s:
            self.next_tick_s = now + TICK_S
            self.outside.settle()
            self.outside.listener.on_tick()

    def _tell_stop(self) -> None:
        """Report once what a received signal means for the running jobs."""
        if not self.signals.received or self.told_stop:
            return
        self.told_stop = True
        running = [job.job.id for job in self.run.running()]
        text = stopping(self.signals.received, running, self.run.settings.stop_grace_s)
        log.warning("%s (%s)", text, ", ".join(running))
        self.outside.listener.on_stop(text)

    def _outcome(self) -> Outcome:
        state, attempts, spans = self.run.state, self.run.attempts, self.run.spans
        return Outcome(
            jobs={job_id: job.status for job_id, job in state.jobs.items()},
            reasons={job_id: job.reason for job_id, job in state.jobs.items() if job.reason},
            root_causes={job_id: job.root_cause for job_id, job in state.jobs.items() if job.root_cause},
            attempts=attempts,
            workers=spans,
            # A signal that came when nothing was left to do has not interrupted anything.
            interrupted=self.signals.received if state.unsettled else None,
            halted=self.run.halted,
            is_spent=self.run.halted.startswith(effects.SPENT),
            # No bound is known for devices that changed.
            makespan=None
            if state.layout.begun
            else account(state.plan, attempts, spans, len(state.workers), self.start_s, state.layout.slots),
            peaks_mb=state.needs.seen,
        )


def stopping(signal_name: str, running: Sequence[str], grace_s: float) -> str:
    """Say what happens now after a signal, and what the user can do about it."""
    cause = "Ctrl-C" if signal_name == "SIGINT" else signal_name
    if not running:
        return f"stopping on {cause}: no job is running"
    jobs = "1 job" if len(running) == 1 else f"{len(running)} jobs"
    return f"stopping on {cause}: waiting up to {grace_s:g} s for {jobs} to finish or save; {cause} again ends now"


# -- run plan ----------------------------------------------------------------------------------------------------
# Entry point: make one run from a plan, a store and a pool, and carry it out.


def run_plan(
    plan: Plan,
    outside: Outside,
    *,
    stored: Collection[str],
    settings: ExecutionConfig,
    layout: Layout | None = None,
    peaks: Mapping[str, int] | None = None,
    signals: StopSignals | None = None,
    steering: Steering | None = None,
    budget: BudgetConfig | None = None,
) -> Outcome:
    """Carry out a plan. When this returns or raises, no worker is alive and no unfinished output is left.

    Args:
        plan: The plan.
        outside: What carries it out; its pool is not started yet.
        stored: Ids of the jobs that need not run.
        settings: Barrier, retries, number of models that a worker keeps.
        layout: Which device each worker is on; one worker per device if None.
        peaks: Device memory of jobs in earlier runs, by `Job.memory_kind`.
        signals: Signal handling of the caller, who keeps it before and after the jobs; a signal received already
            ends the run.
        steering: Changes the plan, and the devices, while it is carried out.
        budget: What the run may spend; None for no limit.

    Raises:
        PlanError: The plan cannot be carried out by this engine.
        WorkerError: Workers cannot be started.
    """
    layout = layout or plain_layout(outside.pool.size)
    reactions.check_runnable(plan, layout, stored, peaks)
    state = RunState(plan, stored, layout, settings, needs=Needs(layout, peaks), rows_first=bool(budget))
    run = effects.Run(
        state=state,
        settings=settings,
        # Workers get absolute paths, as they may have another working directory.
        folder=RunFolder(outside.run_dir.absolute()),
        store=str(outside.store.root.absolute()),
        scratch=str(outside.scratch.path.absolute()),
        verified=str(outside.verified.folder.absolute()),
        budget=budget or BudgetConfig(),
    )
    return Loop(run=run, outside=outside, signals=signals or StopSignals(), steering=steering).carry_out()
