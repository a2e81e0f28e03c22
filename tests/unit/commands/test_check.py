"""The doctor runs every check, whatever the others do, and says how they ended."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline.commands import check as preflight
from pipeline.commands.machine import Facts, TorchFacts
from pipeline.engine.devices.inventory import Device
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.state import JobStatus
from pipeline.terminal.console import Check, Verdict, passed
from pipeline.terminal.streams import LastingFile, LastingStream

CPU = [Device(kind="cpu", index=index, uuid=None, name="x", memory_total_bytes=1) for index in range(2)]
GPUS = [
    Device(kind="cuda", index=index, uuid=f"GPU-{index}", name="x", memory_total_bytes=1) for index in range(2)
]


def report(pid: int, **changed: object) -> dict[str, object]:
    seen = {"pid": pid, "device": "cpu", "visible": "", "visible_gpus": 0, "threads": 1, "tokens": 8, "text": "a"}
    return {**seen, "memory_bytes": 2**28, **changed}


def test_simple_checks_pass_here(tmp_path: Path) -> None:
    checks = [preflight.check_python(), preflight.check_store(tmp_path)]
    assert [check.verdict for check in checks] == [Verdict.PASS] * 2


def test_an_old_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "MINIMUM_PYTHON", (99, 0))
    assert preflight.check_python().verdict is Verdict.FAIL


def test_torch_that_cannot_be_imported_fails() -> None:
    check = preflight.check_imports(TorchFacts(failure="ImportError: libgomp"))
    assert check.verdict is Verdict.FAIL
    assert "libgomp" in check.detail


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


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the checks that take time."""
    monkeypatch.setattr(preflight, "read_facts", lambda: Facts(memory_bytes=2**34))
    monkeypatch.setattr(preflight, "check_imports", lambda _: preflight.check_python())
    monkeypatch.setattr(preflight, "check_config", preflight.check_python)
    monkeypatch.setattr(preflight, "check_generation", lambda: iter([]))
    monkeypatch.setattr(preflight, "check_arithmetic", lambda: iter([]))


@pytest.mark.usefixtures("quick")
def test_facts_that_cannot_be_read_fail_by_themselves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken() -> Facts:
        raise OSError("/proc is not mounted")

    monkeypatch.setattr(preflight, "read_facts", broken)
    failed = [check for check in preflight.run_checks(tmp_path) if check.verdict is Verdict.FAIL]
    assert [(check.name, check.detail) for check in failed] == [("machine", "OSError: /proc is not mounted")]


def test_the_exit_code_tells_whether_anything_failed(capsys: pytest.CaptureFixture[str]) -> None:
    good, odd = Check("a", Verdict.PASS, "b"), Check("c", Verdict.WARN, "d", "e")
    assert preflight.print_checks([good, odd], "Ready.") == 0
    assert "1 passed, 1 warned, 0 failed. Ready." in capsys.readouterr().out
    assert preflight.print_checks([good, Check("f", Verdict.FAIL, "g", "h")], "Ready.") == 1
    shown = capsys.readouterr().out
    assert "FAIL  f: g\n      try: h\n" in shown
    assert "Ready." not in shown


@pytest.mark.parametrize(
    ("terminal", "lines"),
    [(False, ["WARN  GPU [0]: a few words about it"]), (True, ["WARN  GPU [0]: a", "      few words about it"])],
)
def test_on_a_terminal_what_was_seen_is_broken_between_words(terminal: bool, lines: list[str]) -> None:
    console = Console(file=io.StringIO(), width=24, force_terminal=terminal)
    check = Check("GPU [0]", Verdict.WARN, "a few words about it", "a remedy")
    assert [line.plain for line in preflight.check_lines(check, console)] == lines


def test_checks_that_nobody_could_see_did_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preflight, "run_checks", lambda _: iter([passed("python", "fine")]))
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", LastingStream(LastingFile(full.fileno()), "utf-8"))
        assert preflight.main(tmp_path) == 1
    assert "standard output could not be written: No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("outcome", "detail", "remedy"),
    [
        ({"interrupted": "SIGTERM"}, "SIGTERM came before it was done", "run this again"),
        (
            {"reasons": {"probe/0": "no memory"}},
            "1 of 1 workers failed: no memory",
            "the reason above says what to repair",
        ),
    ],
    ids=["interrupted", "failed"],
)
def test_a_check_that_was_interrupted_blames_no_worker(
    outcome: dict[str, Any], detail: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Outcome(jobs={"probe/0": JobStatus.failed}, **outcome)
    monkeypatch.setattr(preflight, "run_jobs", lambda *_, **__: ended)
    (said,) = preflight.check_generation(workers=1)
    assert said == Check("parallel generation", Verdict.FAIL, detail, remedy)
