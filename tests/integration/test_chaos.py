"""Short versions of `benchmarks/chaos.py`: what is shot at ends in the same bytes as what is left alone."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from threading import Thread

import psutil
import pytest

from benchmarks.chaos import FILES, NAME, TOLERANT, shoot_at
from pipeline.engine.journal import read_journal
from pipeline.files import file_sha256
from tests.doubles.small_runs import (
    SMALL,
    calm_run,
    command,
    run_here,
    wait_for,
    with_reference,
)


def test_an_engine_that_is_killed_in_the_middle_of_a_training_changes_no_byte(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """Nor does it whether there are workers: none is there when the run goes on, from the first training.

    What else may differ, `test_engine_runs` tries on jobs that take no time. That a worker dies alone in a
    training, `test_training_stages` has.
    """
    output_dir, calm = tmp_path / "outputs", calm_run(tmp_path_factory)
    less = ["training.checkpoint_every_steps=1", "rounds_of_training=1", "algos.PITA.enabled=false"]
    words = command(output_dir, "device=cpu", "execution.workers=1", *less)
    with (tmp_path / "said.txt").open("wb") as said, subprocess.Popen(words, stdout=said, stderr=said) as engine:
        wait_for(lambda: engine.poll() is not None or any(output_dir.glob(".store/.checkpoints/*/*/step-*")))
        family = psutil.Process(engine.pid).children(recursive=True)
        engine.kill()
    assert engine.returncode == -signal.SIGKILL, (tmp_path / "said.txt").read_text()
    _, alive = psutil.wait_procs(family, timeout=600)
    assert not alive
    run_here(output_dir, *less)
    log = output_dir / "t/latest/jobs/addition/tiny/reference/train/log.txt"
    assert "going on from the checkpoint of step " in log.read_text()
    ours, theirs = (
        {path.parent.name: path.read_bytes() for path in folder.glob(".store/*/*/manifest.json")}
        for folder in (output_dir, calm)
    )
    assert len(list(output_dir.glob(".store/*/*/metrics.jsonl"))) == 2, "of both trainings"
    assert ours.items() <= theirs.items(), "the sums of all files"


def test_an_experiment_that_is_shot_at_gives_the_same_results(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First a worker is, then the engine. Nothing is trained, and the second round waits until both were shot."""
    output_dir, calm, gate = tmp_path / "chaos", tmp_path / "calm", tmp_path / "gate"
    light = with_reference(tmp_path_factory, output_dir)
    gate.mkdir()
    monkeypatch.setenv("GATE", str(gate))
    Thread(target=open_gate, args=(gate, output_dir / NAME), daemon=True).start()
    asked = [*SMALL, *light, "device=cpu", "execution.workers=2", *TOLERANT]
    battle = shoot_at(output_dir, asked, worker_kills=1, engine_kills=1, pause_s=1.5)
    assert (battle.worker_kills, battle.engine_kills, battle.left) == (1, 1, [])
    first, second = (list(read_journal(path / "journal.jsonl")) for path in runs(output_dir / NAME))
    done, begun = jobs_of(first, "JobFinished"), jobs_of(second, "JobStarted")
    assert begun
    assert not done & begun
    assert not list(output_dir.glob(".store/.tmp/*"))
    with_reference(tmp_path_factory, calm)
    run_here(calm, *light, name=NAME)
    rows = rows_of(output_dir)
    assert rows == rows_of(calm)
    assert [row["value"] for row in rows if (row["metric"], row["round"]) == ("count", 2)] == [120]
    assert battle.digests == {name: file_sha256(output_dir / NAME / "latest" / name) for name in FILES}


def rows_of(output_dir: Path) -> list[dict[str, object]]:
    """All but whether torch was there, as it is in this process."""
    rows = json.loads((output_dir / NAME / "latest" / "results.json").read_bytes())["rows"]
    return [row for row in rows if row["metric"] != "torch"]


def runs(experiment: Path) -> list[Path]:
    return sorted(experiment.glob("2*"))


def open_gate(gate: Path, experiment: Path) -> None:
    """Let the second round go on once another engine has begun."""
    wait_for(lambda: len(runs(experiment)) == 2)
    gate.rmdir()


def jobs_of(journal: list[dict[str, object]], event: str) -> set[object]:
    return {entry["job"] for entry in journal if entry["event"] == event}
