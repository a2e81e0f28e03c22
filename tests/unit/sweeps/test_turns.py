"""Who has the lock of a sweep, as those are told who wait for it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.locks import lock
from pipeline.sweeps import record
from pipeline.sweeps.record import one_turn

HOLDER = """
import os, signal, sys
from pathlib import Path
from pipeline.sweeps.record import one_turn
with one_turn(Path(sys.argv[1]), print):
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@contextmanager
def stopped_holder(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)])
    try:
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
        yield holder
    finally:
        holder.kill()
        holder.wait()


@pytest.mark.parametrize("advice", ["kill -CONT", "kill -9"])
def test_who_waits_for_a_stopped_holder_is_told_who_it_is_and_what_helps(
    advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "_PATIENCE_S", 0.0)
    numbers = {"kill -CONT": signal.SIGCONT, "kill -9": signal.SIGKILL}
    said: list[str] = []

    def follow(text: str) -> None:
        said.append(text)
        if found := re.search(f"`{advice} ([0-9]+)`", text):
            os.kill(int(found[1]), numbers[advice])

    with stopped_holder(tmp_path / "lock") as holder, one_turn(tmp_path / "lock", follow) as has_locks:
        assert has_locks
    assert len(said) == 1
    assert re.match(rf"waiting for the sweep: process {holder.pid} on \S+ has had its lock since \d\d:", said[0])


def test_a_lock_that_changes_hands_is_no_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many agents has its turn, and the file may say nothing, or be that of an earlier version."""
    monkeypatch.setattr(record, "_PATIENCE_S", 0.0)
    path, said = tmp_path / "lock", list[str]()
    others = iter(["", "{", *(f'{{"pid": {pid}, "host": "h", "since": 1.0}}' for pid in range(1, 4))])

    def busy(descriptor: int, **options: bool) -> bool:
        if (other := next(others, None)) is None:
            return lock(descriptor, **options)
        path.write_text(other)
        return False

    monkeypatch.setattr(record, "lock", busy)
    with one_turn(path, said.append):
        pass
    assert said == []
