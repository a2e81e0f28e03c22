"""How long jobs took: a line for each that finished, which a crash or a full disk costs at most its last line."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.run_jobs import Timing, Timings, read_timings
from pipeline.plan.graph import Job, Plan

JOB = Job(id="addition/tiny/s0/PITA/r2/train", key="k", entry="m:f", payload={}, algo="PITA", dataset="addition",
          model="tiny", seed=0, round=2, stage="train")  # fmt: skip
BEGUN: list[dict[str, Any]] = [
    {"event": "WorkerStarted", "time": 90.0, "worker": 1, "pid": 7, "device": "cpu slot 1"},
    {"event": "JobStarted", "time": 100.0, "job": JOB.id, "attempt": 1, "worker": 1},
    {"event": "AttemptFailed", "time": 101.0, "job": JOB.id, "attempt": 1, "worker": 1},
    {"event": "JobStarted", "time": 200.0, "job": JOB.id, "attempt": 2, "worker": 1},
]
FINISHED: dict[str, Any] = {
    "event": "JobFinished", "time": 205.0, "job": JOB.id, "attempt": 2, "worker": 1,
    "load_s": 1.0, "run_s": 5.0, "samples": 20, "tokens": 4000,
}  # fmt: skip


def written(path: Path, *finished: dict[str, Any]) -> Timings:
    timings = Timings(path, Plan([JOB], []))
    for event in (*BEGUN, *finished):
        timings.take(event)
    timings.close()
    return timings


def test_a_job_that_finished_has_a_line_and_a_failed_attempt_has_none(tmp_path: Path) -> None:
    written(tmp_path / "t.jsonl", FINISHED)
    (line,) = (tmp_path / "t.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "job": JOB.id, "chain": "addition/tiny/s0/PITA", "stage": "train", "round": 2, "attempt": 2,
        "worker": 1, "device": "cpu slot 1", "started": 200.0, "seconds": 5.0, "load_s": 1.0,
        "samples": 20, "tokens": 4000, "samples_per_s": 5.0, "tokens_per_s": 1000.0,
    }  # fmt: skip
    assert list(read_timings(tmp_path / "t.jsonl")) == [Timing(**json.loads(line))]


def test_lines_that_are_none_cost_nothing_else(tmp_path: Path) -> None:
    """The last line of a killed engine, and what anybody has put there."""
    path = tmp_path / "t.jsonl"
    written(path, FINISHED)
    whole = path.read_bytes()
    path.write_bytes(b'{"job": 1}\nx\n' + whole + whole[:40])
    assert [timing.job for timing in read_timings(path)] == [JOB.id]


def test_what_cannot_be_written_is_said_once_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pipeline"):
        written(tmp_path / "nowhere" / "t.jsonl", FINISHED, FINISHED)
    (said,) = caplog.messages
    assert "t.jsonl cannot be written, so that how long jobs took is not kept" in said
