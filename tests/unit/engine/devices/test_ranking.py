"""The best GPUs among several."""

from typing import Any

import pytest

from pipeline.engine.devices.inventory import Device, find_gpus, read_machine
from pipeline.engine.devices.resolve import Order, pick
from pipeline.errors import DeviceError
from tests.doubles.fake_nvml import gpu
from tests.unit.engine.devices.conftest import UseMachine

GIB = 2**30


def picked(**conditions: Any) -> list[int]:
    return [device.index for device in pick(find_gpus(), read_machine().usage, **conditions)]


def test_equals_are_taken_from_the_highest_number_down(machine: UseMachine) -> None:
    machine("eight")
    assert picked(count=3) == [5, 6, 7]
    assert picked(count=3, order=Order.lowest) == [0, 1, 2]
    assert picked() == list(range(8))


def test_the_idlest_go_first(machine: UseMachine) -> None:
    machine("busy")
    assert picked(count=1) == [2]
    assert picked(count=2) == [0, 2]
    assert picked(count=3) == [0, 2, 3]


def test_of_equally_free_ones_the_less_busy_goes_first(machine: UseMachine) -> None:
    machine({"gpus": [gpu(0, utilization=10), gpu(1, utilization=80), gpu(2, utilization=30)]})
    assert picked(count=2) == [0, 2]


def test_some_megabytes_of_a_display_do_not_matter(machine: UseMachine) -> None:
    machine({"gpus": [gpu(0, total_gib=139.5), gpu(1, total_gib=139.5, used_gib=0.3)]})
    assert picked(count=1) == [1]


@pytest.mark.parametrize(
    ("conditions", "indices"),
    [
        ({"min_free_bytes": 101 * GIB}, [0, 2]),
        ({"min_free_bytes": 90 * GIB}, [0, 2, 3]),
        ({"max_utilization": 4}, [2, 3]),
        ({"max_utilization": 4, "min_free_bytes": 101 * GIB}, [2]),
        ({"min_total_bytes": 140 * GIB}, [0, 1, 2, 3]),
    ],
)
def test_conditions_are_met(machine: UseMachine, conditions: dict[str, int], indices: list[int]) -> None:
    machine("busy")
    assert picked(**conditions) == indices


def test_one_model_alone(machine: UseMachine) -> None:
    machine("mixed")
    assert picked(same_model=True, count=2) == [1, 2]
    assert picked(same_model=True) == [1, 2]
    assert picked(min_total_bytes=17 * GIB) == [1, 2]
    with pytest.raises(DeviceError, match="3 GPUs of one model asked for, but 2 of 4 will do"):
        picked(same_model=True, count=3)


def test_the_larger_group_wins_over_the_larger_cards(machine: UseMachine) -> None:
    machine({"gpus": [gpu(0, total_gib=8, name="small"), gpu(1, total_gib=8, name="small"), gpu(2)]})
    assert picked(same_model=True, count=2) == [0, 1]
    assert picked(same_model=True, count=1) == [2]


def test_too_few_says_what_is_wrong_with_each(machine: UseMachine) -> None:
    machine("busy")
    with pytest.raises(DeviceError) as raised:
        picked(count=3, min_free_bytes=120 * GIB, max_utilization=50)
    said = str(raised.value)
    assert "3 GPUs asked for, but 2 of 4 will do" in said
    assert "GPU 1 (NVIDIA H200) has 10.0 GiB free and is 98% busy" in said
    assert "GPU 3 (NVIDIA H200) has 100.0 GiB free" in said


def test_nothing_is_none_too_few() -> None:
    devices: list[Device] = []
    with pytest.raises(DeviceError, match="0 of 0"):
        pick(devices, {})
