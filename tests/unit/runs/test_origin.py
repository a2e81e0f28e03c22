"""Where a run came from: the job of Slurm it ran in is told by whoever looks at it."""

import io
from pathlib import Path

from rich.console import Console
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.origin import Origin, read_origin, slurm_job, write_origin
from pipeline.runs.report.status import print_run, run_json
from tests.doubles.runs import START, WrittenRun, chain_plan

JOB = {
    "SLURM_JOB_ID": "41",
    "SLURM_ARRAY_JOB_ID": "40",
    "SLURM_ARRAY_TASK_ID": "1",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_JOB_PARTITION": "main",
    "SLURM_RESTART_COUNT": "2",
    "SLURM_NTASKS": "1",
}


def test_the_job_of_slurm_is_read_from_the_environment() -> None:
    assert slurm_job({"HOME": "/x", "SLURM_CONF": "/y"}) == {}
    assert slurm_job(JOB) == {
        "job": "41",
        "array": "40",
        "task": "1",
        "nodes": "n1",
        "partition": "main",
        "restarts": "2",
    }


def test_status_and_logs_know_the_job(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, chain_plan(1))
    write_origin(run.folder.path, Origin(slurm=slurm_job(JOB)))
    assert read_origin(run.folder.path).slurm["job"] == "41"
    out = io.StringIO()
    print_run(LoadedRun(run.folder), START, Console(file=out, width=120, color_system=None))
    assert "Slurm job 41 (40_1 of an array) on n1" in out.getvalue()
    assert run_json(LoadedRun(run.folder), START)["slurm"]["job"] == "41"
    run.folder.log.write_text("what the engine says\n")
    said = CliRunner().invoke(app, ["logs", run.folder.experiment, "--output-dir", str(tmp_path)])
    assert "Slurm job 41" in said.stderr
    assert said.stdout == "what the engine says\n"
