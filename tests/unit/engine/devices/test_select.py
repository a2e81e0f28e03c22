"""From what was asked for to devices within what is visible, looked at or leased."""

from typing import Any

import pytest

from pipeline.config.schema import DeviceChoice, DistributedConfig
from pipeline.engine.devices import inventory, select
from pipeline.engine.devices.inventory import find_gpus, read_machine
from pipeline.engine.devices.select import (
    DeviceRequest,
    candidates,
    devices_of,
    holders,
    pick,
)
from pipeline.errors import DeviceError
from tests.doubles.fake_nvml import gpu
from tests.unit.engine.devices.conftest import UseMachine


def picked(**conditions: Any) -> list[int]:
    return [device.index for device in pick(find_gpus(), read_machine().usage, **conditions)]


@pytest.mark.parametrize(
    ("kind", "count", "best"),
    [
        ("eight", 3, [5, 6, 7]),
        ("eight", None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("busy", 1, [2]),
        ("busy", 3, [0, 2, 3]),
        ({"gpus": [gpu(0, utilization=10), gpu(1, utilization=80), gpu(2, utilization=30)]}, 2, [0, 2]),
        ({"gpus": [gpu(0, total_gib=139.5), gpu(1, total_gib=139.5, used_gib=0.3)]}, 1, [1]),  # a display
    ],
)
def test_the_idlest_go_first_and_of_equals_the_highest(
    machine: UseMachine, kind: Any, count: int | None, best: list[int]
) -> None:
    machine(kind)
    assert picked(count=count) == best


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of three cores, on which nothing else runs."""
    monkeypatch.setattr(inventory, "usable_cores", lambda: 3)
    monkeypatch.setattr(select, "memory_available_bytes", lambda: 100 << 30)


def labels(asked: dict[str, Any] | None = None, mask: str | None = None, workers: int | None = None) -> list[str]:
    environment = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    found = candidates(DeviceRequest(**(asked or {})), environment, workers=workers)
    return [one.label for one in found.best()]


def gpus(*numbers: int) -> list[str]:
    return [f"GPU {number}" for number in numbers]


CPU = ["cpu slot 0", "cpu slot 1", "cpu slot 2"]


@pytest.mark.parametrize(("threads", "slots"), [(1, 3), (2, 1), (3, 1), (8, 1)])
def test_workers_of_several_threads_are_fewer(threads: int, slots: int) -> None:
    assert candidates(DeviceRequest(device=DeviceChoice.cpu), {}, threads=threads).count == slots


@pytest.mark.parametrize(
    ("asked", "mask", "expected"),
    [
        ({}, None, gpus(*range(8))),
        ({"num_gpus": 2}, None, gpus(6, 7)),
        ({"gpu_ids": [1, 0]}, None, gpus(0, 1)),
        ({"device": DeviceChoice.cpu}, None, CPU),
        ({}, "4,5,6,7", gpus(4, 5, 6, 7)),
        ({"gpu_ids": [0, 2]}, "4,5,6,7", gpus(4, 6)),
        ({"gpu_ids": [2, 0]}, "7,6,5", gpus(7, 5)),
        ({}, "", CPU),
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
        (
            {"num_gpus": 9},
            None,
            None,
            r"num_gpus=9, but .* 8 usable GPUs: 0 to 7; .* Use num_gpus=8 or less",
        ),
        ({"num_gpus": 0}, None, None, "num_gpus=0 is no GPU"),
        ({"gpu_ids": [0, 8, 9]}, None, None, r"gpu_ids=\[0, 8, 9\]: there is no GPU 8, 9\. Ids are 0 to 7"),
        ({"gpu_ids": [1, 1]}, None, None, "names a GPU twice"),
        ({"gpu_ids": [0, 1], "num_gpus": 3}, None, None, "make them agree"),
        ({"gpu_ids": [4]}, "4,5", None, r"Ids are 0 \(GPU 4\), 1 \(GPU 5\), counted within what CUDA_VISIBLE"),
        ({"num_gpus": 2}, "", None, "num_gpus=2, but there is no usable GPU: CUDA_VISIBLE_DEVICES='' hides them"),
        ({"device": DeviceChoice.cuda}, "-1", None, "device=cuda, but there is no usable GPU"),
        ({"num_gpus": 2}, None, 3, "execution.workers=3, but there are 2 usable GPUs"),
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


def test_what_another_run_holds_is_passed_over_by_count_and_refused_by_id(machine: UseMachine) -> None:
    machine("eight")
    four = DistributedConfig(num_gpus=4)
    with devices_of(DeviceChoice.auto, None, four).lease(experiment="first") as first:
        assert [one.index for one in first.devices] == [4, 5, 6, 7]
        with devices_of(DeviceChoice.auto, None, four).lease(experiment="second") as second:
            assert [one.index for one in second.devices] == [0, 1, 2, 3]
            with pytest.raises(
                DeviceError, match=r"8 of these 8 are leased: 'second' .* has GPU 0, 1, 2, 3; 'first' .* has GPU 4"
            ):
                devices_of(DeviceChoice.auto, 1).lease()
        with pytest.raises(DeviceError, match=r"2 of GPU 3, 4 wanted, but 1 of these 2 are leased: 'first'"):
            devices_of(DeviceChoice.auto, None, DistributedConfig(gpu_ids=[4, 3])).lease()
        assert len(holders(first.devices)) == 4
    assert holders(first.devices) == {}
