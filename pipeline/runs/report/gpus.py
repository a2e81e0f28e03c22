"""What the GPUs of a run do, in its log: a summary now and then, and how they were used in all at the end."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.engine.workers.messages import GpuLoad
from pipeline.runs.run_view import RunView

EVERY_S = 60.0

log = logging.getLogger("pipeline")


@dataclass
class _Past:
    """What one GPU did so far."""

    most_bytes: int = 0
    seen: int = 0
    utilization: int = 0


class GpuLog:
    """Writes about the GPUs to the run's log; without GPUs nothing."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._past: dict[str, _Past] = {}

    def update(self, view: RunView, elapsed_s: float) -> None:
        """Look at the run, so many seconds after its begin."""
        loads = gpu_loads(view)
        for load in loads:
            past = self._past.setdefault(load.label, _Past())
            past.most_bytes = max(past.most_bytes, load.used_bytes)
            if load.utilization is not None:
                past.seen += 1
                past.utilization += load.utilization
        if loads and elapsed_s >= self._next_s:
            self._next_s = elapsed_s + EVERY_S
            log.info("GPU Memory Summary:\n%s", "\n".join(f"  {line}" for line in map(memory, loads)))
            log.info("GPU utilization: %s", utilization(loads))

    def conclude(self) -> None:
        """The run is over."""
        if self._past:
            each = (
                f"{label} {f'{past.utilization / past.seen:.0f} % on average' if past.seen else 'not told'}, "
                f"at most {_gb(past.most_bytes)} used"
                for label, past in sorted(self._past.items())
            )
            log.info("GPU utilization over the run: %s", "; ".join(each))


def gpu_loads(view: RunView) -> list[GpuLoad]:
    """What the workers said last of their GPUs, each GPU once, in the order of workers."""
    return list({worker.gpu.label: worker.gpu for worker in view.workers.values() if worker.gpu}.values())


def memory(load: GpuLoad) -> str:
    """``GPU 0: 45.23 GB used, 80.00 GB total``."""
    return f"{load.label}: {_gb(load.used_bytes)} used, {_gb(load.total_bytes)} total"


def utilization(loads: Iterable[GpuLoad]) -> str:
    """``GPU 0 97 %, GPU 1 not told``."""
    return ", ".join(
        f"{load.label} {'not told' if load.utilization is None else f'{load.utilization} %'}" for load in loads
    )


def _gb(number: int) -> str:
    return f"{number / 1e9:.2f} GB"
