"""The best GPUs for a job among several: filters first, then an order. A pure function over what NVML said.

The order is nvitop's: most free memory, lowest utilisation, highest number, which leaves GPU 0 to people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from pipeline.engine.devices.inventory import Device, GpuUsage
from pipeline.errors import DeviceError

_ALIKE_BYTES = 2**30
"""GPUs whose free memory differs by less are equally free: a display takes some MB of one of them."""


class Order(Enum):
    """Which GPUs come first."""

    idle = "idle"  # most free memory, lowest utilisation, highest number
    lowest = "lowest"  # lowest number


def rank(devices: Sequence[Device], usage: Mapping[str, GpuUsage], order: Order = Order.idle) -> list[Device]:
    """All of them, the best first."""
    if order is Order.lowest:
        return list(devices)
    places = {device: place for place, device in enumerate(devices)}

    def badness(device: Device) -> tuple[int, int, int]:
        use = usage[device.uuid or ""]
        return (-(use.free_bytes // _ALIKE_BYTES), use.utilization or 0, -places[device])

    return sorted(devices, key=badness)


def pick(
    devices: Sequence[Device],
    usage: Mapping[str, GpuUsage],
    *,
    count: int | None = None,
    min_free_bytes: int = 0,
    min_total_bytes: int = 0,
    max_utilization: int = 100,
    same_model: bool = False,
    order: Order = Order.idle,
) -> list[Device]:
    """Choose GPUs.

    Args:
        devices: To choose from, in the order in which they are numbered.
        usage: UUID -> what it is doing.
        count: How many; None takes all that pass.
        min_free_bytes: Memory that must be free.
        min_total_bytes: Memory that it must have, used or not.
        max_utilization: Largest utilisation in percent; one that is not known passes.
        same_model: Choose GPUs of one model alone: the one with most GPUs, then with the most free memory.
        order: Which come first.

    Returns:
        The chosen ones in the order of `devices`.

    Raises:
        DeviceError: Fewer pass than `count`, or none; says what is wrong with each of the others.
    """
    wrong: dict[Device, str] = {}
    for device in devices:
        reasons = _reasons(usage[device.uuid or ""], min_free_bytes, min_total_bytes, max_utilization)
        if reasons:
            wrong[device] = reasons
    passing = [device for device in rank(devices, usage, order) if device not in wrong]
    if same_model and passing:
        passing = _one_model(passing, usage, count)
    if len(passing) < (1 if count is None else count):
        raise DeviceError(_too_few(devices, passing, wrong, 1 if count is None else count, same_model))
    chosen = passing[:count]
    return [device for device in devices if device in chosen]


def _reasons(use: GpuUsage, min_free: int, min_total: int, max_utilization: int) -> str:
    reasons = []
    if use.total_bytes < min_total:
        reasons.append(f"has {_gib(use.total_bytes)} in all")
    if use.free_bytes < min_free:
        reasons.append(f"has {_gib(use.free_bytes)} free")
    if use.utilization is not None and use.utilization > max_utilization:
        reasons.append(f"is {use.utilization}% busy")
    return " and ".join(reasons)


def _one_model(ranked: Sequence[Device], usage: Mapping[str, GpuUsage], count: int | None) -> list[Device]:
    groups: dict[str, list[Device]] = {}
    for device in ranked:
        groups.setdefault(device.name, []).append(device)

    def worth(group: list[Device]) -> tuple[int, int]:
        taken = group[:count]
        return len(taken), sum(usage[device.uuid or ""].free_bytes for device in taken)

    return max(groups.values(), key=worth)


def _too_few(
    devices: Sequence[Device], passing: Sequence[Device], wrong: Mapping[Device, str], count: int, same_model: bool
) -> str:
    alike = " of one model" if same_model else ""
    seen = "; ".join(f"{device.label} ({device.name}) {reason}" for device, reason in wrong.items())
    return (
        f"{count} GPU{'s' if count != 1 else ''}{alike} asked for, but {len(passing)} of {len(devices)} will do"
        + (f": {seen}" if seen else "")
        + ". Ask for fewer, or for less of each; `python -m pipeline gpus` shows all."
    )


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"
