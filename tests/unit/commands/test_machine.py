"""Facts are read from where the system keeps them, and a table of machines has what the doctor says of each."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.commands import machine as module
from pipeline.commands.machine import Facts, TorchFacts, cpu_quota, machine_checks, memory_left, read_facts
from pipeline.engine.devices.inventory import Machine, read_machine
from pipeline.terminal.console import Verdict
from tests.doubles import fake_nvml

GIB = 2**30
TORCH = {"version": "2.13.0+cu128", "cuda": "12.8", "available": True}
UUIDS = tuple(f"{index:08x}-aaaa-bbbb-cccc-000000000000" for index in range(8))


def facts(machine: Machine, **changed: Any) -> Facts:
    """A machine on which all is well, but for what is changed."""
    count = len(machine.devices)
    torch = TorchFacts(**{**TORCH, "count": count, **changed.pop("torch", {})})
    fine: dict[str, Any] = {
        "machine": machine,
        "driver": "570.86.15 (CUDA up to 12.8)",
        "nodes": [f"/dev/nvidia{index}" for index in range(len(machine.uuids))],
        "torch": torch,
        "cores": 16,
        "memory_bytes": 64 * GIB,
        "shm_bytes": 32 * GIB,
    }
    return Facts(**{**fine, **changed})


def complaints(seen: Facts) -> dict[str, tuple[Verdict, str]]:
    """Name -> verdict and text of every check that did not pass."""
    checks = [*machine_checks(seen)]
    assert all(check.remedy for check in checks if check.verdict is not Verdict.PASS)
    assert not any(check.remedy for check in checks if check.verdict is Verdict.PASS)
    return {
        check.name: (check.verdict, f"{check.detail} | {check.remedy}")
        for check in checks
        if check.verdict is not Verdict.PASS
    }


def described(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str | dict[str, Any]) -> Machine:
    fake_nvml.use(monkeypatch, folder, name)
    return read_machine()


@pytest.mark.parametrize("name", ["one", "two", "eight"])
def test_machines_on_which_all_is_well(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert complaints(facts(described(monkeypatch, tmp_path, name))) == {}


def test_a_machine_without_gpus() -> None:
    assert complaints(facts(Machine(), driver="", torch={"cuda": None, "available": False})) == {}


WARN, FAIL = Verdict.WARN, Verdict.FAIL
MASK = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("changed", "name", "verdict", "says"),
    [
        # The driver, and torch beside it.
        ({"torch": {"cuda": None}}, "torch and driver", FAIL, "built without CUDA, but there are 2 GPUs"),
        (
            {"torch": {"cuda": "13.0", "available": False, "error": "driver too old (found 12080)"}},
            "torch and driver",
            FAIL,
            "(CUDA up to 12.8): driver too old (found 12080) | update the driver",
        ),
        ({"torch": {"available": False}}, "torch and driver", FAIL, "cannot use them"),
        ({"torch": {"count": 1}}, "torch and driver", FAIL, "sees 1 GPUs, NVML 2"),
        ({"torch": {"failure": "ImportError: libcudart"}}, "torch and driver", FAIL, "libcudart"),
        # Masks.
        ({"environment": {MASK: ""}}, MASK, WARN, "hides all 2 GPUs | `unset"),
        ({"environment": {MASK: "0,7"}}, MASK, FAIL, "'7' names no GPU of this machine"),
        ({"environment": {MASK: "0,0"}}, MASK, FAIL, "given twice"),
        ({"environment": {MASK: "all"}}, MASK, FAIL, "'all' names no GPU"),
        ({"environment": {MASK: "GPU-ffff"}}, MASK, FAIL, "'GPU-ffff' names no GPU"),
        # Limits of the machine.
        ({"cpu_quota": 4.0}, "CPU limit", WARN, "16 cores are shown, but the cgroup allows the time of 4"),
        (
            {"memory_limit_bytes": 6 * GIB},
            "memory limit",
            WARN,
            "6.0 GiB can be taken, by the limit of the cgroup",
        ),
        ({"memory_bytes": GIB // 2}, "memory limit", WARN, "0.5 GiB can be taken, by the limit of the machine"),
        ({"shm_bytes": 64 * 2**20}, "/dev/shm", WARN, "0.06 GiB: data loaders with num_workers > 0 die"),
    ],
)
def test_what_is_wrong_with_a_machine_of_two_gpus(
    changed: dict[str, Any],
    name: str,
    verdict: Verdict,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    found = complaints(facts(described(monkeypatch, tmp_path, "two"), **changed))
    assert list(found) == [name]
    assert found[name][0] is verdict
    assert says in found[name][1]


@pytest.mark.parametrize(
    "changed",
    [
        {"environment": {MASK: "1"}, "torch": {"count": 1}},
        {"cpu_quota": 16.0},
        {"memory_limit_bytes": 60 * GIB},
        {"held": {f"GPU-{UUIDS[0]}": "'a' (pid 7 since 12:00)"}},
    ],
)
def test_what_is_odd_but_well(changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert complaints(facts(described(monkeypatch, tmp_path, "two"), **changed)) == {}


def test_gpus_that_others_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = described(monkeypatch, tmp_path, "busy")
    verdict, text = complaints(facts(machine))["GPU memory"]
    assert verdict is WARN
    assert "GPU 1: 93% in use" in text
    assert "by processes 101, 102" in text
    assert "distributed.gpu_ids=[0,2]" in text
    held = {f"GPU-{UUIDS[index]}": "'a' (pid 101 since 12:00)" for index in (1, 3)}
    assert complaints(facts(machine, held=held)) == {}


def test_a_mask_that_names_a_split_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = described(monkeypatch, tmp_path, "mig")
    found = complaints(facts(machine, environment={MASK: "0"}))
    assert "in MIG mode" in found[MASK][1]


def test_a_gpu_that_fell_off_the_bus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = described(monkeypatch, tmp_path, "lost")
    found = complaints(facts(machine))
    assert found["driver"][0] is WARN
    assert "GPU 1: GPU is lost" in found["driver"][1]


def test_a_driver_that_does_not_answer() -> None:
    found = complaints(facts(Machine(), driver_error="the NVIDIA driver does not answer: mismatch"))
    assert found["driver"][0] is FAIL
    assert "reboot" in found["driver"][1]


def test_a_container_without_the_library() -> None:
    found = complaints(facts(Machine(), nodes=["/dev/nvidia0"]))
    assert "libnvidia-ml.so.1 is not | start the container with --gpus all" in found["driver"][1]


# -- facts -------------------------------------------------------------------------------------------------------


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
    monkeypatch.setattr(module, "ask_torch", lambda: TorchFacts(version="2"))
    monkeypatch.setenv("PIPELINE_LEASE_DIR", str(tmp_path / "leases"))
    fake_nvml.use(monkeypatch, tmp_path, "two")
    seen = read_facts()
    assert seen.driver == "570.86.15 (CUDA up to 12.8)"
    assert len(seen.machine.devices) == 2
    assert seen.torch.version == "2"
    assert seen.memory_bytes > 0


def test_a_driver_that_does_not_answer_is_a_fact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "ask_torch", TorchFacts)
    fake_nvml.use(monkeypatch, tmp_path, "mismatch")
    seen = read_facts()
    assert "does not answer" in seen.driver_error
