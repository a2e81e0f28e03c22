"""Whether the engine of a run lives, from what anyone can see of it."""

import fcntl
import os
import socket
from pathlib import Path

import pytest

from pipeline.runs.loaded import LoadedRun
from tests.doubles.runs import START, WrittenRun, chain_plan


def written(tmp_path: Path) -> WrittenRun:
    run = WrittenRun(tmp_path, chain_plan())
    run.worker(0, "gpu 7")
    return run


def test_the_lock_on_the_journal_tells_whether_the_engine_lives(tmp_path: Path) -> None:
    run = written(tmp_path)
    with run.folder.journal.open("ab") as engine:
        fcntl.flock(engine, fcntl.LOCK_EX)
        assert LoadedRun(run.folder).state == "running"
    assert LoadedRun(run.folder).state == "killed"


def test_without_a_journal_a_run_is_about_to_start_or_never_did(tmp_path: Path) -> None:
    run = written(tmp_path)
    run.folder.journal.unlink()
    assert LoadedRun(run.folder).state == "running"
    os.utime(run.folder.path, (START, START))
    assert LoadedRun(run.folder).state == "not started"
    run.folder.journal.touch()
    os.utime(run.folder.path, (START, START))
    assert LoadedRun(run.folder).state == "not started"


def test_looking_at_a_run_does_not_keep_its_engine_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = written(tmp_path)
    run.folder.journal.write_text("")
    monkeypatch.setattr(fcntl, "flock", None)
    assert LoadedRun(run.folder).state == "running"


@pytest.mark.parametrize(
    ("host", "pid", "at", "state"),
    [
        ("here", "me", 4_000_000_000.0, "running"),
        ("here", "me", 1.0, "killed"),
        ("here", "nobody", 4_000_000_000.0, "killed"),
        ("elsewhere", "me", 4_000_000_000.0, "unknown"),
    ],
    ids=["lives", "its number was given again", "gone", "other machine"],
)
def test_where_files_have_no_locks_the_process_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, pid: str, at: float, state: str
) -> None:
    run = written(tmp_path)
    run.now = at
    known = {"here": socket.gethostname(), "elsewhere": "elsewhere"}[host]
    run.write("RunStarted", jobs=6, unsettled=6, pid=os.getpid() if pid == "me" else 2**22 + 1, host=known)

    def no_locks(*_: object) -> None:
        raise OSError(95, "not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert LoadedRun(run.folder).state == state
