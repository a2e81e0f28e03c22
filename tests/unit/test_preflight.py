"""The checks of a machine fail when they should, and say what to do."""

from pathlib import Path

import pytest

from pipeline import preflight
from pipeline.devices.inventory import Device
from pipeline.preflight import Verdict

CPU = [Device(kind="cpu", index=index, uuid=None, name="x", memory_total_bytes=1) for index in range(2)]
GPUS = [
    Device(kind="cuda", index=index, uuid=f"GPU-{index}", name="x", memory_total_bytes=1) for index in range(2)
]


def report(pid: int, **changed: object) -> dict[str, object]:
    seen = {"pid": pid, "device": "cpu", "visible": "", "visible_gpus": 0, "threads": 1, "tokens": 8, "text": "a"}
    return {**seen, "memory_bytes": 2**28, **changed}


def test_simple_checks_pass_here(tmp_path: Path) -> None:
    checks = [preflight.check_python(), preflight.check_packages(), preflight.check_store(tmp_path)]
    assert [check.verdict for check in checks] == [Verdict.PASS] * 3


def test_the_round_trip_covers_every_group_option() -> None:
    check = preflight.check_config()
    assert check.verdict is Verdict.PASS
    assert "group options" in check.detail


def test_a_missing_package_is_named_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "PACKAGES", ("torch", "no-such-package"))
    check = preflight.check_packages()
    assert check.verdict is Verdict.FAIL
    assert "no-such-package" in check.detail
    assert "pip install" in check.remedy


def test_an_old_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "MINIMUM_PYTHON", (99, 0))
    assert preflight.check_python().verdict is Verdict.FAIL


def test_a_folder_that_cannot_be_written_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check = preflight.check_store(tmp_path / "file")
    assert check.verdict is Verdict.FAIL
    assert "output_dir" in check.remedy


def test_workers_with_processes_of_their_own_pass() -> None:
    assert preflight._which_device(CPU, [report(1), report(2)]).verdict is Verdict.PASS


def test_workers_that_share_a_process_fail() -> None:
    assert preflight._which_device(CPU, [report(1), report(1)]).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("visible", "count", "verdict"),
    [
        (("GPU-0", "GPU-1"), 1, Verdict.PASS),
        (("GPU-0", "GPU-0"), 1, Verdict.FAIL),
        (("GPU-0", "GPU-1"), 2, Verdict.FAIL),
        (("GPU-0", "GPU-1"), 0, Verdict.FAIL),
    ],
    ids=["one each", "shared", "sees both", "sees none"],
)
def test_gpu_workers_must_each_see_one_gpu_of_their_own(
    visible: tuple[str, str], count: int, verdict: Verdict
) -> None:
    reports = [report(pid, visible=uuid, visible_gpus=count, device="X") for pid, uuid in enumerate(visible, 1)]
    assert preflight._which_device(GPUS, reports).verdict is verdict


def test_different_text_from_one_seed_is_a_warning() -> None:
    assert preflight._same_text([report(1), report(2, text="b")]).verdict is Verdict.WARN


def test_a_check_that_raises_has_failed_and_the_others_still_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken() -> preflight.Check:
        raise RuntimeError("no such driver")

    monkeypatch.setattr(preflight, "check_devices", broken)
    monkeypatch.setattr(preflight, "check_imports", preflight.check_python)
    monkeypatch.setattr(preflight, "check_generation", lambda: iter([]))
    checks = list(preflight.run_checks(tmp_path))
    assert [check.detail for check in checks if check.verdict is Verdict.FAIL] == ["RuntimeError: no such driver"]
    assert checks[-1].name == "store"
