"""The devices of a run as places for jobs: how many jobs each takes at once, and how much memory they may take.

worker = one slot of one device;  worker i is on device i modulo the number of devices
free   = what of a GPU's memory was free when the run began
usable = what of that several jobs may take together: 0.9 x free - 1 GB, as everywhere (`learning.memory.fit`)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pipeline.config.schema import AUTO, Backend, ExecutionConfig
from pipeline.engine.devices.inventory import Device, GpuUsage, read_machine
from pipeline.machine.memory import usable_bytes

AUTO_SLOTS = 4
"""Jobs per GPU at most with `jobs_per_device=auto`. Beyond a few their kernels only queue behind each other, while
each takes a core, a CUDA context of some 0.5 GB and the host memory of one more process."""
_MB = 2**20


@dataclass(frozen=True, kw_only=True)
class Place:
    """One device.

    Attributes:
        label: For messages.
        free_mb: Memory that one job could have; None where nobody counts it (a CPU slot).
        usable_mb: Memory that several jobs could have together, likewise.
        node: The machine that it is on. The devices of a job are all on one.
    """

    label: str
    free_mb: int | None = None
    usable_mb: int | None = None
    node: int = 0


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The devices of a run and the workers on them.

    Attributes:
        places: The devices.
        slots: Workers on each.
        vouched: Whether the user says that so many jobs fit: then one of unknown need counts as an equal share.
            Otherwise it has a device to itself.
    """

    places: tuple[Place, ...]
    slots: int = 1
    vouched: bool = True

    @property
    def workers(self) -> int:
        """How many."""
        return len(self.places) * self.slots

    def device_of(self, worker: int) -> int:
        """The device of a worker: its place in `places`."""
        return worker % len(self.places)

    def node_of(self, device: int) -> int:
        """The machine that a device is on."""
        return self._nodes[device]

    @cached_property
    def _nodes(self) -> list[int]:
        return [place.node for place in self.places]

    def most_together(self, devices: Collection[int]) -> int:
        """How many of some devices a job could have: those on one machine, at most."""
        if len(self.devices_by_node) <= 1:
            return len(devices)
        return max(Counter(map(self.node_of, devices)).values(), default=0)

    @cached_property
    def devices_by_node(self) -> dict[int, list[int]]:
        """Machine -> its devices."""
        found: dict[int, list[int]] = {}
        for device, place in enumerate(self.places):
            found.setdefault(place.node, []).append(device)
        return found

    def workers_of(self, device: int) -> range:
        """The workers on a device."""
        return range(device, self.workers, len(self.places))


def plain_layout(devices: int) -> Layout:
    """One worker on each device, and nobody counts memory."""
    return Layout(places=tuple(Place(label=f"device {index}") for index in range(devices)))


def make_layout(
    devices: Sequence[Device],
    execution: ExecutionConfig,
    usage: Mapping[str, GpuUsage] | None = None,
) -> Layout:
    """The places of a run.

    Args:
        devices: Its devices; the inline backend uses the first alone.
        execution: Says how many jobs each takes.
        usage: UUID -> what a GPU is doing; asks the driver if None.
    """
    if execution.backend is Backend.inline:
        return Layout(places=_places(devices[:1], usage))
    asked = execution.jobs_per_device
    if isinstance(asked, int):
        return Layout(places=_places(devices, usage), slots=asked)
    # On a CPU there is nothing to measure, and `execution.workers` says all there is to say.
    gpus = any(device.kind == "cuda" for device in devices)
    slots = AUTO_SLOTS if gpus else 1
    return Layout(places=_places(devices, usage), slots=slots, vouched=asked != AUTO)


def _places(devices: Sequence[Device], usage: Mapping[str, GpuUsage] | None) -> tuple[Place, ...]:
    if usage is None:
        usage = read_machine().usage if any(device.kind == "cuda" for device in devices) else {}
    return tuple(_place(device, usage.get(device.uuid or "")) for device in devices)


def _place(device: Device, use: GpuUsage | None) -> Place:
    if device.kind == "cpu":
        return Place(label=device.label, node=device.node)
    free = device.memory_total_bytes if use is None else use.free_bytes
    label = f"{device.label} ({device.name})"
    return Place(label=label, free_mb=free // _MB, usable_mb=usable_bytes(free) // _MB, node=device.node)
