"""The process that cleans up after an engine that is gone."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from pipeline.machine import descendants as reaper_module
from pipeline.machine.descendants import Reaper


def sleeper() -> subprocess.Popen[bytes]:
    """A process with a child, in a group of its own."""
    return subprocess.Popen(["sh", "-c", "sleep 3600 & sleep 3600"], process_group=0)


def test_what_is_registered_goes_and_what_was_forgotten_stays(tmp_path: Path) -> None:
    gone, kept = sleeper(), sleeper()
    for name in ("gone", "kept"):
        (tmp_path / name / "inside").mkdir(parents=True)
    reaper = Reaper()
    try:
        for process, name in ((gone, "gone"), (kept, "kept")):
            reaper.watch("group", process.pid)
            reaper.watch("path", str(tmp_path / name))
        reaper.forget("group", kept.pid)
        reaper.forget("path", str(tmp_path / "kept"))
        reaper.close()
        assert gone.wait(600) == -signal.SIGKILL
        assert kept.poll() is None
        assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    finally:
        for process in (gone, kept):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_without_its_reaper_the_engine_cleans_up_itself(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper_module, "_PATIENCE_S", 0.05)
    process, reaper = sleeper(), Reaper()
    os.kill(reaper.pid, number)
    try:
        reaper.watch("group", process.pid)
        for name in ("gone", "kept"):
            (tmp_path / name / "inside").mkdir(parents=True)
            reaper.watch("path", str(tmp_path / name))
        reaper.forget("path", str(tmp_path / "kept"))
        reaper.close()
        assert process.wait(600) == -signal.SIGKILL
        assert [path.name for path in tmp_path.iterdir()] == ["kept"]
        assert not psutil.pid_exists(reaper.pid)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.kill(reaper.pid, signal.SIGKILL)


def test_a_stopped_reaper_that_reads_nothing_does_not_hold_up_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper_module, "_PATIENCE_S", 0.05)
    reaper = Reaper()
    os.kill(reaper.pid, signal.SIGSTOP)
    path = Path("/none") / ("x" * 4000)
    for _ in range(50):  # 400 kB, several times what a pipe holds
        reaper.watch("path", str(path))
        reaper.forget("path", str(path))
    reaper.close()
    assert not psutil.pid_exists(reaper.pid)
