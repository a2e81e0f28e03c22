"""What users type, and what they are told: scripts written and looked through."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import pipeline
from pipeline.__main__ import app
from tests.doubles.composing import quick_config
from tests.doubles.sweeps import SweepOnPaper

RUN = ["run", "experiment.name=x"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder."""
    monkeypatch.chdir(tmp_path)
    # What Hydra makes of settings, other tests try.
    monkeypatch.setattr("pipeline.config.load.load_config", quick_config)
    return tmp_path


def said(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["slurm", *words])
    assert done.exit_code == code, done.output
    return done.output


def refused(*words: str) -> str:
    told = said(*words, code=2)
    assert told.startswith("error: ")
    assert told.count("\n") == 1
    return told


def test_a_script_is_written_and_checked(here: Path) -> None:
    told = said("write", "--gres", "gpu:2", "-t", "1:00:00", *RUN)
    assert "wrote x.sbatch" in told
    assert "sbatch x.sbatch" in told
    assert "\n#SBATCH --time=1:00:00\n" in (here / "x.sbatch").read_text()
    assert "1 passed, 0 warned, 0 failed" in said("lint", "x.sbatch")
    assert said("write", "--out", "-", *RUN).startswith("#!/bin/bash\n")
    (here / "own.sh").write_text("#!/bin/bash\n#SBATCH --gres=gpu:1 --ntasks=8\nsrun python train.py\n")
    assert "fewer GPUs than tasks" in said("lint", "own.sh", code=1)
    assert "cannot read missing.sh" in refused("lint", "missing.sh")


def test_what_stood_in_the_place_of_a_script_is_kept(here: Path) -> None:
    (here / "x.sbatch").write_text("mine")
    assert "x.sbatch.bak" in said("write", "--ray", "--nodes", "2", "--gres", "gpu:8", *RUN)
    assert (here / "x.sbatch.bak").read_text() == "mine"
    assert "slurm ray start --head" in (here / "x.sbatch").read_text()
    assert "x.sbatch.bak" not in said("write", "--ray", "--nodes", "2", "--gres", "gpu:8", *RUN)
    (here / "x.sbatch").unlink()
    (here / "x.sbatch").mkdir()
    assert "x.sbatch" in refused("write", *RUN)
    assert "cannot write" in refused("write", "--out", "no/where.sbatch", *RUN)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "what is the job to run?"),
        (["rum", "experiment.name=x"], "Did you mean 'run'?"),
        (["run"], "experiment.name"),
        (["run", "--multirun", "experiment.name=x", "profil=cpu,h200"], "unknown key 'profil'"),
        (["run", "--cfg", "job"], "no work for a job"),
        (["sweep", "run", "missing.yaml"], "missing.yaml"),
        (["sweep", "agent", "no/such"], "there is no folder"),
        (["sweep", "agent", "lr", "--agents", "-4"], "See `python -m pipeline sweep agent --help`"),
        (["launch", "--nnodes", "2", "--", "/bin/true"], "--node-rank"),
        (["--ray", "--gres", "gpu:4", *RUN, "execution.ray.address=auto"], "execution.ray.address"),
        (["--ray", "--gres", "gpu:4", *RUN, "training.gpus_per_job=8"], "takes 8 GPUs"),
        (["--srun", "mpi", *RUN], "--srun"),
    ],
)
def test_a_wrong_request_is_one_message_and_no_file(here: Path, words: list[str], told: str) -> None:
    assert told in refused("write", *words)
    assert not list(here.iterdir())


def test_an_agent_joins_a_sweep_that_there_is(here: Path) -> None:
    SweepOnPaper(here / "outputs", "lr")
    assert "Did you mean 'lr'?" in refused("write", "sweep", "agent", "lrr")
    assert "wrote lr.sbatch" in said("write", "--array", "0-3", "sweep", "agent", "lr", "--agents", "4")


def test_a_sweep_is_read_before_its_script_is_written(here: Path) -> None:
    (here / "train.py").touch()
    (here / "lr.yaml").write_text("program: train.py\nmethod: grid\nparameters: {lr: {values: [1, 2]}}\n")
    assert "is written KEY=VALUE" in refused("write", "sweep", "run", "lr.yaml", "l r=3")
    assert "wrote lr.sbatch" in said("write", "sweep", "run", "lr.yaml", "lr=3")
    (here / "train.py").unlink()
    assert "there is no file train.py" in refused("write", "sweep", "run", "lr.yaml")


def test_settings_that_no_run_has_are_found_before_a_sweep_is_begun(here: Path) -> None:
    program = Path(pipeline.__file__).parents[1] / "run_parallel.py"
    text = f"program: {program}\nmethod: random\nparameters: {{algos: {{value: [PITA]}}, KEY: {{value: 1}}}}\n"
    (here / "eta.yaml").write_text(text.replace("KEY", "algos.PITA.etaa"))
    for command in (("slurm", "write", "sweep", "run"), ("sweep", "run", "--device", "cpu")):
        told = CliRunner().invoke(app, [*command, "eta.yaml"])
        assert told.exit_code == 2
        assert "the first trial would be refused: unknown key 'algos.PITA.etaa'. Did you mean" in told.output
    assert not (here / "outputs").exists()
    (here / "eta.yaml").write_text(text.replace("KEY", "algos.PITA.eta"))
    assert "wrote eta.sbatch" in said("write", "sweep", "run", "eta.yaml")


def test_a_program_may_stand_without_two_dashes(here: Path) -> None:
    (here / "train.py").touch()
    said("write", "--gres", "gpu:2", "launch", "--num-gpus", "2", "train.py", "--lr", "3")
    assert (
        "-m pipeline launch \\\n    --num-gpus 2 \\\n    -- train.py --lr 3\n"
        in (here / "train.sbatch").read_text()
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--gpus-per-node", "4"], "#SBATCH --gpus-per-node=4"),
        (["-G", "4", "-t", "60"], "#SBATCH --gpus=4"),
        (["--comment", "a b", "--gres", "gpu:a100:4"], '#SBATCH --comment="a b"'),
        (["--of-a-plugin=1", "--gres", "gpu:4"], "#SBATCH --of-a-plugin=1"),
    ],
)
def test_every_option_of_sbatch_goes_through_and_gpus_are_counted(words: list[str], line: str) -> None:
    text = said("write", *words, "--time", "60", "--out", "-", *RUN)
    assert line in text.splitlines()
    assert "#SBATCH --cpus-per-task=32" in text.splitlines()


@pytest.mark.parametrize(
    "words",
    [
        ["--setup", "conda activate ml"],
        ["--srun", "--container-image=/x.sqsh --container-mounts=/data"],
        ["--container-image=/x.sqsh"],
    ],
)
def test_python_is_that_of_the_environment_which_the_job_sets_up(words: list[str]) -> None:
    text = said("write", "--gres", "gpu:1", *words, "--out", "-", *RUN)
    assert " python -m pipeline run" in text
    assert "/python -m pipeline" not in text
