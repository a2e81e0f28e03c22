"""The functions for scripts."""

import io
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from pipeline import gpus as devices
from pipeline.errors import DeviceError
from tests.doubles.fake_nvml import gpu
from tests.unit.engine.devices.conftest import UseMachine

VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def uuid(index: int) -> str:
    return str(gpu(index)["uuid"])


def printed(*arguments: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=200)
    devices.print_gpu_info(*arguments, console=console)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_ids_are_positions_in_what_is_visible(machine: UseMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("eight")
    assert devices.get_available_gpus() == list(range(8))
    monkeypatch.setenv(VISIBLE, "4,5,6,7")
    assert devices.get_available_gpus() == [0, 1, 2, 3]
    assert [(info["id"], info["index"]) for info in devices.get_gpu_info()[:1]] == [(0, 4)]
    devices.set_visible_gpus([0, 2])
    assert os.environ[VISIBLE] == f"{uuid(4)},{uuid(6)}"
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    devices.set_visible_gpus([1])
    assert os.environ[VISIBLE] == uuid(6)
    with pytest.raises(DeviceError, match=r"there is no GPU 1. Ids are 0 \(GPU 6\)"):
        devices.set_visible_gpus([1])
    devices.set_visible_gpus([])
    assert os.environ[VISIBLE] == ""
    assert devices.get_available_gpus() == []


def test_selection(machine: UseMachine) -> None:
    machine("busy")
    assert devices.select_gpus() == [0, 1, 2, 3]
    assert devices.select_gpus([3, 1]) == [3, 1]
    assert devices.select_gpus(num_gpus=2) == [0, 2]
    assert devices.select_gpus([3, 1, 0], num_gpus=1) == [0]
    assert devices.select_gpus(min_memory_mb=100_000) == [0, 2, 3]
    with pytest.raises(DeviceError, match="5 GPUs asked for, but 4 of 4"):
        devices.select_gpus(num_gpus=5)
    with pytest.raises(DeviceError, match=r"gpu_ids=\[0, 7\]: there is no GPU 7. Ids are 0 to 3"):
        devices.select_gpus([0, 7])
    with pytest.raises(DeviceError, match=r"2 GPUs asked for, but 1 of 2 will do: .*GPU 1 has 10.0 GiB free"):
        devices.select_gpus([0, 1], min_memory_mb=100_000)
    with pytest.raises(DeviceError, match="1 GPU asked for, but 0 of 4"):
        devices.select_gpus(min_memory_mb=10**6)


def test_without_gpus_nothing_is_selected_and_nothing_can_be_asked_for(machine: UseMachine) -> None:
    machine("no driver")
    assert devices.select_gpus() == []
    assert devices.get_gpu_info() == []
    assert devices.get_optimal_device() == "cpu"
    assert printed() == ["No CUDA GPUs available"]
    assert devices.setup_gpu_environment() == "cpu"
    assert os.environ[VISIBLE] == ""
    with pytest.raises(DeviceError, match="sees no GPU at all"):
        devices.select_gpus([0])
    with pytest.raises(DeviceError, match="2 GPUs asked for, but 0 of 0"):
        devices.select_gpus(num_gpus=2)


def test_the_device_is_numbered_as_cuda_will_number_it(machine: UseMachine) -> None:
    machine("busy")
    assert devices.get_optimal_device() == "cuda:2"
    devices.set_visible_gpus([3, 1])
    assert devices.get_optimal_device([3, 1]) == "cuda:0"
    assert devices.get_optimal_device() == "cuda:0"
    assert devices.get_optimal_device([]) == "cpu"


def test_setup_selects_shows_and_names(machine: UseMachine, capsys: pytest.CaptureFixture[str]) -> None:
    machine("eight")
    assert devices.setup_gpu_environment(num_gpus=2) == "cuda:0"
    assert os.environ[VISIBLE] == f"{uuid(6)},{uuid(7)}"
    assert capsys.readouterr().out.splitlines() == [
        "Available GPUs: 8",
        "GPU 6: NVIDIA H200 (143360 MB total, 0 MB used (0.0%), Compute 9.0)",
        "GPU 7: NVIDIA H200 (143360 MB total, 0 MB used (0.0%), Compute 9.0)",
    ]
    assert devices.setup_gpu_environment([0]) == "cuda:0"
    assert os.environ[VISIBLE] == uuid(6)


@pytest.mark.parametrize(
    ("size_gb", "margin", "chosen"),
    [(80, 1.5, [7]), (100, 1.5, [6, 7]), (140, 1.0, [6, 7]), (500, 1.5, [2, 3, 4, 5, 6, 7])],
)
def test_a_model_gets_the_fewest_gpus_that_hold_it(
    machine: UseMachine, size_gb: float, margin: float, chosen: list[int]
) -> None:
    machine("eight")  # each has 0.9 * 150.3 GB - 1 GB = 134.3 GB usable
    assert devices.auto_select_gpus_for_model(size_gb, margin) == chosen


def test_a_model_that_does_not_fit_is_refused_with_the_figures(machine: UseMachine) -> None:
    machine("busy")
    assert devices.auto_select_gpus_for_model(100, 1.2) == [2]
    with pytest.raises(DeviceError, match=r"needs 450 GB with a margin of 1.5, but 4 GPUs have 370 GB"):
        devices.auto_select_gpus_for_model(300)


def test_slices_are_shown_one_at_a_time(machine: UseMachine) -> None:
    machine("mig")
    with pytest.raises(DeviceError, match="GPU 0 slice 0, GPU 0 slice 1: CUDA shows a process one MIG slice"):
        devices.set_visible_gpus([0, 1])
    devices.set_visible_gpus([1])
    assert os.environ[VISIBLE] == "MIG-00000001-aaaa-bbbb-cccc-000000000000"


def test_nothing_changes_once_cuda_is_in_use(machine: UseMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("two")
    torch = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", torch)
    devices.set_visible_gpus([1])
    torch.cuda.is_initialized = lambda: True
    for change in (lambda: devices.set_visible_gpus([0]), devices.setup_gpu_environment):
        with pytest.raises(DeviceError, match="CUDA is in use in this process"):
            change()
    assert os.environ[VISIBLE] == uuid(1)
