"""Devices for a run, looked at or leased."""

import pytest

from pipeline.config.load import load_config
from pipeline.config.schema import DeviceChoice, DistributedConfig
from pipeline.engine.devices.lease import holders
from pipeline.engine.devices.select import choose_devices, lease_devices
from pipeline.errors import ConfigError, DeviceError
from tests.unit.engine.devices.conftest import UseMachine


def test_gpus_go_one_to_a_worker(machine: UseMachine) -> None:
    machine("two")
    assert [one.label for one in choose_devices(DeviceChoice.auto, None)] == ["GPU 0", "GPU 1"]
    assert [one.label for one in choose_devices(DeviceChoice.cuda, 1)] == ["GPU 1"]


def test_the_section_of_the_configuration_decides() -> None:
    config = load_config(["experiment.name=t", "distributed.gpu_ids=[0,1]"])
    assert (config.distributed.gpu_ids, config.distributed.num_gpus) == ([0, 1], None)
    with pytest.raises(ConfigError, match="num_gpus"):
        load_config(["experiment.name=t", "distributed.num_gpu=1"])


def test_messages_name_the_keys_of_the_configuration(machine: UseMachine) -> None:
    machine("two")
    with pytest.raises(DeviceError, match=r"distributed\.num_gpus=3, but there are 2"):
        choose_devices(DeviceChoice.auto, None, DistributedConfig(num_gpus=3))


def test_what_another_run_holds_is_passed_over_by_count_and_refused_by_id(machine: UseMachine) -> None:
    machine("eight")
    four = DistributedConfig(num_gpus=4)
    with lease_devices(DeviceChoice.auto, None, four, experiment="first") as first:
        assert [one.index for one in first.devices] == [4, 5, 6, 7]
        with lease_devices(DeviceChoice.auto, None, four, experiment="second") as second:
            assert [one.index for one in second.devices] == [0, 1, 2, 3]
            with pytest.raises(
                DeviceError, match=r"8 of these 8 are leased: 'second' .* has GPU 0, 1, 2, 3; 'first' .* has GPU 4"
            ):
                lease_devices(DeviceChoice.auto, 1)
        with pytest.raises(DeviceError, match=r"2 of GPU 3, 4 wanted, but 1 of these 2 are leased: 'first'"):
            lease_devices(DeviceChoice.auto, None, DistributedConfig(gpu_ids=[4, 3]))
        assert len(holders(first.devices)) == 4
    assert holders(first.devices) == {}


def test_workers_get_gpus_in_their_order(machine: UseMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("eight")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,2,4")
    with lease_devices(DeviceChoice.auto, None) as lease:
        assert [one.index for one in lease.devices] == [6, 2, 4]


def test_cpu_slots_need_no_lease(machine: UseMachine) -> None:
    machine("mismatch")
    with (
        lease_devices(DeviceChoice.cpu, 2) as one,
        lease_devices(DeviceChoice.cpu, 2) as other,
    ):
        assert one.devices == other.devices
        assert [device.label for device in one.devices] == ["cpu slot 0", "cpu slot 1"]
