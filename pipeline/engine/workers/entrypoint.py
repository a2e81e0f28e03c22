"""Main function of a worker process, and of each rank of a multi-GPU job. Imports torch only when needed.

    main thread       runs jobs, one at a time; of a rank its one
    reader thread     reads the pipe; the other side hanging up means the end of this process and its descendants
    heartbeat thread  says on a timer that a worker is alive, and how much memory it holds

The environment (visible device, thread counts) was set before this process started: by the engine, or for a rank
by the worker that leads the gang (`gang`), which is whom a rank talks to.
"""

import os
import queue
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

from pipeline.engine.devices import inventory
from pipeline.engine.devices.inventory import describe_device
from pipeline.engine.workers import messages
from pipeline.engine.workers.runner import JobRunner, Part
from pipeline.engine.workers.work import log_stacks
from pipeline.errors import DeviceError, WorkerError
from pipeline.foreign import converted
from pipeline.machine import descendants
from pipeline.machine.children import Channel
from pipeline.machine.memory import own_memory_bytes

_HANG_UP_PATIENCE_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a worker, from its command line."""

    device: inventory.Device
    heartbeat_s: float
    level_bytes: int | None
    """Device memory in use before the run; None if no process ran there that could leave memory behind."""
    free_timeout_s: float
    """Seconds to wait until the memory above that is free, before this process reports that it is ready."""


def main() -> None:
    """Run jobs until the engine says stop or hangs up; as a rank run one job."""
    process = _Main()
    # Slurm sends its signals to every process of a job. They mean the same as the engine's own request.
    for number in descendants.NOTICES:
        signal.signal(number, process.on_signal)
    settings = descendants.begin()  # from here on signals are no longer blocked
    log_stacks()
    process.channel = Channel.inherited(settings["fd"])
    with suppress(KeyboardInterrupt, OSError):
        if "rank" in settings:
            process.run_rank(converted(settings, Part))
        else:
            process.serve(converted(settings, Settings))
    descendants.end_own()
    # Outputs are committed, so nothing is left to clean up. A normal exit would take a second to unload torch, and
    # libraries would wait for processes of a broken process group.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class _Main:
    """The threads of a worker or a rank, and their shared state."""

    channel: Channel
    settings: Settings

    def __init__(self) -> None:
        self.orders: queue.SimpleQueue[messages.RunJob | messages.Shutdown] = queue.SimpleQueue()
        self.runner = JobRunner(self.send)
        self._at_next_signal = False
        """Whether SIGTERM breaks off the present job."""

    def send(self, message: messages.FromWorker) -> None:
        """Send a message to the engine, or as a rank to the leader."""
        self.channel.send(messages.encode(message))

    def serve(self, settings: Settings) -> None:
        """Run jobs as they arrive."""
        descendants.adopt_orphans()
        self.settings, device = settings, settings.device
        self.runner.device, self.runner.name = device.kind, device.name
        threading.Thread(target=self._read, name="reader", daemon=True).start()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        description = describe_device(device, os.environ)
        unfit = self._unfit()
        self.send(messages.WorkerReady(pid=os.getpid(), device=description, visible=visible, unfit=unfit))
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        fit = True
        while not isinstance(order := self.orders.get(), messages.Shutdown) and not self.runner.stop_requested:
            # If the process is unfit for another job, the engine ends it and runs the rest elsewhere.
            fit = fit and self._run(order)

    def run_rank(self, part: Part) -> None:
        """Run this process's part of a job."""
        self.runner.device, self.runner.part = part.device, part
        threading.Thread(target=self._read, name="reader", daemon=True).start()
        while isinstance(order := self.orders.get(), messages.Shutdown):
            pass  # a signal that came before the job; the job itself checks whether to stop
        try:
            ending: messages.End = self.runner.run(order)
        except KeyboardInterrupt:
            ending = messages.AttemptStopped(job_id=order.job_id, attempt=order.attempt)
        self.send(ending)

    def _run(self, order: messages.RunJob) -> bool:
        """Run a job; return False if no other job may run in this process."""
        ending = self.runner.run(order)
        self.send(ending)
        return isinstance(ending, messages.AttemptStopped) or not ending.spoils

    def _unfit(self) -> str:
        """Say why the device should get no jobs: memory of an earlier process is not freed; "" if it is fit."""
        settings = self.settings
        if settings.level_bytes is None:
            return ""
        levels = {settings.device.uuid or "": settings.level_bytes}
        reasons = inventory.wait_until_free(
            [settings.device], levels, settings.free_timeout_s, lambda: self.runner.stop_requested
        )
        return "".join(reasons)

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Handle a request to stop; a second SIGTERM interrupts the job.

        Raises:
            KeyboardInterrupt: In the middle of the job.
        """
        self._stop()
        if number != signal.SIGTERM:
            return
        if self._at_next_signal and not self.runner.cut_off:
            self.runner.interrupt()
        # Slurm signals the engine too. Its signal to this worker may come after the engine's own request by the
        # pipe.
        self._at_next_signal = True

    def _stop(self) -> None:
        self.runner.stop_requested = True
        self.orders.put(messages.Shutdown())

    def _read(self) -> None:
        try:
            for line in self.channel.lines():
                self._take(messages.decode_order(line))
        except (OSError, WorkerError):
            pass
        finally:
            _kill_own_group()

    def _take(self, message: messages.ToWorker) -> None:
        if isinstance(message, messages.Shutdown):
            self._stop()
            if message.at_once:
                self._at_next_signal = True
                os.kill(os.getpid(), signal.SIGTERM)
        else:
            self.orders.put(message)

    def _beat(self) -> None:
        never = threading.Event()
        try:
            while not never.wait(self.settings.heartbeat_s):
                resident = own_memory_bytes()[1]
                self.send(messages.Heartbeat(rss_bytes=resident, gpu=gpu_load(self.settings.device)))
        except OSError:
            # The pipe is broken. If a job has closed it under the blocked reader thread, neither the reader nor
            # the engine gets notice; only this thread sees it.
            _kill_own_group()


def gpu_load(device: inventory.Device) -> messages.GpuLoad | None:
    """Return the current use of a GPU; None for a CPU."""
    if device.kind != "cuda":
        return None
    try:
        usage = inventory.read_usage(device)
    except DeviceError:
        return None  # using the GPU will show whether it is at fault
    return messages.GpuLoad(
        label=device.label,
        used_bytes=usage.used_bytes,
        total_bytes=usage.total_bytes,
        utilization=usage.utilization,
    )


def _kill_own_group() -> None:
    """End this process and its descendants, most of which share its process group."""
    descendants.end_own(_HANG_UP_PATIENCE_S)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
