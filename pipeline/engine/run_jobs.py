"""Run jobs on devices: a pool of workers, a journal, and the engine between them."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

from msgspec import Meta

from pipeline import arithmetic
from pipeline.config.schema import Backend, BudgetConfig, ExecutionConfig
from pipeline.engine.devices import inventory
from pipeline.engine.devices.select import Held, Layout, make_layout, plain_layout
from pipeline.engine.journal import Journal, Listener
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.scheduler.loop import Outside, Steering, run_plan
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.store.shared import SharedStore
from pipeline.engine.store.store import Store, Verified
from pipeline.engine.workers.messages import AttemptStopped, FromWorker, RunJob, WorkerExited, WorkerReady
from pipeline.engine.workers.pool import Deliver, LocalWorker, Pool, ProcessSettings, Worker
from pipeline.engine.workers.runner import JobRunner
from pipeline.foreign import recall, remember
from pipeline.machine import descendants
from pipeline.machine.descendants import Reaper
from pipeline.plan.graph import LONGEST_S, Durations, Plan, Seconds, Timed

# -- inline ------------------------------------------------------------------------------------------------------
# A worker in this process: for debugging, tests and machines without memory for another process. It follows the
# protocol of the other workers, with one difference: `receive` runs the job that was sent, and messages are
# delivered while it does.


class InlineWorker(Worker):
    """A worker that runs jobs in the calling thread."""

    def __init__(
        self, index: int, device: inventory.Device, settings: ProcessSettings, reaper: Reaper, stop_grace_s: float
    ) -> None:
        super().__init__(index)
        self._device, self._settings, self._reaper = device, settings, reaper
        self._tag = descendants.new_tag()
        self._stop_grace_s = stop_grace_s
        self._grace: threading.Timer | None = None
        self._runner = JobRunner(self._report, device.kind, device.name, own_process=False)
        self._says_ready = self._stops = self._is_over = False
        self._job: RunJob | None = None
        self._deliver: Deliver | None = None

    def start(self) -> None:
        """Give this process the environment that a worker process would have, until the end."""
        threads, portable = self._settings.threads, self._settings.portable
        env = inventory.worker_environment(self._device, threads, os.environ, portable=portable)
        self._environment = patch.dict(os.environ, descendants.with_tag(env, self._tag), clear=True)
        self._environment.start()
        self._reaper.watch("tag", self._tag)
        if portable:
            arithmetic.pin(*arithmetic.PINS)
        torch = sys.modules.get("torch")
        if torch is not None:  # imported earlier, so the variables came too late for torch
            torch.set_num_threads(threads)
        self._says_ready = True

    def send(self, job: RunJob) -> None:
        """Keep the job for `receive`."""
        self._job = job

    def pending(self) -> bool:
        """Return whether there is a job to run or a message to deliver."""
        return self._job is not None or self._says_ready or self._stops

    def receive(self, deliver: Deliver) -> None:
        """Deliver pending messages, and run the job that was sent."""
        if self._says_ready:
            self._says_ready = False
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            description = inventory.describe_device(self._device, os.environ)
            deliver(WorkerReady(pid=os.getpid(), device=description, visible=visible))
        if self._job is not None and not self._stops:
            job, self._job = self._job, None
            self._run(job, deliver)
        if self._stops:
            self._end()
            deliver(WorkerExited(exit_code=0))

    def _run(self, job: RunJob, deliver: Deliver) -> None:
        self._deliver = deliver
        try:
            deliver(self._runner.run(job))
        except KeyboardInterrupt:
            # The engine has seen the same signal and is about to stop the pool.
            deliver(AttemptStopped(job_id=job.job_id, attempt=job.attempt))
        finally:
            self._deliver = None

    def _report(self, message: FromWorker) -> None:
        assert self._deliver is not None
        self._deliver(message)

    def interrupt(self) -> None:
        """Ask the running job, if any, to stop; interrupt it on the second call or after the grace period.

        Raises:
            KeyboardInterrupt: In the middle of the job.
        """
        if self._grace is not None:
            self._runner.interrupt()
            return
        self._runner.stop_requested = True
        # Nobody else checks the deadline while the job occupies this thread.
        self._grace = threading.Timer(self._stop_grace_s, _signal_main_thread)
        self._grace.daemon = True
        self._grace.start()

    def ask_to_stop(self) -> None:
        """End at the next `receive`."""
        self._stops, self._job = not self._is_over, None

    def _end(self) -> None:
        self._stops, self._is_over = False, True
        if self._grace is not None:
            self._grace.cancel()
        self._environment.stop()
        descendants.end(lambda: descendants.tagged({self._tag}))
        self._reaper.forget("tag", self._tag)


def _signal_main_thread() -> None:
    """Send SIGINT as a further Ctrl-C would; only the main thread runs signal handlers."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def make_pool(
    execution: ExecutionConfig,
    devices: Sequence[inventory.Device],
    *,
    threads: int,
    log_dir: Path,
    portable: bool = False,
    levels: Mapping[str, int] | None = None,
    layout: Layout | None = None,
    width: int = 1,
) -> Pool:
    """Return the pool of a run; nothing starts yet.

    Args:
        execution: Backend and deadlines.
        devices: The devices; the inline backend uses only the first.
        threads: Threads of each worker for numerical libraries.
        log_dir: Folder for output of worker processes outside of jobs.
        portable: Whether workers compute the same results on every processor.
        levels: UUID of a GPU -> its memory in use before the run. A new process waits until the memory of its
            predecessor is freed down to this level. Ignored where several workers share a GPU: in a container
            process ids are unusable, so a neighbour's memory would look like a leftover.
        layout: Which workers each device has; one worker per device if None. Devices that come later are appended
            to `devices`.
        width: Number of devices of the widest job.
    """
    inline = execution.backend is Backend.inline
    layout = layout or plain_layout(1 if inline else len(devices))
    settings = ProcessSettings(
        threads=threads,
        portable=portable,
        heartbeat_s=execution.heartbeat_s,
        log_dir=str(log_dir.absolute()),
        free_timeout_s=free_timeout_s(execution),
    )
    if execution.backend is Backend.ray:
        from pipeline.engine.workers.on_ray import ray_pool  # most runs do not need it

        return ray_pool(execution, devices, settings, width)
    begun: set[int] = set()
    layout = replace(layout, begun=len(layout.places))  # devices may come later

    def make(index: int, reaper: Reaper) -> Worker:
        device = devices[layout.device_of(index)]
        if inline:
            return InlineWorker(index, device, settings, reaper, execution.stop_grace_s)
        # Each worker of a slot but the first waits until the memory of its device is free.
        waits = index in begun and layout.slots == 1
        begun.add(index)
        return LocalWorker(
            index, device, settings, reaper, (levels or {}).get(device.uuid or "") if waits else None
        )

    return Pool(
        make, layout.workers, start_timeout_s=execution.start_timeout_s, stop_grace_s=execution.stop_grace_s
    )


def free_timeout_s(execution: ExecutionConfig) -> float:
    """Return the seconds to wait for an ended process's memory.

    A new process that is not ready by then is killed.
    """
    return min(inventory.FREE_TIMEOUT_S, execution.start_timeout_s / 2)


# -- measured ----------------------------------------------------------------------------------------------------
# Measurements of earlier runs, kept beside the outputs: duration and device memory of jobs, and predicted times.


DURATIONS = "durations.json"
PEAKS = ".hints/memory.json"
FORECASTS = ".hints/forecasts.json"
_ON = " @ "
"""Between a name and the GPU that it was timed on; names of CPU cores have none."""
_MOST_FORECASTS = 50
_MOST_MIB = 1 << 30
_Mebibytes = Annotated[int, Meta(ge=0, le=_MOST_MIB)]
_Positive = Annotated[float, Meta(gt=0, le=LONGEST_S)]


def read_durations(store: Path, gpu: str = "") -> Durations:
    """Return the measured durations of jobs and of loading; empty if there are none or the file cannot be used.

    Args:
        store: Folder of the store.
        gpu: Name of the GPU that they are of, or words of it, as `A100 80GB`; "" for CPU cores.
    """
    # This file is used only for estimates: without it the algorithms' own rough figures are used.
    every = recall(store / DURATIONS, dict[str, Seconds | Timed]) or {}
    parts = {name: name.partition(_ON) for name in every}
    device = _recorded_as(gpu, [on for _, _, on in parts.values()])
    own = {name: every[whole] for whole, (name, _, on) in parts.items() if on == device}
    return Durations(
        jobs={name: timed for name, timed in own.items() if isinstance(timed, Timed)},
        seconds={name: seconds for name, seconds in own.items() if not isinstance(seconds, Timed)},
    )


def _recorded_as(gpu: str, recorded: Iterable[str]) -> str:
    """Return the recorded device that a GPU is, by its name or by all words of it."""
    names = {*recorded}
    like = (name for name in sorted(names) if gpu and all(word in name for word in gpu.split()))
    return gpu if gpu in names else next(like, gpu)


def update_durations(store: Path, measured: Durations, gpu: str = "") -> None:
    """Save new measurements over older ones of the same name; `gpu` as for `read_durations`."""

    def is_sound(*seconds: float) -> bool:
        return all(0 <= value <= LONGEST_S for value in seconds)

    new: dict[str, object] = {
        name: asdict(timed) for name, timed in measured.jobs.items() if is_sound(timed.size_s, timed.took_s)
    }
    new |= {name: seconds for name, seconds in measured.seconds.items() if is_sound(seconds)}
    if new:
        old = recall(store / DURATIONS, dict[str, Seconds | Timed]) or {}
        plain = {name: asdict(timed) if isinstance(timed, Timed) else timed for name, timed in old.items()}
        remember(store / DURATIONS, plain | {f"{name}{_ON}{gpu}" if gpu else name: new[name] for name in new})


def read_forecasts(store: Path, gpu: str = "") -> list[float]:
    """Return real over predicted time of earlier runs whose jobs had all been timed, the oldest first.

    Args:
        store: Folder of the store.
        gpu: As for `read_durations`.
    """
    every = _forecasts(store)
    return [took_s / said_s for said_s, took_s in every.get(_recorded_as(gpu, every), [])]


def add_forecast(store: Path, predicted_s: float, took_s: float, gpu: str = "") -> None:
    """Save what a run was predicted to take, and took, for the range of later predictions."""
    if 0 < predicted_s <= LONGEST_S and 0 < took_s <= LONGEST_S:
        every = _forecasts(store)
        newest = [*every.get(gpu, []), (predicted_s, took_s)][-_MOST_FORECASTS:]
        remember(store / FORECASTS, {**every, gpu: newest})


def _forecasts(store: Path) -> dict[str, list[tuple[float, float]]]:
    return recall(store / FORECASTS, dict[str, list[tuple[_Positive, _Positive]]]) or {}


def read_peaks(store: Path) -> dict[str, int]:
    """Return the peak MiB by `Job.memory_kind`; empty if there are none or the file cannot be used."""
    # This file is used only for placement: without it jobs are measured again.
    return recall(store / PEAKS, dict[str, _Mebibytes]) or {}


def update_peaks(store: Path, measured: Mapping[str, int]) -> None:
    """Save new measurements over older ones of the same name."""
    kept = {name: peak for name, peak in measured.items() if 0 <= peak <= _MOST_MIB}
    if kept:
        remember(store / PEAKS, {**read_peaks(store), **kept})


log = logging.getLogger("pipeline")


def run_jobs(
    plan: Plan,
    store: Store,
    devices: Sequence[inventory.Device],
    run_dir: Path,
    *,
    execution: ExecutionConfig | None = None,
    threads: int = 1,
    portable: bool = False,
    missing: Sequence[str] | None = None,
    verified: Verified | None = None,
    listener: Listener | None = None,
    signals: StopSignals | None = None,
    shared: SharedStore | None = None,
    steering: Steering | None = None,
    budget: BudgetConfig | None = None,
) -> Outcome:
    """Run jobs of a plan on the given devices; the journal and the jobs' logs go to `run_dir`."""
    execution = execution or ExecutionConfig()
    # Memory must come back to these levels. The inline worker keeps its memory for longer; on other machines the
    # levels are read there.
    levels = inventory.read_levels(devices) if execution.backend is Backend.local else {}
    held = Held(devices=list(devices), levels=levels, on_back=steering.gave_back if steering else lambda _: None)
    wanted = set(plan.jobs if missing is None else missing)
    layout = make_layout(devices, execution)
    pool = make_pool(
        execution,
        held.devices,
        threads=threads,
        log_dir=run_dir / "workers",
        portable=portable,
        layout=layout,
        levels=levels,
        width=max((plan.jobs[job_id].devices for job_id in wanted), default=1),
    )
    try:
        with closing(Journal(RunFolder(run_dir).journal)) as journal:
            outside = Outside(
                pool=pool,
                store=store,
                journal=journal,
                run_dir=run_dir,
                found=verified,
                listener=listener or Listener(),
                shared=shared,
                held=held,
            )
            return run_plan(
                plan,
                outside,
                stored=set(plan.jobs) - wanted,
                settings=execution,
                layout=layout,
                peaks=read_peaks(store.root),
                signals=signals,
                steering=steering,
                budget=budget,
            )
    finally:
        for words in inventory.wait_until_free(held.devices, levels, free_timeout_s(execution)):
            log.warning("%s", words)
