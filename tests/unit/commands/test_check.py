"""The doctor: what it says of machines, limits and workers; how checks end, and that each runs."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.commands import check as doctor
from pipeline.engine.devices.inventory import Device, find_gpus
from pipeline.engine.devices.select import LeaseSet
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.state import JobStatus
from pipeline.terminal.console import Verdict
from tests.doubles import fake_nvml

GIB = 2**30
MASK = "CUDA_VISIBLE_DEVICES"
PASS, WARN, FAIL = Verdict
CPU, GPUS = (
    [Device(kind=kind, index=at, uuid=f"GPU-{at}", name="x", memory_total_bytes=1) for at in range(2)]
    for kind in ("cpu", "cuda")
)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Limits and batch jobs of this machine are other tests'."""
    monkeypatch.setenv("PIPELINE_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.delenv(MASK, raising=False)
    monkeypatch.setattr(doctor, "limits", lambda *_: iter(()))
    monkeypatch.setattr(doctor, "slurm_checks", lambda *_, **__: [])
    monkeypatch.setattr(doctor, "_SHM", tmp_path / "none")


def complaints(**torch: Any) -> dict[str, tuple[Verdict, str]]:
    """Name -> verdict and text of every check of the machine that did not pass."""
    said = {"version": "2.13.0+cu128", "cuda": "12.8", "available": True, "count": 2, "error": "", **torch}
    checks = [*doctor.machine_checks(torch if "failure" in torch else {"transformers": "5", **said})]
    assert all(bool(check.remedy) == (check.verdict is not PASS) for check in checks)
    return {
        check.name: (check.verdict, f"{check.detail} | {check.remedy}")
        for check in checks
        if check.verdict is not PASS
    }


@pytest.mark.parametrize(
    ("machine", "mask", "torch", "name", "verdict", "says"),
    [
        ("one", None, {"count": 1}, "", PASS, ""),
        ("two", None, {}, "", PASS, ""),
        ("two", "1", {"count": 1}, "", PASS, ""),
        ("two", None, {"cuda": None}, "torch and driver", FAIL, "built without CUDA"),
        ("two", None, {"available": False, "error": "too old"}, "torch and driver", FAIL, "12.8) too old"),
        ("two", None, {"count": 1}, "torch and driver", FAIL, "NVML 2"),
        ("two", None, {"failure": "ImportError: libcudart"}, "imports", FAIL, "libcudart"),
        ("two", "", {}, MASK, WARN, "hides all 2 GPUs"),
        ("two", "0,7", {}, MASK, FAIL, "7"),
        ("mig", "0", {}, MASK, FAIL, "in MIG mode"),
        ("busy", None, {"count": 4}, "GPU memory", WARN, "distributed.gpu_ids=[0,2]"),
        ("lost", None, {}, "driver", WARN, "GPU 1: GPU is lost"),
        ("mismatch", None, {}, "driver", FAIL, "nvidia-smi"),
    ],
)
def test_what_is_wrong_with_a_machine(
    machine: str | dict[str, Any],
    mask: str | None,
    torch: dict[str, Any],
    name: str,
    verdict: Verdict,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    fake_nvml.use(monkeypatch, tmp_path, machine)
    if mask is not None:
        monkeypatch.setenv(MASK, mask)
    found = complaints(**torch)
    assert list(found) == ([name] if name else [])
    if name:
        assert found[name][0] is verdict
        assert says in found[name][1]


def test_gpus_that_runs_hold_may_be_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_nvml.use(monkeypatch, tmp_path, "busy")
    with LeaseSet.acquire([gpu for gpu in find_gpus() if gpu.index in (1, 3)], experiment="a"):
        assert complaints(count=4) == {}


def test_limits_of_a_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def verdicts(available: int = 64 * GIB) -> list[Verdict]:
        return [check.verdict for check in doctor.limits(tmp_path, 16, available)]

    assert verdicts() == [PASS, PASS]
    assert verdicts(GIB // 2) == [PASS, WARN]
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text(f"{GIB}\n")
    assert verdicts() == [PASS, PASS]
    (tmp_path / "cpu.max").write_text("400000 100000\n")
    (tmp_path / "memory.max").write_text(f"{7 * GIB}\n")
    assert verdicts() == [WARN, WARN]
    (tmp_path / "memory.max").write_text(f"{60 * GIB}\n")
    assert verdicts() == [WARN, PASS]


def report(pid: int, **changed: object) -> dict[str, object]:
    seen = {"pid": pid, "device": "cpu", "visible": "", "visible_gpus": 0, "threads": 1, "tokens": 8, "text": "a"}
    return {**seen, **changed}


@pytest.mark.parametrize(
    ("visible", "count", "verdict"),
    [
        (("GPU-0", "GPU-1"), 1, PASS),
        (("GPU-0", "GPU-0"), 1, FAIL),
        (("GPU-0", "GPU-1"), 2, FAIL),
        (("GPU-0", "GPU-1"), 0, FAIL),
    ],
    ids=["one each", "shared", "sees both", "sees none"],
)
def test_workers_must_have_processes_and_gpus_of_their_own(
    visible: tuple[str, str], count: int, verdict: Verdict
) -> None:
    reports = [report(pid, visible=uuid, visible_gpus=count, device="X") for pid, uuid in enumerate(visible, 1)]
    assert doctor.which_device(GPUS, reports).verdict is verdict
    assert doctor.which_device(CPU, [report(1), report(2)]).verdict is PASS
    assert doctor.which_device(CPU, [report(1), report(1)]).verdict is FAIL


def test_different_text_from_one_seed_is_a_warning() -> None:
    assert doctor.same_text([report(1), report(2, text="b")]).verdict is WARN


@pytest.mark.parametrize(
    ("outcome", "detail"),
    [
        ({"interrupted": "SIGTERM"}, "SIGTERM came before it was done"),
        ({"reasons": {"probe/0": "no memory"}}, "1 of 1 workers failed: no memory"),
    ],
    ids=["interrupted", "failed"],
)
def test_a_check_that_was_interrupted_blames_no_worker(
    outcome: dict[str, Any], detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Outcome(jobs={"probe/0": JobStatus.failed}, **outcome)
    monkeypatch.setattr(doctor, "run_jobs", lambda *_, **__: ended)
    (said,) = doctor.check_generation(workers=1)
    assert (said.verdict, said.detail) == (FAIL, detail)


def test_a_check_that_raises_fails_by_itself_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken() -> dict[str, Any]:
        raise OSError("/proc is not mounted")

    monkeypatch.setattr(doctor, "ask_torch", broken)
    monkeypatch.setattr(doctor, "check_generation", lambda: iter(()))
    (tmp_path / "file").write_text("")
    found = {check.name: check for check in doctor.run_checks(tmp_path / "file")}
    assert [name for name, check in found.items() if check.verdict is FAIL] == ["machine", "store"]
    assert found["machine"].detail == "OSError: /proc is not mounted"
    assert "output_dir" in found["store"].remedy


def test_the_script_takes_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.script(["--nonsense", "3"]) == 2
    assert "--nonsense 3: it takes no arguments" in capsys.readouterr().err
