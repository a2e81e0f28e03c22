"""Facts are read from where the system keeps them."""

import socket
from pathlib import Path

import pytest

from pipeline.commands.doctor import facts
from pipeline.commands.doctor.facts import TorchFacts, cpu_quota, memory_left, read_facts
from tests.doubles import fake_nvml


def test_limits_of_a_cgroup(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    assert memory_left(tmp_path) is None
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert cpu_quota(tmp_path) == 1.5
    assert memory_left(tmp_path) == 600


def test_a_cgroup_without_limits(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert cpu_quota(tmp_path) is None
    assert memory_left(tmp_path) is None


def test_the_facts_of_a_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(facts, "ask_torch", lambda: TorchFacts(version="2"))
    monkeypatch.setenv("PIPELINE_LEASE_DIR", str(tmp_path / "leases"))
    fake_nvml.use(monkeypatch, tmp_path, "two")
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        seen = read_facts(tmp_path / "outputs" / "not yet")
    assert (seen.driver, seen.driver_cuda) == ("570.86.15", (12, 8))
    assert len(seen.machine.devices) == 2
    assert "(pid " in seen.busy_ports[port]
    assert seen.torch.version == "2"
    assert seen.memory_bytes > 0
    assert all(free > 0 for free in seen.disks.values())


def test_a_driver_that_does_not_answer_is_a_fact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(facts, "ask_torch", TorchFacts)
    fake_nvml.use(monkeypatch, tmp_path, "mismatch")
    seen = read_facts(tmp_path)
    assert "does not answer" in seen.driver_error
    assert seen.driver_cuda is None
