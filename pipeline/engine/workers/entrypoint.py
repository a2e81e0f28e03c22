"""Main function of a worker process. Free of torch until a job imports it.

    main thread       runs jobs, one at a time
    reader thread     reads the pipe; the engine hanging up means the end of this process and its descendants
    heartbeat thread  says on a timer that the process is alive, and how much memory it holds

The environment (visible device, thread counts) was set by the engine before this process started.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

from pipeline.engine.devices.inventory import Device, read_usage, wait_until_free
from pipeline.engine.devices.worker_env import describe_device
from pipeline.engine.workers import messages
from pipeline.engine.workers.runner import JobRunner
from pipeline.engine.workers.work import log_stacks
from pipeline.errors import DeviceError, WorkerError
from pipeline.foreign import converted
from pipeline.machine import descendants
from pipeline.machine.children import Channel
from pipeline.machine.descendants import NOTICES, begin
from pipeline.machine.memory import own_memory_bytes

_HANG_UP_PATIENCE_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a worker is told on its command line."""

    device: Device
    heartbeat_s: float
    level_bytes: int | None
    """Memory of the device that was in use before the run; None where nothing was there to leave any behind."""
    free_timeout_s: float
    """Seconds to wait for the rest to be free, before this process says that it is ready."""


def main() -> None:
    """Run jobs until the engine says stop or hangs up."""
    settings = begin()
    descendants.adopt_orphans()
    log_stacks()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    channel = Channel.inherited(settings["fd"])
    with suppress(KeyboardInterrupt, OSError):
        _Main(channel, converted(settings, Settings)).serve()
    descendants.end_own()
    # Outputs are committed, so nothing else is left to tidy up; Python would take a second to unload torch.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class _Main:
    """The three threads of a worker and what they share."""

    def __init__(self, channel: Channel, settings: Settings) -> None:
        self.channel = channel
        self.settings = settings
        self.orders: queue.SimpleQueue[messages.RunJob | messages.Shutdown] = queue.SimpleQueue()
        self.runner = JobRunner(self.send, settings.device.kind, name=settings.device.name)
        self._at_next_signal = False
        """Whether SIGTERM breaks off the present job."""

    def send(self, message: messages.FromWorker) -> None:
        """Tell the engine."""
        self.channel.send(messages.encode(message))

    def serve(self) -> None:
        """Run jobs as they arrive."""
        device = self.settings.device
        # Slurm sends its notices to every process of a job. They mean the same as the engine's own request.
        for number in NOTICES:
            signal.signal(number, self._on_signal)
        threading.Thread(target=self._read, name="reader", daemon=True).start()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        about = describe_device(device, os.environ)
        not_free = self._wait_for_memory()
        self.send(messages.WorkerReady(pid=os.getpid(), device=about, visible=visible, not_free=not_free))
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        fit = True
        while not isinstance(order := self.orders.get(), messages.Shutdown) and not self.runner.stop_requested:
            # Where no other may follow, the engine ends this process and begins the rest elsewhere.
            fit = fit and self._run(order)

    def _run(self, order: messages.RunJob) -> bool:
        """Run a job; False where no other may follow it in this process."""
        said = self.runner.run(order)
        self.send(said)
        return isinstance(said, messages.AttemptStopped) or not said.spoils

    def _wait_for_memory(self) -> str:
        settings = self.settings
        if settings.level_bytes is None:
            return ""
        levels = {settings.device.uuid or "": settings.level_bytes}
        wait_s = settings.free_timeout_s
        return "".join(wait_until_free([settings.device], levels, wait_s, lambda: self.runner.stop_requested))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._stop()
        if number != signal.SIGTERM:
            return
        if self._at_next_signal and not self.runner.cut_off:
            self.runner.interrupt()
        # Slurm may send the first one after the engine, of which Slurm asks the same, has asked by the pipe.
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
            # The pipe is broken. Where a job has closed it under the reader, which waits on it, the system tells
            # neither the reader nor the engine; so this is the only one to notice.
            _kill_own_group()


def gpu_load(device: Device) -> messages.GpuLoad | None:
    """What a GPU is doing; None for a CPU."""
    if device.kind != "cuda":
        return None
    try:
        usage = read_usage(device)
    except DeviceError:
        return None  # whether that is a fault of the GPU shows where it is used
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
