"""An engine that is killed in a training ends in the same bytes as one that is left alone."""

import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.doubles.small_runs import (
    calm_run,
    command,
    run_here,
    wait_for,
)


def test_an_engine_that_is_killed_in_the_middle_of_a_training_changes_no_byte(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """Nor does it whether there are workers: none is there when the run goes on, from the first training.

    What else may differ, `test_engine_runs` tries on jobs that take no time. That a worker dies alone in a
    training, `test_training_stages` has.
    """
    output_dir, calm = tmp_path / "outputs", calm_run(tmp_path_factory)
    less = ["training.checkpoint_every_steps=1", "rounds_of_training=1", "algos=[]"]
    less.append("algos.Counted.class_path=tests.doubles.counted.Counted")
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
    (curve,) = output_dir.glob(".store/*/*/metrics.jsonl")
    shared = ours.keys() & theirs.keys()
    assert curve.parent.name in shared
    assert len(shared) == 3, "the reference, trained, evaluated and measured"
    assert [ours[key] for key in shared] == [theirs[key] for key in shared], "the sums of all files"
