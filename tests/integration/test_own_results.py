"""Wrong results of one own algorithm cost that algorithm's rows and nothing else, new or stored already."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.commands.run import run_experiment
from pipeline.engine.workers import runner
from pipeline.files import walk
from pipeline.outputs.formats import PAGE
from tests.doubles.composing import quick_config

SETTINGS = [
    "experiment.name=t",
    "device=cpu",
    "system.use_parallel_execution=false",
    "algos=[]",
    "algos.Right.class_path=tests.doubles.own_results.Right",
    "algos.Wrong.class_path=tests.doubles.own_results.Wrong",
    "rounds_of_training=1",
    "models.tiny.steps=2",
    "evaluation.num_prompts=4",
    "evaluation.bootstrap_samples=20",
]


def run(output_dir: Path) -> tuple[int, str]:
    out = io.StringIO()
    code = run_experiment(quick_config([*SETTINGS, f"output_dir={output_dir}"]), Console(file=out, width=200))
    return code, out.getvalue()


def test_wrong_results_fail_their_job_and_those_stored_before_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest, wrong = tmp_path / "t" / "latest", "addition/tiny/s0/Wrong"
    code, printed = run(tmp_path)
    assert code == 1
    (failed,) = [line for line in printed.splitlines() if line.startswith("failed: ")]
    assert f"{wrong}/r1/metrics: " in failed
    assert "metrics.json is not as it must be: object missing required field `ci_low` - at `$.rows[0]`" in failed
    assert PAGE in failed
    assert {row["algo"] for row in _rows(latest)} == {"reference", "Right"}
    assert [row["value"] for row in _rows(latest) if row["algo"] == "Right"] == [1]
    plan = {job["id"]: job["key"] for job in json.loads((latest / "plan.json").read_bytes())["jobs"]}
    key = plan[f"{wrong}/r1/metrics"]
    assert not (tmp_path / ".store" / key[:2] / key).exists()
    log = (latest / "run.log").read_text()
    assert f"incomplete: {wrong}: round 1" in log

    with monkeypatch.context() as older:
        older.setattr(runner, "check_output", lambda folder: dict(walk(folder)))
        assert run(tmp_path)[0] == 1  # committed by a version that did not look
    for _ in range(2):
        code, printed = run(tmp_path)
        assert code == 1
        assert "nothing to run" in printed
        (line,) = [line for line in printed.splitlines() if line.startswith("incomplete: ")]
        assert f"{wrong}: round 1: " in line
        assert "metrics.json cannot be read: object missing" in line
        assert str(tmp_path / ".store" / key[:2] / key) in line
        assert line in (latest / "run.log").read_text()
        assert {row["algo"] for row in _rows(latest)} == {"reference", "Right"}
        for job_id in plan:
            assert (latest / "jobs" / job_id / "output" / "manifest.json").is_file()


def _rows(run: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads((run / "results.json").read_bytes())["rows"]
    return rows
