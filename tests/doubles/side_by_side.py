"""Programs that run side by side as those of a sweep do, for tests and for the processes that they start."""

import sys
from collections.abc import Callable
from pathlib import Path

from pipeline.engine.scheduler.signals import StopSignals
from pipeline.sweeps.trial_process import Ended, Order, SideBySide, Task


def task(folder: Path, name: str, code: str, **options: object) -> Task:
    order = {
        "words": [sys.executable, "-c", code],
        "log": str(folder / f"{name}.txt"),
        "start": str(folder / f"{name}.json"),
        **options,
    }
    return Task(name=name, order=Order(**order))  # type: ignore[arg-type]


def carry_out(
    tasks: list[Task], slots: int, rest_s: float = 0.0, say: Callable[[str], None] = print
) -> tuple[str, list[Ended]]:
    ended: list[Ended] = []
    waiting = list(tasks)

    def following(slot: int) -> Task | None:
        return waiting.pop(0) if waiting else None

    def note(one: Ended) -> float:
        ended.append(one)
        if one.busy:
            waiting.append(one.task)
            say(one.busy)
        return rest_s

    with StopSignals() as signals:
        return SideBySide(slots, following, note, say).run(signals), ended
