"""When the memory of a process that has ended counts as free."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.engine.devices.inventory import Device, GpuProcess, GpuUsage, cpu_slots, find_gpus
from pipeline.engine.devices.memory_reclaim import (
    leftover,
    lives,
    read_levels,
    unaccounted_bytes,
    wait_until_all_free,
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
ALIVE = {1, 2, 3}


def usage(used_gib: float, *processes: tuple[int, float | None]) -> GpuUsage:
    used = int(used_gib * GIB)
    return GpuUsage(
        used_bytes=used,
        free_bytes=100 * GIB - used,
        total_bytes=100 * GIB,
        processes=tuple(GpuProcess(pid, None if gib is None else int(gib * GIB)) for pid, gib in processes),
    )


def left(now: GpuUsage | DeviceError, level_gib: float = 1.0) -> str:
    def ask(device: Device) -> GpuUsage:
        if isinstance(now, DeviceError):
            raise now
        return now

    return leftover(GPUS[0], int(level_gib * GIB), usage=ask, alive=ALIVE.__contains__)


class Clock:
    """Time that passes only while someone sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def says(*words: str) -> Callable[[Device, int], str]:
    """One answer after the other; the last one repeats."""
    answers = list(words)
    return lambda device, level: answers.pop(0) if len(answers) > 1 else answers[0]


def test_what_living_processes_have_is_theirs() -> None:
    assert unaccounted_bytes(usage(41, (1, 10), (2, 30)), ALIVE.__contains__) == GIB
    assert unaccounted_bytes(usage(41, (1, 10), (99, 30)), ALIVE.__contains__) == 31 * GIB


def test_where_the_driver_does_not_tell_what_processes_have_all_that_is_in_use_counts() -> None:
    """Else nobody would wait, and the next job run out of memory and halve its batch for good."""
    assert unaccounted_bytes(usage(41, (1, None)), ALIVE.__contains__) == 41 * GIB
    assert "40960 MB are still taken" in left(usage(41, (1, None)))
    assert left(usage(1.2, (1, None), (99, None))) == ""
    assert "memory)" in left(usage(41, (99, None)))


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (usage(1), ""),
        (usage(1.5), ""),
        (usage(1.6), "GPU 0: 614 MB are still taken"),
        (usage(0.2), ""),
        (usage(31, (2, 30)), ""),
        (
            usage(31, (99, 30)),
            "GPU 0: 30720 MB are still taken after the process that had them ended (process 99, ",
        ),
        (usage(61, (99, 30), (2, 30)), "GPU 0: 30720 MB are still taken"),
        (usage(31), "(the driver does not say who)"),
        (DeviceError("the GPU is lost"), "GPU 0: whether its memory is free cannot be told: the GPU is lost"),
    ],
    ids=str,
)
def test_what_is_above_the_level_and_belongs_to_nobody_is_left_over(
    now: GpuUsage | DeviceError, words: str
) -> None:
    assert words in left(now)
    assert bool(words) == bool(left(now))


def test_a_gpu_that_others_left_meanwhile_is_not_taken_for_free() -> None:
    """40 GiB were a stranger's, who went; a worker that died still has 30, so less is in use than before."""
    before = unaccounted_bytes(usage(41, (3, 40)), ALIVE.__contains__)
    assert "30720 MB" in left(usage(31, (99, 30)), before / GIB)


def test_a_zombie_does_not_live() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert child.stdout
    child.stdout.read()  # it is over when its end is closed, or a moment later
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not lives(child.pid)
    child.communicate()
    assert not lives(child.pid)
    assert lives(os.getpid())


def test_levels_are_read_of_gpus_alone(machine: UseMachine, tmp_path: Path) -> None:
    def refuse(device: Device) -> GpuUsage:
        raise AssertionError("nobody is to be asked")

    assert read_levels(cpu_slots(2), refuse) == {}
    machine("two")
    gpus = find_gpus()
    uuids = [gpu.uuid for gpu in gpus]
    machine(
        {
            "gpus": [
                fake_nvml.gpu(0, used_gib=3, processes=[[os.getpid(), 2.0]]),
                fake_nvml.gpu(1, error="GPU_IS_LOST"),
            ]
        }
    )
    assert read_levels(gpus) == {uuids[0]: GIB}


def test_memory_is_waited_for() -> None:
    clock = Clock()
    assert not wait_until_free(
        GPUS[0], 0, 5, left=says("it is taken", "it is taken", ""), clock=clock, sleep=clock.sleep
    )
    assert clock.now == pytest.approx(0.4)
    assert not wait_until_free(GPUS[0], 0, 5, left=says(""), clock=clock, sleep=clock.sleep)
    assert clock.now == pytest.approx(0.4)


def test_memory_that_stays_is_told_when_the_time_is_over() -> None:
    clock = Clock()
    words = wait_until_free(GPUS[0], 0, 5, left=says("it is taken"), clock=clock, sleep=clock.sleep)
    assert words == "it is taken, and did not come back within 5 s"
    assert clock.now == pytest.approx(5, abs=0.3)


def test_the_wait_ends_when_nobody_wants_the_device() -> None:
    clock = Clock()
    stop = iter([False, True])
    assert not wait_until_free(
        GPUS[0], 0, 5, enough=lambda: next(stop), left=says("taken"), clock=clock, sleep=clock.sleep
    )
    assert clock.now < 1


def test_several_share_one_limit() -> None:
    clock = Clock()

    def one_stays(device: Device, level: int) -> str:
        return f"{device.label} is taken" if device.index == 1 or clock.now < 1 else ""

    levels = {"GPU-0": 0, "GPU-1": 0}
    words = wait_until_all_free(GPUS, levels, 3, left=one_stays, clock=clock, sleep=clock.sleep)
    assert words == ["GPU 1 is taken, and did not come back within 3 s"]
    assert clock.now == pytest.approx(3, abs=0.3)
    assert wait_until_all_free([*GPUS, *cpu_slots(1)], {}, 3, left=one_stays, clock=clock, sleep=clock.sleep) == []
