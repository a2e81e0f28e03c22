"""On a real Slurm of two nodes, which these tests start: scripts are accepted, and what is stopped goes on."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.errors import has_package
from pipeline.slurm.script import MARK, written
from pipeline.sweeps.storage import Record, Trial, sweep_folder
from tests.doubles.slurm import NODES, Slurm, two_nodes, why_not
from tests.doubles.small_runs import SMALL, calm_run, events, results
from tests.unit.slurm.test_script import ODD, READ, read

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"Slurm is {why_not()}")


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with two_nodes() as running:
        yield running


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slurm: Slurm) -> Path:
    """The folder in which commands are typed, from where they reach this Slurm alone."""
    folder = tmp_path / "an odd näme"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    return folder


def written_job(slurm: Slurm, here: Path, *words: str) -> str:
    """The job of a script that `python -m pipeline slurm write` writes."""
    done = CliRunner().invoke(app, ["slurm", "write", *words])
    assert done.exit_code == 0, done.output
    return slurm.submit(re.findall(r"wrote (\S+)", done.stdout)[0], cwd=here)


def without(store: Path, run: Path, *jobs: str) -> None:
    """Remove outputs of some jobs."""
    plan = json.loads((run / "plan.json").read_text())
    removed = [job["key"] for job in plan["jobs"] if any(name in job["id"] for name in jobs)]
    assert removed
    for key in removed:
        shutil.rmtree(store / key[:2] / key)


def taken(slurm: Slurm, line: str, folder: Path) -> dict[str, str] | None:
    """What Slurm makes of a script with such a line; None where sbatch refuses it."""
    (folder / "s.sh").write_text(f"#!/bin/bash\n#SBATCH --hold {line}\ntrue\n")
    said = slurm.command("sbatch", "--parsable", "s.sh", cwd=folder, check=False).strip()
    if not said.isdecimal():
        return None
    job = slurm.job(said)
    slurm.command("scancel", said)
    return job


SHOWN = {
    "job-name": ("JobName", "s.sh"),
    "ntasks": ("NumTasks", "1"),
    "cpus-per-task": ("CPUs/Task", "1"),
    "exclude": ("ExcNodeList", "(null)"),
}
"""Options -> what Slurm calls them, and what it makes of a script without them."""


def test_lines_are_read_as_sbatch_reads_them(slurm: Slurm, here: Path) -> None:
    """The examples that the reader's own tests have, asked of the real one; so is what is written."""
    odd = [written("job-name", name) for name in ODD]
    for line, options in [*READ, *((each.removeprefix(MARK), None) for each in odd)]:
        options = options or read(line)
        job = taken(slurm, line, here)
        assert job is not None, line
        wanted = {shown: options.get(name, default) for name, (shown, default) in SHOWN.items()}
        assert {shown: job[shown] for shown in wanted} == wanted, line


TRAINING = "addition/tiny/reference/train"
REFERENCE = (TRAINING, "reference/evaluate", "reference/metrics")


def test_a_preempted_run_is_put_back_and_ends_in_the_same_bytes(
    slurm: Slurm, here: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It is told as others come first, saves a checkpoint in the middle of a training, and goes on from it."""
    calm, outputs = calm_run(tmp_path_factory), here / "outputs"
    shutil.copytree(calm / ".store", outputs / ".store", symlinks=True)
    without(outputs / ".store", calm / "t" / "latest", *REFERENCE)
    settings = ["experiment.name=t", *SMALL, "execution.workers=1", "execution.stop_grace_s=600", "device=cpu"]
    options = ["--gres", "gpu:4", "--nodelist", "n1", "--cpus-per-task", "4"]
    job = written_job(slurm, here, *options, "run", *settings)
    slurm.until(lambda: started(outputs) == [TRAINING], job)
    # It neither ends before others come, nor is it given up while it loads what it trains.
    trainer = psutil.Process(int(events(outputs, "WorkerStarted", key="pid")[-1]))
    trainer.suspend()
    slurm.submit("--partition=urgent", "--nodelist=n1", "--gres=gpu:4", "--wrap=true", cwd=here)
    slurm.until(lambda: "SIGTERM" in slurm.printed(job), job)
    with suppress(psutil.NoSuchProcess):  # Slurm lets it go on as well, and it may have saved and ended by now
        trainer.resume()
    slurm.until(lambda: slurm.job(job)["Restarts"] == "1", job)
    assert slurm.until_over(job) == "COMPLETED", (here / f"slurm-{job}.out").read_text()
    assert results(outputs) == results(calm)
    (log,) = (outputs / "t" / "latest" / "jobs" / TRAINING).glob("log*.txt")
    assert "going on from the checkpoint of step" in log.read_text()


def processes(slurm: Slurm, job: str) -> list[psutil.Process]:
    """Those of a job, wherever they went; and of a daemon that is about to begin one."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            told = process.environ()
            conf = told.get("SLURM_CONF", "").startswith(str(slurm.folder))
            if conf and told.get("SLURM_JOB_ID") == job and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.mark.skipif(not has_package("ray"), reason="Ray is not installed: pip install -e '.[ray]'")
def test_a_run_on_the_ray_of_its_own_job_is_cancelled_put_back_and_ends_in_the_same_bytes(
    slurm: Slurm, here: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Both nodes are on this machine, so that all that two nodes have must be their own."""
    calm, outputs = calm_run(tmp_path_factory), here / "outputs"
    shutil.copytree(calm / ".store", outputs / ".store", symlinks=True)
    without(outputs / ".store", calm / "t" / "latest", *REFERENCE)
    settings = ["experiment.name=t", *SMALL, "execution.stop_grace_s=600", "device=cpu"]
    options = ["--nodes", "2", "--gres", "gpu:2", "--cpus-per-task", "2"]
    job = written_job(slurm, here, "--ray", *options, "run", *settings)

    def trainer(turn: int) -> psutil.Process:
        """The worker that trains, in the middle of that."""
        slurm.until(lambda: len(turns(outputs)) == turn and started(outputs) == [TRAINING], job)
        workers, pids = (events(outputs, "WorkerStarted", key=key) for key in ("worker", "pid"))
        (training,) = events(outputs, "JobStarted", key="worker")
        found = psutil.Process(int(pids[workers.index(training)]))
        found.suspend()
        return found

    trainer(1)  # Slurm wakes it up as it tells it to end
    words = [word for process in processes(slurm, job) for word in process.cmdline()]
    folders = {Path(word.partition("=")[2]) for word in words if word.startswith("--temp-dir=")}
    assert len(folders) == len(NODES)
    slurm.command("scancel", job)
    assert slurm.until_over(job) == "CANCELLED", slurm.printed(job)
    assert processes(slurm, job) == []
    assert not any(folder.exists() for folder in folders)

    job = slurm.submit("t.sbatch", cwd=here)
    training = trainer(2)
    slurm.command("scancel", "--signal=USR2", job)
    slurm.until(lambda: "SIGUSR2" in slurm.printed(job), job)
    training.resume()
    slurm.until(lambda: slurm.job(job)["Restarts"] == "1", job)
    assert slurm.until_over(job) == "COMPLETED", slurm.printed(job)
    assert len(turns(outputs)) == 3
    assert results(outputs) == results(calm)
    assert processes(slurm, job) == []
    nodes = {re.findall(r"on node (\w+)", device)[0] for device in events(outputs, "WorkerStarted", key="device")}
    assert len(nodes) == len(NODES)


SWEEP = """\
name: lr
method: grid
metric: {name: loss}
command: [/bin/sh, trial.sh, "${args_no_hyphens}"]
parameters:
  a: {values: [1, 2, 3, 4, 5, 6]}
"""
TRIAL = """\
until [ -e go ]; do sleep 0.1; done
echo "{\\"step\\": 1, \\"values\\": {\\"loss\\": ${1#a=}}, \\"time\\": 1}" >> "$PIPELINE_TRIAL"
"""


def test_an_array_of_agents_finishes_a_sweep_though_one_is_put_back_and_one_loses_its_node(
    slurm: Slurm, here: Path
) -> None:
    (here / "lr.yaml").write_text(SWEEP)
    (here / "trial.sh").write_text(TRIAL)
    options = ["--array", "0-2", "--gres", "gpu:2", "--cpus-per-task", "2"]
    job = written_job(slurm, here, *options, "sweep", "run", "lr.yaml", "--device", "cpu", "--agents", "1")
    sweep = Record(sweep_folder(here / "outputs", "lr"))

    def trials(state: str) -> list[Trial]:
        sweep.refresh()
        return sweep.having(state)

    slurm.until(lambda: sweep.folder.journal.exists() and len(trials("running")) == 3)
    slurm.command("scancel", "--signal=USR2", f"{job}_1")
    slurm.until(lambda: slurm.job(f"{job}_1")["Restarts"] == "1")
    node = slurm.job(f"{job}_2")["NodeList"]
    slurm.command("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")
    slurm.until(lambda: slurm.job(f"{job}_2")["Restarts"] == "1")
    slurm.command(
        "scontrol", "update", f"nodename={node}", "state=resume", check=False
    )  # if it is not back already
    (here / "go").touch()
    assert [slurm.until_over(f"{job}_{task}") for task in range(3)] == ["COMPLETED"] * 3
    assert [trial.value for trial in trials("done")] == [1, 2, 3, 4, 5, 6]
    assert sweep.about.halted == "finished"


def turns(outputs: Path) -> list[Path]:
    """The folders of a run that was begun again and again."""
    return [path.parent for path in (outputs / "t").glob("*/journal.jsonl") if not path.parent.is_symlink()]


def started(outputs: Path) -> list[str]:
    return events(outputs, "JobStarted") if (outputs / "t" / "latest" / "journal.jsonl").exists() else []
