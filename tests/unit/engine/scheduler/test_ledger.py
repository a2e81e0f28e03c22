"""What a run writes down, and what it tells of that."""

import errno
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.events import Event
from pipeline.engine.journal import Journal, read_journal
from pipeline.engine.scheduler.ledger import RunAccount


def test_who_watches_is_told_what_is_on_disk_and_nothing_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, told = tmp_path / "journal.jsonl", list[Event]()
    with closing(Journal(path)) as journal:
        account = RunAccount(journal, lambda: 0.0, told.append)
        account.write("JobStarted", job="a", attempt=1, worker=0)
        assert told == list(read_journal(path))

        def full(_descriptor: int) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        account.write("JobFinished", job="a", attempt=1, worker=0)
    assert "No space left" in account.broken
    assert [event["event"] for event in told] == ["JobStarted"] == [event["event"] for event in read_journal(path)]


def test_a_worker_that_is_started_is_told_and_not_written(tmp_path: Path) -> None:
    path, told = tmp_path / "journal.jsonl", list[Event]()
    with closing(Journal(path)) as journal:
        RunAccount(journal, lambda: 0.0, told.append).worker_started(3)
    assert told == [{"event": "WorkerStarting", "worker": 3}]
    assert not list(read_journal(path))
