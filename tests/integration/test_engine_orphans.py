"""The engine itself is killed: nothing it started and nothing unfinished may stay behind."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from pathlib import Path
from pipeline.config.schema import Backend
from tests.doubles.engine import Engine, job
root, flag, backend = sys.argv[1:]
payload = {"flag": flag}
Engine(Path(root)).run(job("quick"), job("slow", "leave_grandchild", payload=payload), backend=Backend[backend])
"""


@pytest.fixture
def killed_at() -> Iterator[list[psutil.Process]]:
    """Processes that a failing test would leave behind."""
    family: list[psutil.Process] = []
    yield family
    for one in family:
        with suppress(psutil.NoSuchProcess):  # nor is it one that has its number by now
            one.kill()


def start_engine(root: Path, flag: Path, backend: str = "local") -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(root), str(flag), backend],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )


def until(condition: object, timeout_s: float = 200.0) -> bool:
    give_up, pause = time.monotonic() + timeout_s, threading.Event()
    while not condition():  # type: ignore[operator]
        if time.monotonic() > give_up:
            return False
        pause.wait(0.02)
    return True


def lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def described(process: psutil.Process) -> str:
    """What a process is, and where the kernel has it wait."""
    waits = Path(f"/proc/{process.pid}/wchan").read_text()
    return f"{process.cmdline()}, {process.status()}, child of {process.ppid()}, in {waits}"


# SIGINT has a test of its own below, and what SIGTERM and SIGHUP do to a run is seen by `test_engine_faults`.
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        *(
            pytest.param(one, marks=pytest.mark.exhaustive)
            for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
        ),
    ],
    ids=str,
)
def test_nothing_outlives_an_engine_that_is_killed(
    tmp_path: Path, killed_at: list[psutil.Process], number: signal.Signals
) -> None:
    flag = tmp_path / "flag"
    engine = start_engine(tmp_path / "run", flag)
    try:
        assert until(lambda: flag.exists() and flag.read_text())
        family = psutil.Process(engine.pid).children(recursive=True)
        pids = json.loads(flag.read_text())  # a worker and its descendants, two of which have left its session
        assert set(pids) <= {one.pid for one in family}
        assert len(family) == 6  # with the other worker and the reaper
        killed_at += family
        scratch = tmp_path / "run" / "store" / ".tmp"
        assert list(scratch.iterdir())
    finally:
        engine.send_signal(number)
        engine.wait()
    assert until(lambda: not any(map(lives, family))), list(map(described, filter(lives, family)))
    assert until(lambda: not list(scratch.iterdir()))
    killed_at.clear()


def test_a_ctrl_c_at_the_terminal_reaches_neither_workers_nor_reaper(
    tmp_path: Path, killed_at: list[psutil.Process]
) -> None:
    # The terminal signals the whole foreground group, which is that of the engine.
    flag = tmp_path / "flag"
    engine = start_engine(tmp_path / "run", flag)
    try:
        assert until(lambda: flag.exists() and flag.read_text())
        family = psutil.Process(engine.pid).children(recursive=True)
        killed_at += family
        assert all(os.getpgid(child.pid) != engine.pid for child in family)
    finally:
        os.killpg(engine.pid, signal.SIGINT)
        engine.wait()
    assert until(lambda: not any(map(lives, family)))
    killed_at.clear()


def test_workers_end_by_themselves_where_the_reaper_is_gone_too(
    tmp_path: Path, killed_at: list[psutil.Process]
) -> None:
    flag = tmp_path / "flag"
    engine = start_engine(tmp_path / "run", flag)
    try:
        assert until(lambda: flag.exists() and flag.read_text())
        children = psutil.Process(engine.pid).children()
        killed_at += psutil.Process(engine.pid).children(recursive=True)
        reaper = next(
            child for child in children if any(part.endswith("descendants.py") for part in child.cmdline())
        )
        reaper.kill()
    finally:
        engine.kill()
        engine.wait()
    assert until(lambda: not any(map(lives, children)))


def test_an_inline_run_that_is_killed_leaves_no_unfinished_output(
    tmp_path: Path, killed_at: list[psutil.Process]
) -> None:
    flag = tmp_path / "flag"
    engine = start_engine(tmp_path / "run", flag, "inline")
    try:
        assert until(lambda: flag.exists() and flag.read_text())
        killed_at += psutil.Process(engine.pid).children(recursive=True)
    finally:
        engine.kill()
        engine.wait()
    assert until(lambda: not list((tmp_path / "run" / "store" / ".tmp").iterdir()))
