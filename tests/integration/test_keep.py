"""`execution.keep` in whole runs: results are those of a run that keeps everything, whoever shares the store."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store import REMOVED
from pipeline.runs.loaded import LoadedRun, load
from tests.doubles.shared import made_once
from tests.doubles.small_runs import INLINE, ROOT, SMALL, events, run_here, with_reference

KILLED = """
import os, signal, sys
from pipeline.engine import keeper as removal
from pipeline.__main__ import app
removal._unlink = lambda names, folder: os.kill(os.getpid(), signal.SIGKILL)
app(sys.argv[1:])
"""


TWO_SEEDS = "experiment.seeds=[0,1]"


@pytest.fixture
def light(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> list[str]:
    """What makes a run in `tmp_path` one of three rounds of weights; nobody must train, or import torch.

    Of one seed. Those whose rounds are judged apart are the chains of two, `TWO_SEEDS`.
    """

    def evaluated(folder: Path) -> None:
        counted = with_reference(tmp_path_factory, folder / "outputs")
        run_here(folder / "outputs", *counted, TWO_SEEDS, "rounds_of_training=1")

    made = made_once(tmp_path_factory, "reference of two seeds", evaluated)
    shutil.copytree(made / "outputs" / ".store", tmp_path / "first" / ".store", symlinks=True)
    return [
        "algos=[]",
        "algos.Weighed.class_path=tests.doubles.weighed.Weighed",
        "rounds_of_training=3",
        f"execution.store={tmp_path / 'first' / '.store'}",
    ]


def run_of(output_dir: Path) -> LoadedRun:
    return load(RunFolder((output_dir / "t" / "latest").resolve()))


def weights(output_dir: Path) -> dict[str, bool]:
    """Of each training of a run whether its weights are there; all else is."""
    run = run_of(output_dir)
    problems = {job.id: run.store.problem(job.key) for job in run.plan.jobs.values()}
    assert set(problems.values()) <= {None, REMOVED}
    return {job.id: problems[job.id] is None for job in run.plan.jobs.values() if job.weights}


def rounds_kept(output_dir: Path) -> list[int]:
    return [int(job_id.split("/r")[1][0]) for job_id, there in weights(output_dir).items() if there]


def results(output_dir: Path) -> bytes:
    return (output_dir / "t" / "latest" / "results.json").read_bytes()


def test_two_experiments_of_one_store_keep_each_what_it_asks_for(light: list[str], tmp_path: Path) -> None:
    run_here(tmp_path / "second", *light, "execution.keep=last")
    assert rounds_kept(tmp_path / "second") == [3]
    said = run_here(tmp_path / "first", *light, "execution.keep=results")
    assert "are stored; nothing to run" in said
    assert rounds_kept(tmp_path / "first") == [3], "what the other keeps is there for both"
    assert results(tmp_path / "first") == results(tmp_path / "second")


def test_every_value_leaves_the_results_of_a_run_that_keeps_all(light: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "first"
    light.append(TWO_SEEDS)
    run_here(folder, *light)
    calm = results(folder)
    assert rounds_kept(folder) == [1, 2, 3] * 2
    rows = json.loads(calm)["rows"]
    best = [
        max((row["value"], row["round"]) for row in rows if (row["algo"], row["seed"]) == ("Weighed", seed))[1]
        for seed in (0, 1)
    ]
    for keep, kept in {"best": best, "results": []}.items():
        said = run_here(folder, *light, f"execution.keep={keep}")
        assert "are stored; nothing to run" in said
        assert f"execution.keep={keep}: the weights of" in said
        assert rounds_kept(folder) == kept
        assert results(folder) == calm
    # A further round reads the weights of the third, which are made again from the first on.
    run_here(folder, *light, "execution.keep=last", "rounds_of_training=4")
    made = [job_id for job_id in events(folder, "JobStarted") if job_id.startswith("addition/tiny/s0/")]
    chain = "addition/tiny/s0/Weighed"
    assert made == [
        *(f"{chain}/r{number}/train" for number in (1, 2, 3, 4)),
        f"{chain}/r4/evaluate",
        f"{chain}/r4/metrics",
    ]
    assert rounds_kept(folder) == [4, 4]
    assert [row for row in json.loads(results(folder))["rows"] if row["round"] < 4] == rows


def test_a_run_that_is_killed_while_it_removes_goes_on(light: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "first"
    asked = ["run", "experiment.name=t", f"output_dir={folder}", "device=cpu", INLINE, *SMALL, *light]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *asked, "execution.keep=last"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    run = run_of(folder)
    [cut] = [job for job in run.plan.jobs.values() if run.store.is_removed(job.key)]
    assert len(run.store.leftover_weights(cut.key)) == 1
    begun = events(folder, "JobStarted")
    run_here(folder, *light, "execution.keep=last")
    assert rounds_kept(folder) == [3]
    assert not run.store.leftover_weights(cut.key)
    assert cut.id in begun
    assert cut.id not in events(folder, "JobStarted")
