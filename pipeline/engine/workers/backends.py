"""From the configuration to a pool: which kind of worker, on which devices."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline import arithmetic
from pipeline.config.schema import Backend, ExecutionConfig
from pipeline.engine.devices.inventory import FREE_TIMEOUT_S, Device
from pipeline.engine.devices.layout import Layout, plain_layout
from pipeline.engine.devices.worker_env import describe_device, worker_environment
from pipeline.engine.workers.messages import (
    AttemptStopped,
    FromWorker,
    RunJob,
    WorkerExited,
    WorkerReady,
)
from pipeline.engine.workers.pool import Deliver, Pool, Worker
from pipeline.engine.workers.process import LocalWorker, ProcessSettings
from pipeline.engine.workers.reaper import Reaper
from pipeline.engine.workers.runner import JobRunner
from pipeline.machine import descendants

# -- inline ------------------------------------------------------------------------------------------------------
# A worker that is this very process: for debugging, for tests and for machines without room for another. It
# follows the protocol of the others, with one difference that follows from its nature: `receive` runs the job
# that was sent, and messages are delivered while it does.


class InlineWorker(Worker):
    """Runs jobs in the calling thread."""

    def __init__(
        self,
        index: int,
        device: Device,
        threads: int,
        stop_grace_s: float = 0.0,
        reaper: Reaper | None = None,
        portable: bool = False,
    ) -> None:
        super().__init__(index)
        self._reaper = reaper
        self._tag = descendants.new_tag()
        self._stop_grace_s = stop_grace_s
        self._grace: threading.Timer | None = None
        self._device = device
        self._threads = threads
        self._portable = portable
        self._runner = JobRunner(self._report, device.kind, name=device.name, own_process=False)
        self._state = "new"
        self._job: RunJob | None = None
        self._deliver: Deliver | None = None
        self._saved_env: dict[str, str] | None = None

    def start(self) -> None:
        """Give this process the environment that a worker process would have; taken back at the end."""
        self._saved_env = dict(os.environ)
        env = worker_environment(
            self._device,
            self._threads,
            os.environ,
            portable=self._portable,
        )
        _replace_environment(descendants.with_tag(env, self._tag))
        if self._reaper:
            self._reaper.watch_tag(self._tag)
        if self._portable:
            arithmetic.pin(*arithmetic.PINS)
        torch = sys.modules.get("torch")
        if torch is not None:  # imported earlier, so the variables came too late for it
            torch.set_num_threads(self._threads)
        self._state = "starting"

    def send(self, job: RunJob) -> None:
        """Keep the job for `receive`."""
        self._job = job

    def pending(self) -> bool:
        """Whether there is a job to run or something to say."""
        return self._job is not None or self._state in ("starting", "stopping")

    def receive(self, deliver: Deliver) -> None:
        """Say what is due, and run the job that was sent."""
        if self._state == "starting":
            self._state = "ready"
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            about = describe_device(self._device, os.environ)
            deliver(WorkerReady(pid=os.getpid(), device=about, visible=visible))
        if self._job is not None and self._state == "ready":
            job, self._job = self._job, None
            self._run(job, deliver)
        if self._state == "stopping":
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
        """Ask the job that runs to stop, if one does; the second time, or after the grace period, break it off.

        Raises:
            KeyboardInterrupt: In the middle of the job.
        """
        if self._grace is not None:
            self._runner.interrupt()
            return
        self._runner.stop_requested = True
        # Nobody else watches the clock while the job has this thread.
        self._grace = threading.Timer(self._stop_grace_s, _signal_main_thread)
        self._grace.daemon = True
        self._grace.start()

    def ask_to_stop(self) -> None:
        """End at the next `receive`."""
        if self._state != "over":
            self._job = None
            self._state = "stopping"

    def _end(self) -> None:
        self._state = "over"
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        if self._saved_env is not None:
            _replace_environment(self._saved_env)
            self._saved_env = None
        descendants.end(lambda: descendants.tagged({self._tag}))
        if self._reaper:
            self._reaper.forget_tag(self._tag)


def _signal_main_thread() -> None:
    """As a further Ctrl-C would; only the main thread runs signal handlers."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _replace_environment(env: dict[str, str]) -> None:
    for name in set(os.environ) - set(env):
        del os.environ[name]
    os.environ.update(env)


def make_pool(
    execution: ExecutionConfig,
    devices: Sequence[Device],
    *,
    threads: int,
    log_dir: Path,
    portable: bool = False,
    levels: Mapping[str, int] | None = None,
    layout: Layout | None = None,
    width: int = 1,
) -> Pool:
    """Describe the pool of a run; nothing starts yet.

    Args:
        execution: Backend and deadlines.
        devices: The devices; the inline backend uses the first alone.
        threads: Threads of each worker for numerical libraries.
        log_dir: Folder for what worker processes write outside of jobs.
        portable: Whether workers compute as on every processor.
        levels: UUID of a GPU -> memory in use before the run, to which it must come back before another process
            takes the place of one that ended. Not looked at where several workers share a GPU: in a container the
            driver's process ids tell nothing, and what a neighbour has taken would look left over.
        layout: How many workers each device has, and which; one each if None.
        width: Devices that the widest job takes.
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
        from pipeline.engine.workers.on_ray import ray_pool  # most runs have no use for it

        return ray_pool(execution, devices, settings, width)
    begun: set[int] = set()

    def make(index: int, reaper: Reaper) -> Worker:
        device = devices[layout.device_of(index)]
        if inline:
            return InlineWorker(index, device, threads, execution.stop_grace_s, reaper, portable)
        # Each but the first of a place waits for the memory of its device.
        waits = index in begun and layout.slots == 1
        begun.add(index)
        return LocalWorker(
            index, device, settings, reaper, (levels or {}).get(device.uuid or "") if waits else None
        )

    return Pool(
        make, layout.workers, start_timeout_s=execution.start_timeout_s, stop_grace_s=execution.stop_grace_s
    )


def free_timeout_s(execution: ExecutionConfig) -> float:
    """Seconds to wait for the memory that a process had: the next one is killed if it is not ready in time."""
    return min(FREE_TIMEOUT_S, execution.start_timeout_s / 2)
