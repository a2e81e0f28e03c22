"""Which GPUs a process may use."""

import pytest

from pipeline.devices import inventory
from pipeline.devices.inventory import Device, find_gpus, visible_gpus
from pipeline.errors import DeviceError


def gpu(index: int, uuid: str | None = None) -> Device:
    return Device(
        kind="cuda", index=index, uuid=uuid or f"GPU-{index}aaa-bbbb", name="H200", memory_total_bytes=141 << 30
    )


GPUS = [gpu(0), gpu(1), gpu(2)]


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        (" 0 , 1 ", [0, 1]),
        ("GPU-2aaa-bbbb", [2]),
        ("GPU-1,0", [1, 0]),
    ],
)
def test_cuda_visible_devices_selects_and_orders(visible: str | None, indices: list[int]) -> None:
    assert [one.index for one in visible_gpus(GPUS, visible)] == indices


@pytest.mark.parametrize(
    ("visible", "said"),
    [
        ("3", "entry '3' names no GPU"),
        ("0,x", "entry 'x' names no GPU"),
        ("0,", "entry '' names no GPU"),
        ("0,0", "names GPU 0 twice"),
        ("0,GPU-0", "names GPU 0 twice"),
        ("GPU-", "matches several"),
        ("-2", "entry '-2'"),
    ],
)
def test_a_bad_entry_is_named(visible: str, said: str) -> None:
    with pytest.raises(DeviceError, match=said):
        visible_gpus(GPUS, visible)


def test_a_machine_without_a_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def no_library() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_library)
    assert find_gpus({}) == []


def test_hidden_gpus_are_not_even_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "_nvml_gpus", lambda: pytest.fail("asked"))
    assert find_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []


def test_gpus_are_described_as_the_driver_lists_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    for name, value in {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": object(),
        "nvmlDeviceGetUUID": "GPU-1",
        "nvmlDeviceGetName": b"NVIDIA H200",
        "nvmlDeviceGetMemoryInfo": type("Memory", (), {"total": 5}),
    }.items():
        monkeypatch.setattr(pynvml, name, lambda *_, value=value: value)
    expected = Device(kind="cuda", index=0, uuid="GPU-1", name="NVIDIA H200", memory_total_bytes=5)
    assert find_gpus({}) == [expected]
