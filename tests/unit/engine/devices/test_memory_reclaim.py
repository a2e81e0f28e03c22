"""When the memory of a process that has ended counts as free."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from pipeline.engine.devices import inventory
from pipeline.engine.devices.inventory import (
    Device,
    GpuProcess,
    GpuUsage,
    cpu_slots,
    find_gpus,
    leftover,
    lives,
    read_levels,
    unaccounted_bytes,
    wait_until_free,
)
from pipeline.errors import DeviceError
from tests.doubles import fake_nvml
from tests.unit.engine.devices.conftest import UseMachine

GIB = 2**30
GPUS = [
    Device(kind="cuda", index=index, uuid=f"GPU-{index}", name="H200", memory_total_bytes=100 * GIB)
    for index in range(2)
]
LEVELS = {"GPU-0": GIB, "GPU-1": GIB}
See = Callable[[Callable[[Device], GpuUsage]], list[float]]


@pytest.fixture
def see(monkeypatch: pytest.MonkeyPatch) -> See:
    """Have a driver answer, on a machine where processes 1 to 3 live; the seconds that are slept are kept."""

    def see(answer: Callable[[Device], GpuUsage]) -> list[float]:
        now = [0.0]
        monkeypatch.setattr(inventory, "read_usage", answer)
        monkeypatch.setattr(inventory, "lives", {1, 2, 3}.__contains__)
        monkeypatch.setattr(inventory.time, "monotonic", lambda: now[0])
        monkeypatch.setattr(inventory.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
        return now

    return see


def usage(used_gib: float, *processes: tuple[int, float | None]) -> GpuUsage:
    used = int(used_gib * GIB)
    return GpuUsage(
        used_bytes=used,
        free_bytes=100 * GIB - used,
        total_bytes=100 * GIB,
        processes=tuple(GpuProcess(pid, None if gib is None else int(gib * GIB)) for pid, gib in processes),
    )


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (usage(1), ""),
        (usage(1.5), ""),
        (usage(1.6), "GPU 0: 614 MB are still taken"),
        (usage(0.2), ""),
        (usage(31, (2, 30)), ""),
        (usage(31, (99, 30)), "30720 MB are still taken after the process that had them ended (process 99, "),
        (usage(61, (99, 30), (2, 30)), "GPU 0: 30720 MB are still taken"),
        # Where the driver does not tell who has what, all that is in use counts: else nobody would wait, and the
        # next job run out of memory and halve its batch for good.
        (usage(41, (1, None)), "40960 MB are still taken"),
        (usage(1.2, (1, None), (99, None)), ""),
        (DeviceError("the GPU is lost"), "cannot be told: the GPU is lost"),
    ],
    ids=str,
)
def test_what_is_above_the_level_and_belongs_to_nobody_is_left_over(
    see: See, now: GpuUsage | DeviceError, words: str
) -> None:
    def answer(_: Device) -> GpuUsage:
        if isinstance(now, DeviceError):
            raise now
        return now

    see(answer)
    said = leftover(GPUS[0], GIB)
    assert words in said
    assert bool(words) == bool(said)


def test_a_gpu_that_others_left_meanwhile_is_not_taken_for_free(see: See) -> None:
    """40 GiB were a stranger's, who went; a worker that died still has 30, so less is in use than before."""
    see(lambda _: usage(31, (99, 30)))
    assert "30720 MB" in leftover(GPUS[0], unaccounted_bytes(usage(41, (3, 40))))


def test_a_zombie_does_not_live() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert child.stdout
    child.stdout.read()  # it is over when its end is closed, or a moment later
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not lives(child.pid)
    child.communicate()
    assert not lives(child.pid)
    assert lives(os.getpid())


def test_levels_are_read_of_gpus_alone(machine: UseMachine) -> None:
    assert read_levels(cpu_slots(2)) == {}
    machine("two")
    gpus = find_gpus()
    lost = fake_nvml.gpu(1, error="GPU_IS_LOST")
    machine({"gpus": [fake_nvml.gpu(0, used_gib=3, processes=[[os.getpid(), 2.0]]), lost]})
    assert read_levels(gpus) == {gpus[0].uuid: GIB}


def test_memory_is_waited_for_by_all_together_and_what_stays_is_told(see: See) -> None:
    now = see(lambda device: usage(31 if device.index == 1 or now[0] < 1 else 1))
    (words,) = wait_until_free([*GPUS, *cpu_slots(1)], LEVELS, 3)
    assert words.startswith("GPU 1: 30720 MB")
    assert words.endswith("and did not come back within 3 s")
    assert now[0] == pytest.approx(3, abs=0.3)
    assert wait_until_free(GPUS, {}, 3) == []


def test_the_wait_ends_when_nobody_wants_the_device(see: See) -> None:
    now = see(lambda _: usage(31))
    stop = iter([False, True])
    assert wait_until_free(GPUS[:1], LEVELS, 5, lambda: next(stop)) == []
    assert now[0] < 1
