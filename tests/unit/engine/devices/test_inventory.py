"""Which GPUs a machine has and a process may use."""

import itertools
import logging
from collections.abc import Callable

import pytest
import torch

from pipeline.engine.devices import inventory
from pipeline.engine.devices.inventory import (
    Device,
    GpuProcess,
    GpuUsage,
    cpu_slots,
    find_gpus,
    leftover,
    read_machine,
    read_mask,
    wait_until_free,
)
from pipeline.errors import DeviceError
from tests.doubles.fake_nvml import gpu, mig_slice
from tests.unit.engine.devices.conftest import UseMachine

GIB = 2**30


@pytest.mark.parametrize("kind", ["no driver", "not loaded", "not installed"])
def test_a_machine_without_a_driver_has_no_gpus(machine: UseMachine, kind: str) -> None:
    machine(kind)
    assert find_gpus({}) == []


def test_a_driver_that_does_not_work_is_no_missing_driver(machine: UseMachine) -> None:
    machine("mismatch")
    with pytest.raises(DeviceError, match=r"version mismatch\. See what `nvidia-smi` says.* device=cpu"):
        find_gpus({})


def test_hidden_gpus_are_not_even_asked_for(machine: UseMachine) -> None:
    machine("mismatch")
    assert find_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []


def test_a_lost_gpu_does_not_take_the_others_along(machine: UseMachine, caplog: pytest.LogCaptureFixture) -> None:
    machine("lost")
    with caplog.at_level(logging.WARNING, "pipeline"):
        assert [one.index for one in find_gpus({})] == [0, 2]
    assert "GPU 1 is left out: GPU is lost" in caplog.text
    assert [one.index for one in find_gpus({"CUDA_VISIBLE_DEVICES": "2"})] == [2]
    with pytest.raises(DeviceError, match="GPU 1 does not work: GPU is lost"):
        find_gpus({"CUDA_VISIBLE_DEVICES": "0,1"})


def test_mig_slices_are_devices_and_their_gpu_is_none(machine: UseMachine) -> None:
    machine("mig")
    labels = ["GPU 0 slice 0", "GPU 0 slice 1", "GPU 1"]
    assert [one.label for one in find_gpus({})] == labels
    both = "MIG-00000001,MIG-00000000"
    assert [one.label for one in find_gpus({"CUDA_VISIBLE_DEVICES": both})] == [labels[1], labels[0]]
    with pytest.raises(DeviceError, match=r"GPU 0 is in MIG mode.*CUDA_VISIBLE_DEVICES=MIG-0"):
        find_gpus({"CUDA_VISIBLE_DEVICES": "1,0"})


@pytest.mark.parametrize("error", ["NO_PERMISSION", "UNKNOWN"])
def test_what_a_driver_does_not_tell_is_none(machine: UseMachine, error: str) -> None:
    quiet = gpu(0, processes_error=error, mig_supported=False)
    machine({"gpus": [quiet, gpu(1, slices=[mig_slice(0)])]})
    seen = read_machine()
    whole, part = (seen.usage[uuid] for uuid in seen.devices)
    assert (whole.processes, whole.utilization) == (None, 0)
    assert part.utilization is None


# -- mask ------------------------------------------------------------


GPUS = ["GPU-0aaa-1", "GPU-0aab-2", "GPU-1ccc-3", "GPU-2ddd-4"]
SLICES = ["MIG-5e5e", "MIG-6f6f"]


@pytest.mark.parametrize(
    ("mask", "positions"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2,0", [2, 0]),
        (" 0 , 1 ", [0, 1]),
        ("GPU-2ddd-4,GPU-0aaa", [3, 0]),
    ],
)
def test_a_mask_selects_and_orders(mask: str | None, positions: list[int]) -> None:
    assert read_mask(mask, GPUS) == [GPUS[place] for place in positions]


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ("0,1,99,2", "'99' names no GPU"),
        ("0,-1,2", "'-1' names no GPU"),
        ("0,1,0", "'0' is given twice"),
        ("GPU-0aa", "matches several"),
        ("GPU-1,0", "'0' names no GPU"),
        ("GPU-1,GPU-1ccc", "'GPU-1ccc' is given twice"),
    ],
)
def test_a_mask_of_which_cuda_would_drop_a_part(mask: str, said: str) -> None:
    with pytest.raises(DeviceError, match=said):
        read_mask(mask, GPUS, SLICES)


def masks() -> list[str]:
    """Every short combination of entries that mean something."""
    numbers = ["0", "1", "3", "4", "99", "-1", "-2", "", " ", " 2 ", "+0", "2abc", "x", "0x1", "007", "1 2"]
    names = ["GPU-0aaa-1", "GPU-0aaa", "GPU-0aa", "GPU-", "GPU-9", " GPU-1", "GPU-1", "MIG-5", "MIG-5e5e", "GPU"]
    return [",".join(some) for size in (1, 2) for some in itertools.product(numbers + names, repeat=size)]


def test_what_is_not_refused_is_what_torch_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "_raw_device_count_nvml", lambda: len(GPUS))
    monkeypatch.setattr(cuda, "_raw_device_uuid_nvml", lambda: GPUS)
    read, refused = 0, 0
    for mask in masks():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
        theirs = cuda._parse_visible_devices()
        try:
            ours = read_mask(mask, GPUS)
        except DeviceError:
            refused += 1
            continue
        read += 1
        names = theirs and isinstance(theirs[0], str)
        ordinals = cuda._transform_uuid_to_ordinals(theirs, GPUS) if names else theirs
        assert ours == [GPUS[place] for place in ordinals], mask
    assert min(read, refused) > 20


# -- memory reclaim ------------------------------------------------------------


GPUS_MEMORY_RECLAIM = [
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
        (usage(1.6), "GPU 0: 614 MB are still taken"),
        (usage(31, (2, 30)), ""),
        (usage(31, (99, 30)), "30720 MB are still taken after the process that had them ended (process 99, "),
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
    said = leftover(GPUS_MEMORY_RECLAIM[0], GIB)
    assert words in said
    assert bool(words) == bool(said)


def test_memory_is_waited_for_by_all_together_and_what_stays_is_told(see: See) -> None:
    now = see(lambda device: usage(31 if device.index == 1 or now[0] < 1 else 1))
    (words,) = wait_until_free([*GPUS_MEMORY_RECLAIM, *cpu_slots(1)], LEVELS, 3)
    assert words.startswith("GPU 1: 30720 MB")
    assert words.endswith("and did not come back within 3 s")
    assert now[0] == pytest.approx(3, abs=0.3)
    assert wait_until_free(GPUS_MEMORY_RECLAIM, {}, 3) == []
