"""Jobs on devices: a pool of workers, a journal, and the engine between them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from pipeline.config.schema import Backend, ExecutionConfig
from pipeline.engine.devices.inventory import Device, read_levels, wait_until_free
from pipeline.engine.devices.layout import make_layout
from pipeline.engine.journal import Event, Journal, Listener, whole_lines
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.scheduler.loop import run_plan
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.store.measured import read_peaks
from pipeline.engine.store.shared import Session
from pipeline.engine.store.store import Store
from pipeline.engine.store.verified import Verified
from pipeline.engine.workers.backends import free_timeout_s, make_pool
from pipeline.files import json_text, open_plain
from pipeline.foreign import ForeignDataError, read_json
from pipeline.plan.graph import Plan

# -- timings -----------------------------------------------------------------------------------------------------
# How long the jobs of a run took and how fast they were: ``timings.jsonl``, a line for each one that
# finished. Outputs hold only what their key determines, so nothing of time is in them; it is here, in the
# folder of the run.


log = logging.getLogger("pipeline")

_Amount = Annotated[float, Meta(ge=0, le=1e16)]
_Count = Annotated[int, Meta(ge=0, le=2**53)]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """A line of ``timings.jsonl``: an attempt at a job that has finished it.

    Attributes:
        job: Its id.
        chain: The chain that it belongs to.
        stage: The stage that it is of.
        round: The round.
        attempt: From 1.
        worker: Index of the worker.
        device: Of the worker, in words.
        started: When its worker began with it, in seconds since 1970: so long before it was known to be done.
        seconds: From then to the commit of its output, by the worker's clock.
        load_s: Of these, those that went into importing libraries and loading models.
        samples: Of the job, as it counts them.
        tokens: Generated or trained on.
        samples_per_s: While it was not loading; None where that took no time.
        tokens_per_s: Likewise.
    """

    job: str
    chain: str
    stage: str
    round: _Count
    attempt: _Count
    worker: int
    device: str
    started: _Amount
    seconds: _Amount
    load_s: _Amount
    samples: _Count
    tokens: _Count
    samples_per_s: _Amount | None
    tokens_per_s: _Amount | None


class Timings:
    """Takes the events of a run and appends a line for each job that finishes. Never a reason to end the run."""

    def __init__(self, path: Path, plan: Plan) -> None:
        """Begin with the run.

        Args:
            path: The file; made with the first line.
            plan: Says of which chain and stage a job is.
        """
        self._path = path
        self._plan = plan
        self._devices: dict[int, str] = {}
        self._broken = False
        self._file: FileIO | None = None

    def take(self, event: Event) -> None:
        """Remember what a line needs, and write one where a job has finished."""
        match event.get("event"):
            case "WorkerStarted":
                self._devices[event["worker"]] = event["device"]
            case "JobFinished":
                self._write(self._timing(event))

    def close(self) -> None:
        """Close the file; the next line would open it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _timing(self, event: Event) -> Timing:
        job, run_s, load_s = self._plan.jobs[event["job"]], event["run_s"], event["load_s"]
        work_s = max(0.0, run_s - load_s)
        return Timing(
            job=job.id,
            chain=job.chain,
            stage=job.stage,
            round=job.round,
            attempt=event["attempt"],
            worker=event["worker"],
            device=self._devices.get(event["worker"], ""),
            started=max(0.0, round(event["time"] - run_s, 3)),
            seconds=round(run_s, 3),
            load_s=round(load_s, 3),
            samples=event["samples"],
            tokens=event["tokens"],
            samples_per_s=_rate(event["samples"], work_s),
            tokens_per_s=_rate(event["tokens"], work_s),
        )

    def _write(self, timing: Timing) -> None:
        if self._broken:
            return
        try:
            if self._file is None:
                self._file = self._path.open("ab", buffering=0)
            self._file.write(json_text(vars(timing)).encode() + b"\n")
        except OSError as error:
            self._broken = True
            log.warning("%s cannot be written, so that how long jobs took is not kept: %s", self._path, error)


def read_timings(path: Path) -> Iterator[Timing]:
    """Read how long jobs took. What is no such line is left out, as is a last one that a crash cut off.

    Raises:
        OSError: It is missing, or no plain file.
    """
    with open_plain(path, follow=True) as file:
        for line in whole_lines(file):
            with suppress(ForeignDataError):
                yield read_json(line, Timing)


def _rate(count: int, seconds: float) -> float | None:
    return round(count / seconds, 3) if seconds >= 0.001 else None


def run_jobs(
    plan: Plan,
    store: Store,
    devices: Sequence[Device],
    run_dir: Path,
    *,
    execution: ExecutionConfig | None = None,
    threads: int = 1,
    portable: bool = False,
    missing: Sequence[str] | None = None,
    verified: Verified | None = None,
    listener: Listener | None = None,
    signals: StopSignals | None = None,
    shared: Session | None = None,
    elsewhere: Sequence[str] = (),
) -> Outcome:
    """Run jobs of a plan on the given devices; the journal and the jobs' logs go to `run_dir`.

    Those in `elsewhere` are fetched from the store that is shared with other machines.
    """
    execution, listener = execution or ExecutionConfig(), listener or Listener()
    levels = _levels(devices, execution)
    wanted = set(plan.jobs if missing is None else missing)
    layout = make_layout(devices, execution)
    pool = make_pool(
        execution,
        devices,
        threads=threads,
        log_dir=run_dir / "workers",
        portable=portable,
        layout=layout,
        levels=levels,
        width=max((plan.jobs[job_id].devices for job_id in wanted), default=1),
    )
    folder = RunFolder(run_dir)
    try:
        with closing(Journal(folder.journal)) as journal, closing(Timings(folder.timings, plan)) as timings:
            return run_plan(
                plan,
                stored=set(plan.jobs) - wanted - set(elsewhere),
                store=store,
                pool=pool,
                journal=journal,
                run_dir=run_dir,
                settings=execution,
                verified=verified,
                layout=layout,
                peaks=read_peaks(store.root),
                listener=replace(listener, on_event=partial(_tell, timings, listener.on_event)),
                signals=signals,
                shared=shared,
                elsewhere=elsewhere,
            )
    finally:
        _wait_for_memory(devices, levels, execution)


def _levels(devices: Sequence[Device], execution: ExecutionConfig) -> dict[str, int]:
    """Memory in use before the run, to which it is to come back."""
    # A worker that is this very process holds its memory for longer; that of other machines is read there.
    return read_levels(devices) if execution.backend is Backend.local else {}


def _tell(timings: Timings, on_event: Callable[[Event], object], event: Event) -> None:
    timings.take(event)
    on_event(event)


def _wait_for_memory(devices: Sequence[Device], levels: Mapping[str, int], execution: ExecutionConfig) -> None:
    """The devices go to others once this run gives up its lease."""
    for words in wait_until_free(devices, levels, free_timeout_s(execution)):
        log.warning("%s", words)
