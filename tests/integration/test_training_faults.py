"""Trainings that are killed or stopped end in the bytes of one that ran through."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import JobStopped
from tests.doubles.forked import Start, forked
from tests.doubles.training import MOMENTS, STEPS, TRAININGS, run_training


@pytest.fixture(scope="module")
def processes() -> Iterator[Start]:
    """Child processes that have torch loaded when they start."""
    with forked("tests.doubles.training") as start:
        yield start


def attempt(processes: Start, *args: Any, **settings: Any) -> int | None:
    """One attempt at a training in a process of its own; its exit code."""
    process = processes(run_training, *args, **settings)
    process.join(600)
    return process.exitcode


@pytest.fixture(scope="module")
def calm(processes: Start, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What each training writes when nothing happens to it."""
    root = tmp_path_factory.mktemp("calm")
    for kind in TRAININGS:
        assert attempt(processes, kind, root / kind, root / f"{kind}.c", every_steps=0) == 0
        assert not (root / f"{kind}.c").exists()
    return {kind: files(root / kind) for kind in TRAININGS}


def files(folder: Path) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(json.loads(found["training.json"])["loss"]) == STEPS
    assert "model.safetensors" in found
    assert found["metrics.jsonl"].count(b"\n") == STEPS
    return found


SAVED_BEFORE = {
    "after a step": 4,
    "in a step": 4,
    "saving: before anything": 4,
    "saving: half of the tensors": 4,
    "saving: before the rename": 4,
    "saving: after the rename": 6,
    "saving: an older one half removed": 6,
}
"""Where the next attempt goes on when a training that saves every second step dies at step 6."""


# Each training saves and goes on by the same code.
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_training_ends_in_the_same_bytes(
    processes: Start, calm: dict[str, dict[str, bytes]], tmp_path: Path, moment: str
) -> None:
    kind = "value of tokens"
    out, checkpoints = tmp_path / "out", tmp_path / "checkpoints"
    assert attempt(processes, kind, out, checkpoints, moment, 6) == -signal.SIGKILL
    assert not out.exists()
    assert attempt(processes, kind, out, checkpoints) == 0
    resumed, ended = out.with_suffix(".log").read_text().splitlines()
    assert resumed == f"going on from the checkpoint of step {SAVED_BEFORE[moment]}"
    assert ended.startswith(f"{kind}: step 9/9, loss ")
    assert files(out) == calm[kind]
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000008"]


@pytest.mark.parametrize("kind", TRAININGS)
def test_a_training_that_is_stopped_ends_in_the_same_bytes(
    calm: dict[str, dict[str, bytes]], tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after 1 step, after 3 more, after 2: in this process, whose generators are used meanwhile."""
    out, checkpoints = tmp_path / "out", tmp_path / "checkpoints"
    monkeypatch.setattr("sys.stdout", None)  # put back afterwards: each attempt sets its own
    for asked in (1, 3, 2):
        left = iter([False] * (asked - 1))
        with pytest.raises(JobStopped):
            run_training(kind, out, checkpoints, every_steps=0, stopping=lambda left=left: next(left, True))
    run_training(kind, out, checkpoints, every_steps=0)
    *lines, ended = out.with_suffix(".log").read_text().splitlines()
    assert ended.startswith(f"{kind}: step 9/9, loss ")
    assert lines == [f"going on from the checkpoint of step {step}" for step in (1, 4, 6)]
    assert files(out) == calm[kind]
