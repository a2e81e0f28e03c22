"""What was asked for becomes devices, within what is visible."""

from typing import Any

import pytest

from pipeline.config.schema import DeviceChoice
from pipeline.engine.devices.inventory import read_machine
from pipeline.engine.devices.resolve import (
    WORKER_MEMORY_BYTES,
    DeviceRequest,
    Inventory,
    candidates,
    default_slots,
)
from pipeline.errors import DeviceError
from tests.unit.engine.devices.conftest import UseMachine

INVENTORY = Inventory(machine=read_machine, cores=lambda: 3, memory_bytes=lambda: 100 << 30)


def labels(asked: dict[str, Any] | None = None, mask: str | None = None, workers: int | None = None) -> list[str]:
    environment = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    found = candidates(DeviceRequest(**(asked or {})), environment, INVENTORY, workers=workers)
    return [one.label for one in found.best()]


def gpus(*numbers: int) -> list[str]:
    return [f"GPU {number}" for number in numbers]


CPU = ["cpu slot 0", "cpu slot 1", "cpu slot 2"]


@pytest.mark.parametrize(
    ("asked", "mask", "expected"),
    [
        ({}, None, gpus(*range(8))),
        ({"num_gpus": 2}, None, gpus(6, 7)),
        ({"gpu_ids": [1, 0]}, None, gpus(0, 1)),
        ({"device": DeviceChoice.cpu}, None, CPU),
        ({"device": DeviceChoice.cuda}, None, gpus(*range(8))),
        ({"device": DeviceChoice.cuda, "gpu_ids": [3]}, None, gpus(3)),
        ({"gpu_ids": [2, 5], "num_gpus": 2}, None, gpus(2, 5)),
        ({}, "4,5,6,7", gpus(4, 5, 6, 7)),
        ({"gpu_ids": [0, 2]}, "4,5,6,7", gpus(4, 6)),
        ({"gpu_ids": [2, 0]}, "7,6,5", gpus(7, 5)),
        ({"num_gpus": 2}, "1,2,3", gpus(2, 3)),
        ({}, "", CPU),
        ({"device": DeviceChoice.cpu}, "not even a mask", CPU),
    ],
)
def test_devices_are_those_asked_for_within_what_the_environment_shows(
    machine: UseMachine, asked: dict[str, Any], mask: str | None, expected: list[str]
) -> None:
    machine("eight")
    assert labels(asked, mask) == expected


@pytest.mark.parametrize(
    ("asked", "mask", "workers", "said"),
    [
        ({"num_gpus": 9}, None, None, r"num_gpus=9, but there are 8 usable GPUs: 0 to 7\. Use num_gpus=8 or less"),
        ({"num_gpus": 0}, None, None, "num_gpus=0: must be at least 1"),
        ({"gpu_ids": []}, None, None, r"gpu_ids=\[\] names no GPU"),
        ({"gpu_ids": [0, 8, 9]}, None, None, r"gpu_ids=\[0, 8, 9\]: there is no GPU 8, 9\. Ids are 0 to 7"),
        ({"gpu_ids": [-1]}, None, None, "there is no GPU -1"),
        ({"gpu_ids": [1, 1]}, None, None, "names a GPU twice"),
        ({"gpu_ids": [0, 1], "num_gpus": 3}, None, None, "make them agree"),
        ({"gpu_ids": [4]}, "4,5", None, r"Ids are 0 \(GPU 4\), 1 \(GPU 5\), counted within what CUDA_VISIBLE"),
        ({"num_gpus": 2}, "", None, "num_gpus=2, but there is no usable GPU: CUDA_VISIBLE_DEVICES='' hides them"),
        ({"gpu_ids": [0]}, "-1", None, r"gpu_ids=\[0\], but there is no usable GPU"),
        ({"device": DeviceChoice.cuda}, "-1", None, "device=cuda, but there is no usable GPU"),
        ({"num_gpus": 2}, None, 3, "execution.workers=3, but there are 2 usable GPUs"),
        ({}, None, 9, "workers=8 or less"),
        ({}, None, 0, "at least one worker"),
    ],
)
def test_what_cannot_be_had_is_refused(
    machine: UseMachine, asked: dict[str, Any], mask: str | None, workers: int | None, said: str
) -> None:
    machine("eight")
    with pytest.raises(DeviceError, match=said) as raised:
        labels(asked, mask, workers)
    assert "\n" not in str(raised.value)


def test_the_cpu_works_whatever_the_driver_does(machine: UseMachine) -> None:
    machine("mismatch")
    assert labels({"device": DeviceChoice.cpu}) == CPU
    assert labels({"device": DeviceChoice.cpu}, workers=5) == [f"cpu slot {slot}" for slot in range(5)]
    with pytest.raises(DeviceError, match="does not answer"):
        labels()


def test_without_gpus_slots_are_taken(machine: UseMachine) -> None:
    machine("no driver")
    assert labels() == CPU
    with pytest.raises(DeviceError, match="NVML found none"):
        labels({"device": DeviceChoice.cuda})


def test_fewer_workers_take_the_idlest_gpus(machine: UseMachine) -> None:
    machine("busy")
    assert labels(workers=1) == gpus(2)
    assert labels(workers=2) == gpus(0, 2)


@pytest.mark.parametrize(("cores", "gib", "slots"), [(8, 64, 8), (8, 2, 2), (8, 0.1, 1), (1, 64, 1)])
def test_slots_are_bounded_by_cores_and_memory(cores: int, gib: float, slots: int) -> None:
    assert default_slots(cores, int(gib * 2**30)) == slots
    assert WORKER_MEMORY_BYTES < 2**30
