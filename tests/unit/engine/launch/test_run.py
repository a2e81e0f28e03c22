"""The devices, the environment and the port of a launch, on a described machine."""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.devices.select import LeaseSet
from pipeline.engine.launch import (
    LaunchRequest,
    Meeting,
    describe,
    listen,
    rank_environment,
    take_devices,
)
from pipeline.engine.launch_agent import _hindsight
from pipeline.errors import ConfigError, DeviceError
from tests.doubles import fake_nvml


@pytest.fixture(autouse=True)
def eight(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Eight GPUs, and leases of the test's own."""
    monkeypatch.setenv("PIPELINE_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_nvml.use(monkeypatch, tmp_path, "eight")


@pytest.fixture
def heard() -> Iterator[list[str]]:
    lines: list[str] = []
    yield lines
    assert not any("\n" in line for line in lines)


def take(heard: list[str], environ: dict[str, str] | None = None, **fields: Any) -> LeaseSet:
    return take_devices(LaunchRequest(program=["x"], **fields), "launch x.py", environ or {}, heard.append)


def test_local_rank_i_is_on_the_ith_of_the_list(heard: list[str]) -> None:
    with take(heard, gpus=[6, 1, 4]) as lease:
        assert [device.index for device in lease.devices] == [6, 1, 4]
        environment = rank_environment({}, lease.devices, 16, alone=True)
    ids = [uuid.split("-")[1] for uuid in environment["CUDA_VISIBLE_DEVICES"].split(",")]
    assert ids == ["00000006", "00000001", "00000004"]
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environment["OMP_NUM_THREADS"] == "5"


@pytest.mark.parametrize(
    ("fields", "environ", "says"),
    [
        ({"gpus": [0, 9]}, {}, "there is no GPU 9. Ids are 0 to 7"),
        ({"num_gpus": 9}, {}, "Use --num-gpus=8 or less, or --device cpu --nproc N"),
        ({"gpus": [0]}, {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES='' hides them"),
    ],
)
def test_wrong_lists(fields: dict[str, Any], environ: dict[str, str], says: str, heard: list[str]) -> None:
    with pytest.raises(DeviceError, match=says) as refused:
        take(heard, environ, **fields)
    assert "\n" not in str(refused.value)


def test_slices_cannot_work_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, heard: list[str]) -> None:
    fake_nvml.use(monkeypatch, tmp_path, "mig")
    with pytest.raises(DeviceError, match="one MIG slice"):
        take(heard, gpus=[0, 1])
    with take(heard, gpus=[1]) as lease:
        assert lease.devices[0].slice_index == 1


def test_the_cpu_needs_no_lease(heard: list[str]) -> None:
    with take(heard, nproc=3) as lease:
        assert len(lease.devices) == 3
        assert rank_environment({}, lease.devices, 2, alone=True)["CUDA_VISIBLE_DEVICES"] == ""
        assert describe(lease.devices, Meeting(1, 0, "a", 7)) == "3 processes on the CPU, meeting at a:7"


def test_a_port_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port}: Address already in use"), listen(port):
            pass


def test_the_rank_that_began_it_is_told_from_those_it_took_along() -> None:
    codes = [-signal.SIGTERM, 1, 7, -signal.SIGABRT, -signal.SIGKILL]
    assert sorted(codes, key=_hindsight)[-3:] == [-signal.SIGABRT, 1, -signal.SIGTERM]
