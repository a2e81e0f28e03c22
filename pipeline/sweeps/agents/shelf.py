"""Which of an agent's devices a trial can have now: not those that somebody else has, or whose memory is not back.

A trial's process sees its devices free before it gives them back. Where that process was killed nobody did, so its
devices are looked at here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from pipeline.engine.devices.inventory import Device
from pipeline.engine.devices.lease import holders
from pipeline.engine.devices.memory_reclaim import FREE_TIMEOUT_S, leftover, read_levels

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0


class AgentDevices:
    """The devices of one agent.

    Attributes:
        devices: All of them, the best first.
    """

    def __init__(self, devices: Sequence[Device], name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Look at the devices.

        Args:
            devices: All, the best first.
            name: Of the sweep. What other trials of it have comes back; what others have may never.
            clock: Monotonic seconds.
        """
        self.devices = list(devices)
        self._name, self._clock = name, clock
        self._levels = read_levels(devices)
        self._pauses: dict[Device, tuple[float, float]] = {}
        self._suspects: dict[Device, float] = {}
        self._told_wait = False

    def free(self, used: Collection[Device], promised: Collection[str] = ()) -> tuple[list[Device], int]:
        """Those that can be had now, and how many can be counted on, besides those that outsiders have.

        Args:
            used: Those on which trials of this agent run.
            promised: UUIDs of those that other agents have chosen for theirs, which are perhaps just starting.
        """
        gpus = [device for device in self.devices if device.kind == "cuda" and device not in used]
        held = holders(gpus) if gpus else {}
        outside = [uuid for uuid, holder in held.items() if not self._is_ours(holder.experiment)]
        taken = {*held, *promised}
        unused = [device for device in self.devices if device not in used and device.uuid not in taken]
        free = [device for device in unused if not self._paused(device) and self._is_back(device)]
        return free, len(self.devices) - len(outside)

    def tell_wait(self, say: Callable[[str], None]) -> None:
        """Say for whom an agent waits that can have no device; once until it has had some."""
        held = {} if self._told_wait else holders(self.devices)
        if who := [f"{each.label} has {held[each.uuid]}" for each in self.devices if each.uuid in held]:
            self._told_wait = True
            say(f"waiting for devices: {', '.join(who)}")

    def pause(self, devices: Sequence[Device]) -> None:
        """Leave devices alone for a while, longer each time: they could not be had."""
        for device in devices:
            _, pause = self._pauses.get(device, (0.0, _FIRST_PAUSE_S / 2))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            self._pauses[device] = (self._clock() + pause, pause)

    def put_back(self, devices: Sequence[Device], *, seen_free: bool) -> None:
        """Take devices back from a trial that has had them.

        Args:
            devices: The devices.
            seen_free: Whether its process has seen their memory free.
        """
        self._told_wait = False
        for device in devices:
            self._pauses.pop(device, None)
            if not seen_free and device.uuid in self._levels:
                self._suspects[device] = self._clock() + FREE_TIMEOUT_S

    def _is_ours(self, holder: str) -> bool:
        # A run of this package has its devices under its own name, which is that of the sweep.
        return holder == self._name or holder.startswith(f"sweep {self._name}, ")

    def _paused(self, device: Device) -> bool:
        return self._pauses.get(device, (0.0, 0.0))[0] > self._clock()

    def _is_back(self, device: Device) -> bool:
        """Whether its memory is free again, or has not become so for so long that it is given up."""
        if device not in self._suspects:
            return True
        if self._clock() < self._suspects[device] and leftover(device, self._levels[device.uuid or ""]):
            return False
        del self._suspects[device]
        return True
