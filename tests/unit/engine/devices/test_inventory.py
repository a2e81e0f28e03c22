"""Which GPUs a machine has and a process may use."""

import logging

import pytest

from pipeline.engine.devices.inventory import (
    GpuProcess,
    find_gpus,
    read_machine,
    read_usage,
)
from pipeline.errors import DeviceError
from tests.doubles.fake_nvml import gpu, mig_slice
from tests.unit.engine.devices.conftest import UseMachine

GIB = 2**30


@pytest.mark.parametrize("kind", ["no driver", "not loaded", "not installed"])
def test_a_machine_without_a_driver_has_no_gpus(machine: UseMachine, kind: str) -> None:
    machine(kind)
    assert find_gpus({}) == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("LIB_RM_VERSION_MISMATCH", "version mismatch. Try: it was updated while it was loaded: reboot"),
        ("NO_PERMISSION", "you may not open /dev/nvidia"),
        ("UNKNOWN", "see what `nvidia-smi` says"),
    ],
)
def test_a_driver_that_does_not_work_is_no_missing_driver(machine: UseMachine, error: str, said: str) -> None:
    machine({"error": error})
    with pytest.raises(DeviceError, match=said) as raised:
        find_gpus({})
    assert "use device=cpu" in str(raised.value)


def test_hidden_gpus_are_not_even_asked_for(machine: UseMachine) -> None:
    machine("mismatch")
    assert find_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []


def test_a_mask_composes_with_what_there_is(machine: UseMachine) -> None:
    machine("eight")
    assert [one.index for one in find_gpus({"CUDA_VISIBLE_DEVICES": "6,4"})] == [6, 4]
    assert [one.index for one in find_gpus({"CUDA_VISIBLE_DEVICES": "GPU-00000003"})] == [3]


@pytest.mark.parametrize("mask", ["0,8", "0,0", "GPU-0", "0,GPU-00000001", "x"])
def test_what_cuda_would_drop_is_refused(machine: UseMachine, mask: str) -> None:
    machine("eight")
    with pytest.raises(DeviceError, match=r"CUDA_VISIBLE_DEVICES=.* entry '.*There is: 0 \(GPU-00000000"):
        find_gpus({"CUDA_VISIBLE_DEVICES": mask})


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
    older = "MIG-GPU-00000000-aaaa-bbbb-cccc-000000000000/8/0"
    assert [one.label for one in find_gpus({"CUDA_VISIBLE_DEVICES": older})] == [labels[1]]
    with pytest.raises(DeviceError, match=r"GPU 0 is in MIG mode.*CUDA_VISIBLE_DEVICES=MIG-0"):
        find_gpus({"CUDA_VISIBLE_DEVICES": "1,0"})


def test_numbers_on_a_mixed_machine_are_warned_about(
    machine: UseMachine, caplog: pytest.LogCaptureFixture
) -> None:
    machine("mixed")
    find_gpus({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    find_gpus({"CUDA_VISIBLE_DEVICES": "GPU-00000000"})
    find_gpus({})
    assert not caplog.records
    find_gpus({"CUDA_VISIBLE_DEVICES": "0"})
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in caplog.text


def test_memory_is_that_of_the_whole_device(machine: UseMachine) -> None:
    machine({"gpus": [gpu(0, total_gib=80, used_gib=30, reserved_gib=1, utilization=7, processes=[[5, 30]])]})
    use = read_usage(find_gpus({})[0])
    assert (use.total_bytes, use.free_bytes, use.used_bytes) == (80 * GIB, 49 * GIB, 31 * GIB)
    assert (use.utilization, use.processes) == (7, (GpuProcess(5, 30 * GIB),))
    assert use.compute_capability == (9, 0)


@pytest.mark.parametrize("error", ["NO_PERMISSION", "INVALID_ARGUMENT", "UNKNOWN"])
def test_what_a_driver_does_not_tell_is_none(machine: UseMachine, error: str) -> None:
    quiet = gpu(0, processes_error=error, mig_supported=False)
    del quiet["cores"]
    machine({"gpus": [quiet, gpu(1, slices=[mig_slice(0)])]})
    seen = read_machine()
    whole, part = (seen.usage[uuid] for uuid in seen.devices)
    assert (whole.processes, whole.cores, whole.utilization) == (None, None, 0)
    assert part.utilization is None
