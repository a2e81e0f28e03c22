"""The process that cleans up after an engine that is gone."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pipeline.machine import descendants
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
            reaper.watch_group(process.pid)
            reaper.watch_path(tmp_path / name)
        reaper.forget_group(kept.pid)
        reaper.forget_path(tmp_path / "kept")
        reaper.close()
        assert gone.wait(600) == -signal.SIGKILL
        assert kept.poll() is None
        assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    finally:
        for process in (gone, kept):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is not told when a process began")
def test_a_group_whose_number_has_gone_to_another_is_left_alone() -> None:
    """As that of a worker that died with its engine may have, until a reaper gets the processor."""
    other = subprocess.Popen(["sleep", "3600"], process_group=0)
    try:
        began = descendants.began(other.pid)
        assert began is not None
        reaper_module.clean({("group", other.pid): began - 1})
        other.terminate()
        assert other.wait(600) == -signal.SIGTERM
    finally:
        other.kill()
        other.wait()


def test_it_is_out_of_reach_of_the_terminal_and_ends_with_the_engine() -> None:
    reaper = Reaper()
    assert os.getsid(reaper.pid) != os.getsid(0)
    reaper.watch_path(Path("/no/such/folder"))
    os.kill(reaper.pid, signal.SIGTERM)  # ignored, or not yet set up: then it ends, which is noticed below
    reaper.close()
    assert not psutil.pid_exists(reaper.pid)


def ignores(pid: int, number: signal.Signals) -> bool:
    told = Path(f"/proc/{pid}/status").read_text()
    (mask,) = re.findall(r"SigIgn:\s*(\w+)", told)
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_without_its_reaper_the_engine_cleans_up_itself(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper_module, "_PATIENCE_S", 0.05)
    process, reaper = sleeper(), Reaper()
    os.kill(reaper.pid, number)
    try:
        reaper.watch_group(process.pid)
        for name in ("gone", "kept"):
            (tmp_path / name / "inside").mkdir(parents=True)
            reaper.watch_path(tmp_path / name)
        reaper.forget_path(tmp_path / "kept")
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
        reaper.watch_path(path)
        reaper.forget_path(path)
    reaper.close()
    assert not psutil.pid_exists(reaper.pid)
