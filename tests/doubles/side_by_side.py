"""Programs that run side by side as those of a sweep do, for tests and for the processes that they start."""

import sys
from collections.abc import Callable
from pathlib import Path

from pipeline.engine.scheduler.signals import StopSignals
from pipeline.sweeps.trial_process import Handle, Order, side_by_side


def order(folder: Path, name: str, code: str, **options: object) -> Order:
    given = {
        "words": [sys.executable, "-c", code],
        "log": str(folder / f"{name}.txt"),
        "start": str(folder / f"{name}.json"),
        "holder": name,
        **options,
    }
    return Order(**given)  # type: ignore[arg-type]


def carry_out(
    orders: list[Order], slots: int, rest_s: float = 0.0, say: Callable[[str], None] = print
) -> tuple[str, list[Handle]]:
    ended: list[Handle] = []
    waiting = list(orders)

    def following(slot: int) -> Order | None:
        return waiting.pop(0) if waiting else None

    def note(_slot: int, one: Handle) -> float:
        ended.append(one)
        if one.said.busy:
            waiting.append(one.order)
            say(one.said.busy)
        return rest_s

    with StopSignals() as signals:
        return side_by_side(slots, signals, following, note, say), ended
