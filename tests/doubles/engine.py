"""Runs small plans of job bodies through the real engine, and looks at what is left afterwards."""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from pipeline.config.schema import Backend, ExecutionConfig, RetryConfig
from pipeline.engine.devices.inventory import Device, cpu_slots, read_levels
from pipeline.engine.devices.select import make_layout
from pipeline.engine.journal import Journal, JournalReader, Listener
from pipeline.engine.run_jobs import make_pool
from pipeline.engine.scheduler.loop import Outside, run_plan
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.store.shared import SharedStore
from pipeline.engine.store.store import Scratch, Store, remove_leftovers
from pipeline.plan.graph import Job, Plan
from pipeline.runs.run_view import RunView
from tests.doubles.machine import is_living

HERE = (Backend.local, Backend.inline)
"""Backends that need nothing but this machine."""


def key(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def job(name: str, body: str = "write", needs: Sequence[str] = (), **fields: Any) -> Job:
    """A job whose entry is one of the bodies, reading the outputs of `needs`."""
    payload = fields.pop("payload", {})
    inputs = {"needs": tuple(key(need) for need in needs)} if needs else {}
    entry = body if ":" in body else f"tests.doubles.bodies:{body}"
    return Job(id=name, key=key(name), entry=entry, payload=payload, inputs=inputs, **fields)


def plan_of(*jobs: Job) -> Plan:
    """A plan whose edges follow from the inputs."""
    by_key = {job.key: job.id for job in jobs}
    edges = [(by_key[need], job.id) for job in jobs for keys in job.inputs.values() for need in keys]
    return Plan(jobs, edges)


@dataclass
class Engine:
    """Runs plans below one folder, all with the same store."""

    root: Path
    runs: int = 0
    journal: list[dict[str, Any]] = field(default_factory=list)
    before: set[int] = field(default_factory=lambda: {child.pid for child in own_children()})
    """Children of this process that are none of the engine's, such as a fork server of another test."""

    @property
    def store(self) -> Store:
        return Store(self.root / "store")

    @property
    def run_dir(self) -> Path:
        return self.root / f"run{self.runs}"

    def run(
        self,
        *jobs: Job,
        workers: int = 2,
        devices: Sequence[Device] | None = None,
        peaks: Mapping[str, int] | None = None,
        backend: Backend = Backend.local,
        retry: RetryConfig | None = None,
        stored: Iterable[str] = (),
        stop_grace_s: float = 2.0,
        watcher: Callable[[RunView], object] = lambda _: None,
        on_stop: Callable[[str], object] = lambda _: None,
        shared: SharedStore | None = None,
        **settings: Any,
    ) -> Outcome:
        """Run jobs to the end and keep the journal.

        Args:
            jobs: The plan.
            workers: How many CPU slots, where no devices are given.
            devices: What they run on.
            peaks: Memory that jobs took in earlier runs.
            backend: Kind of worker.
            retry: Budgets.
            stored: Ids of jobs that need not run.
            stop_grace_s: Seconds for running jobs when the run is stopped.
            watcher: Looks at the run a few times a second.
            on_stop: Told what a signal means for the jobs that run.
            shared: A store that other machines share.
            settings: Further settings of `ExecutionConfig`.
        """
        self.runs += 1
        self.run_dir.mkdir(parents=True)
        self._sweep()
        execution = ExecutionConfig(
            backend=backend,
            retry=retry or RetryConfig(wait_s=0.05),
            stop_grace_s=stop_grace_s,
            **settings,
        )
        path = self.run_dir / "journal.jsonl"
        journal = Journal(path)
        devices = cpu_slots(workers) if devices is None else devices
        layout, logs = make_layout(devices, execution), self.run_dir / "workers"
        levels = read_levels(devices)
        pool = make_pool(
            execution,
            devices,
            threads=1,
            log_dir=logs,
            layout=layout,
            levels=levels,
            width=max(job.devices for job in jobs),
        )
        plan = plan_of(*jobs)
        view = RunView(plan.jobs.values(), set(stored))
        try:
            outside = Outside(
                pool=pool,
                store=self.store,
                journal=journal,
                run_dir=self.run_dir,
                listener=Listener(on_event=view.take, on_tick=lambda: watcher(view), on_stop=on_stop),
                shared=shared,
            )
            outcome = run_plan(plan, outside, stored=set(stored), settings=execution, layout=layout, peaks=peaks)
        finally:
            journal.close()
            self.journal = list(JournalReader(path).new_events())
        written = RunView(plan.jobs.values(), set(stored))
        written.feed(self.journal)
        assert what_status_shows(view) == what_status_shows(written)
        return outcome

    def _sweep(self) -> None:
        """Remove what runs that are gone have left, as the command does before it looks at what is stored."""
        scratch = Scratch(self.store.scratch(f"{self.root.name}-sweep{self.runs}-{os.getpid()}"))
        try:
            with suppress(OSError):  # what is wrong with a store is for the run to say
                scratch.open()
                remove_leftovers(self.store.root, scratch.path)
        finally:
            scratch.close()

    def events(self, name: str, job_id: str | None = None) -> list[dict[str, Any]]:
        """Events of the last run."""
        return [
            event
            for event in self.journal
            if event["event"] == name and (job_id is None or event.get("job") == job_id)
        ]

    def log(self, job_id: str, attempt: int = 1) -> str:
        """What a job of the last run wrote."""
        name = "log.txt" if attempt == 1 else f"log.{attempt}.txt"
        return (self.run_dir / "jobs" / job_id / name).read_text()

    def files(self) -> dict[str, bytes]:
        """Everything that is stored."""
        root = self.store.root
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file() and not {".aside", ".costs"} & set(path.parts)
        }

    def leftovers(self) -> list[str]:
        """What should be gone after a run: descendants that live on, and unfinished outputs."""
        scratch = self.store.root / ".tmp"
        # Of one that has ended its exit code may still be there: until its parent asks for it, which for an orphan
        # is init, or this process where an earlier test had it adopt orphans.
        # One that is being killed has lost its command line, with its memory, and needs a moment more.
        new = [child for child in own_children() if child.pid not in self.before]
        for _ in range(200):
            alive = [told for child in new if is_living(child.pid) for told in [describe(child)]]
            if all(alive):
                break
            time.sleep(0.05)
        return alive + [str(path) for path in scratch.rglob("*")]


def what_status_shows(view: RunView) -> list[Any]:
    """What is the same for whoever watches a run and for whoever reads its journal: all but progress."""
    for attempt in (attempt for job in view.jobs.values() for attempt in job.attempts):
        attempt.done = attempt.total = attempt.tokens = 0
        attempt.numbers, attempt.loading = {}, False
    workers = {
        worker.index: (worker.device, worker.pid, worker.job_id, worker.lent_to)
        for worker in view.workers.values()
        if worker.device
    }
    return [view.jobs, view.cells, view.counts(), view.quarantined, view.retries, view.finished, workers]


def describe(process: psutil.Process) -> str:
    """Its command line, or what is left of it."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error as error:
        return str(error)


def own_children() -> list[psutil.Process]:
    """Every process that descends from this one."""
    return psutil.Process().children(recursive=True)


def descriptors() -> set[str]:
    """Open file descriptors of this process with what they point to."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that lists the folder is gone by now
            found.add(f"{descriptor.name} {descriptor.readlink()}")
    return found
