"""Whether the memory of a GPU has come back after a process that used it has ended.

    level = memory in use - what the driver books to processes that live

It is read before a run starts its first worker on the GPU. What is above it later was left by a process that is no
more: as a rule the driver frees that at once, but it can take seconds, and where a process is stuck in the driver
it never comes back. What others use meanwhile is booked to them, so it delays nobody. Inside most containers the
driver tells no process ids that mean anything there, or not what each process has, and the level is all that is in
use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from pipeline.engine.devices.inventory import Device, GpuProcess, GpuUsage, read_usage
from pipeline.errors import DeviceError

FREE_TIMEOUT_S = 30.0
"""A dead process with all of a large GPU, and much pinned memory of the machine, is cleared away well within this;
what is still there then does not come back."""
SLACK_BYTES = 512 * 2**20
"""How far above its level a GPU counts as free: a display or the driver itself moves by so much, and every
reckoning of what fits leaves more than that."""
POLL_S = 0.2


def lives(pid: int) -> bool:
    """Whether a process runs on this machine, or in this container."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def read_levels(devices: Sequence[Device], usage: Callable[[Device], GpuUsage] = read_usage) -> dict[str, int]:
    """UUID -> level in bytes, of the GPUs that answer. CPU slots have none."""
    levels = {}
    for device in devices:
        if device.kind == "cuda" and device.uuid:
            try:
                level = unaccounted_bytes(usage(device))
            except DeviceError:
                continue
            levels[device.uuid] = level
    return levels


def unaccounted_bytes(usage: GpuUsage, alive: Callable[[int], bool] = lives) -> int:
    """Memory in use that is booked to no living process. Of one without a figure nothing is."""
    return usage.used_bytes - sum(
        process.memory_bytes or 0 for process in usage.processes or () if alive(process.pid)
    )


def leftover(
    device: Device,
    level_bytes: int,
    *,
    usage: Callable[[Device], GpuUsage] = read_usage,
    alive: Callable[[int], bool] = lives,
) -> str:
    """What processes that have ended still hold of a GPU, in words; "" for nothing.

    Args:
        device: The GPU.
        level_bytes: As `read_levels` found it.
        usage: Asks the driver.
        alive: Whether a process is.
    """
    try:
        seen = usage(device)
    except DeviceError as error:
        return f"{device.label}: whether its memory is free cannot be told: {error}"
    now = unaccounted_bytes(seen, alive)
    if now <= level_bytes + SLACK_BYTES:
        return ""
    gone = [process for process in seen.processes or () if not alive(process.pid)]
    who = ", ".join(map(_words, gone)) or "the driver does not say who"
    return (
        f"{device.label}: {_mb(now - level_bytes)} are still taken after the process that had them ended ({who})"
    )


def wait_until_free(
    device: Device,
    level_bytes: int,
    timeout_s: float,
    *,
    enough: Callable[[], bool] = lambda: False,
    left: Callable[[Device, int], str] = leftover,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Wait until what processes that have ended held of a GPU is free.

    Args:
        device: The GPU.
        level_bytes: As `read_levels` found it.
        timeout_s: Seconds to wait at most.
        enough: Ends the wait: nobody wants the GPU any more.
        left: `leftover`.
        clock: Monotonic seconds.
        sleep: Waits.

    Returns:
        What was not free in time, in words; "" for nothing.
    """
    end = clock() + timeout_s
    while (words := left(device, level_bytes)) and not enough():
        if clock() >= end:
            return f"{words}, and did not come back within {timeout_s:g} s"
        sleep(POLL_S)
    return ""


def wait_until_all_free(
    devices: Sequence[Device],
    levels: Mapping[str, int],
    timeout_s: float,
    *,
    left: Callable[[Device, int], str] = leftover,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Wait for several GPUs at once, otherwise as `wait_until_free`.

    Args:
        devices: The GPUs; those without a level are free.
        levels: As `read_levels` found them.
        timeout_s: Seconds to wait at most, for all of them together.
        left: `leftover`.
        clock: Monotonic seconds.
        sleep: Waits.

    Returns:
        What was not free in time, in words, one for each GPU.
    """
    end = clock() + timeout_s
    asked = [(device, levels[device.uuid]) for device in devices if device.uuid and device.uuid in levels]
    while held := [(words, one) for one in asked if (words := left(*one))]:
        if clock() >= end:
            return [f"{words}, and did not come back within {timeout_s:g} s" for words, _ in held]
        asked = [one for _, one in held]
        sleep(POLL_S)
    return []


def _words(process: GpuProcess) -> str:
    amount = "memory" if process.memory_bytes is None else _mb(process.memory_bytes)
    return f"process {process.pid}, which does not run here, has {amount}"


def _mb(number: int) -> str:
    return f"{number / 2**20:.0f} MB"
