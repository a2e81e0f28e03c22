"""A worker on a device that it shares: what it tells, and what it lets go of."""

from pathlib import Path
from typing import Any

from pipeline.engine.workers.messages import JobFinished, JobRaised, RunJob
from pipeline.engine.workers.runner import JobRunner


def order(tmp_path: Path, body: str, **changed: Any) -> RunJob:
    fields: dict[str, Any] = {
        "job_id": body, "attempt": 1, "key": "", "entry": f"{__name__}:{body}", "payload": {}, "inputs": {},
        "store": str(tmp_path / "store"), "scratch": str(tmp_path), "verified": str(tmp_path / "verified"),
        "log_path": str(tmp_path / "log.txt"),
    }  # fmt: skip
    return RunJob(**{**fields, **changed})


def says_what_it_takes(work: Any) -> None:
    work.memory["model"] = "weights"
    work.peak_mb, work.held_mb = 70, 30


def says_nothing(work: Any) -> None:
    pass


def tells_what_is_left(work: Any) -> None:
    work.peak_mb = len(work.memory)


def fails(work: Any) -> None:
    raise ValueError(f"shared: {work.shared}")


def test_what_a_job_says_goes_before_what_is_measured(tmp_path: Path) -> None:
    runner = JobRunner(lambda message: None, "cpu")
    said = runner.run(order(tmp_path, "says_what_it_takes", slots=2))
    assert isinstance(said, JobFinished)
    assert (said.peak_mb, said.held_mb) == (70, 30)
    silent = runner.run(order(tmp_path, "says_nothing", slots=2))
    assert isinstance(silent, JobFinished)
    assert (silent.peak_mb, silent.held_mb) == (None, 0)


def test_models_go_when_the_engine_says_so(tmp_path: Path) -> None:
    runner = JobRunner(lambda message: None, "cpu")
    runner.run(order(tmp_path, "says_what_it_takes"))
    kept = runner.run(order(tmp_path, "tells_what_is_left"))
    gone = runner.run(order(tmp_path, "tells_what_is_left", keep_models=False))
    assert isinstance(kept, JobFinished)
    assert isinstance(gone, JobFinished)
    assert (kept.peak_mb, gone.peak_mb) == (1, 0)


def test_a_job_knows_whether_others_run_beside_it(tmp_path: Path) -> None:
    told = JobRunner(lambda message: None, "cpu").run(order(tmp_path, "fails", shared=True, slots=2))
    assert isinstance(told, JobRaised)
    assert told.message.startswith("shared: True ")  # then where it was raised
    assert told.held_mb == 0
