"""Which devices a run uses."""

from typing import Any

import pytest

from pipeline.config.schema import DeviceChoice
from pipeline.devices.inventory import Device
from pipeline.devices.select import WORKER_MEMORY_BYTES, choose_devices, default_slots
from pipeline.errors import DeviceError

GPUS = [Device(kind="cuda", index=i, uuid=f"GPU-{i}", name="", memory_total_bytes=0) for i in range(4)]


def choose(choice: DeviceChoice, workers: int | None, gpus: list[Device], **machine: Any) -> list[str]:
    found = choose_devices(
        choice, workers, gpus=lambda: gpus, cores=lambda: 3, memory_bytes=lambda: 100 << 30, **machine
    )
    return [device.label for device in found]


def test_gpus_go_one_to_a_worker() -> None:
    assert choose(DeviceChoice.auto, None, GPUS) == ["GPU 0", "GPU 1", "GPU 2", "GPU 3"]
    assert choose(DeviceChoice.cuda, 2, GPUS) == ["GPU 0", "GPU 1"]


def test_cpu_slots_are_used_where_there_is_no_gpu_or_none_is_wanted() -> None:
    assert choose(DeviceChoice.auto, None, []) == ["cpu slot 0", "cpu slot 1", "cpu slot 2"]
    assert choose(DeviceChoice.cpu, 5, GPUS) == [f"cpu slot {index}" for index in range(5)]


@pytest.mark.parametrize(
    ("choice", "workers", "gpus", "said"),
    [
        (DeviceChoice.cuda, None, [], "no usable GPU"),
        (DeviceChoice.cuda, 5, GPUS, "there are 4 usable GPUs"),
        (DeviceChoice.auto, 5, GPUS, "workers=4 or less"),
        (DeviceChoice.auto, 0, GPUS, "at least one worker"),
    ],
)
def test_what_cannot_be_had_is_refused(
    choice: DeviceChoice, workers: int | None, gpus: list[Device], said: str
) -> None:
    with pytest.raises(DeviceError, match=said):
        choose(choice, workers, gpus)


@pytest.mark.parametrize(("cores", "gib", "slots"), [(8, 64, 8), (8, 2, 2), (8, 0.1, 1), (1, 64, 1)])
def test_slots_are_bounded_by_cores_and_memory(cores: int, gib: float, slots: int) -> None:
    assert default_slots(cores, int(gib * 2**30)) == slots
    assert WORKER_MEMORY_BYTES < 2**30
