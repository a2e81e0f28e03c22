"""What the commands say of sweeps, and what they say instead of a traceback."""

import csv
import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from tests.doubles.small_runs import ROOT
from tests.doubles.sweeps import SweepOnPaper, searched


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    outputs = tmp_path_factory.mktemp("outputs")
    sweep = searched(outputs, 27)
    for attempt, words in ((1, "first\n"), (2, "second\nlast\n")):
        sweep.folder.trial(3).log(attempt).write_text(words)
    SweepOnPaper(outputs, "begun", metric="")
    (outputs / "damaged/sweep/optuna.log").parent.mkdir(parents=True)
    (outputs / "damaged/sweep/optuna.log").write_text("x\nx\n")
    return outputs


def told(outputs: Path, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["sweep", *words, "--output-dir", str(outputs)])
    assert done.exit_code == code, done.output
    return done.output


def test_a_dry_run_tells_trials_devices_and_the_command_of_the_next_and_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").touch()
    parameters = {"lr": {"values": [0.5, 0.25]}, "note": {"value": "it's $HOME"}}
    asked = {"program": "own.py", "method": "grid", "metric": {"name": "loss"}, "parameters": parameters}
    (tmp_path / "fit.yaml").write_text(json.dumps(asked))
    run = ("run", "fit.yaml", "--device", "cpu", "--dry-run")
    said = told(tmp_path / "outputs", *run, "--agents", "2")
    assert "sweep fit: grid, 2 trials at most, 0 begun; 2 at a time on 2 CPU slots" in said
    assert "\n  python own.py --lr=0.5" in said, "and not /usr/bin/env and the path of python"
    assert shlex.quote("--note=it's $HOME") in said
    for words, refused in ((["4", "2"], "--agents N --gpus-per-agent N"), (["--wandb"], "W&B would choose")):
        assert refused in told(tmp_path / "outputs", *run, *words, code=2)
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("key", ["experiment.budget={device_hours: 1}", "experiment.race={until: best}"])
def test_what_ends_each_trial_elsewhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.chdir(ROOT)
    asked = {
        "program": "run_parallel.py",
        "method": "grid",
        "parameters": {"algos.PITA.eta": {"values": [0.5, 1]}},
    }
    (tmp_path / "own.yaml").write_text(
        json.dumps({**asked, "command": [str(ROOT / "run_parallel.py"), "${args}"]})
    )
    words = ("run", str(tmp_path / "own.yaml"), key, "--device", "cpu", "--dry-run")
    said = told(tmp_path / "outputs", *words, code=2)
    assert key.partition("=")[0] in said
    assert "trial" in said


def test_all_sweeps_stand_in_one_table_and_one_is_told_of_in_full(outputs: Path) -> None:
    rows = {line.split()[0]: line.split()[1:] for line in told(outputs, "status").splitlines()}
    assert rows["sweep"][:7] == ["state", "method", "trials", "done", "failed", "stopped", "lost"]
    assert rows["lr"][:8] == ["idle", "bayes", "27", "20", "2", "3", "2", "0.49902"]
    assert {"begun", "damaged"} < set(rows)
    text = told(outputs, "status", "lr")
    assert "best: trial 17: val/loss 0.49902" in text
    assert "trial 5 failed: exit code 1: torch.OutOfMemoryError" in text
    assert f"`python -m pipeline sweep agent lr --output-dir {shlex.quote(str(outputs))}` goes on" in text
    assert "optuna.log is damaged" in told(outputs, "status", "damaged", code=2)
    assert len(json.loads(told(outputs, "status", "lr", "--json"))["all_trials"]) == 27
    assert "Did you mean 'lr'?" in told(outputs, "best", "lrr", code=2)
    done = CliRunner().invoke(app, ["status", "lr", "--output-dir", str(outputs)])
    assert f"python -m pipeline sweep status lr --output-dir {shlex.quote(str(outputs))}" in done.output


def test_watching_ends_with_the_sweep_and_tells_each_trial_once(tmp_path: Path) -> None:
    sweep = searched(tmp_path, 5)
    sweep.tell(halted="finished", reason="all trials were made")
    text = told(tmp_path, "status", "lr", "--watch")
    assert text.count("done: trial 0:") == 1
    assert "lr: finished (all trials were made)" in text


def test_the_best_trial_is_told_with_all_digits(outputs: Path) -> None:
    text = told(outputs, "best", "lr")
    assert text.startswith(
        "trial 17: val/loss 0.49902 (minimize; 20 done, 2 failed, 3 stopped, 2 lost)\n  lr=0.00036"
    )
    data = json.loads(told(outputs, "best", "lr", "--json"))
    assert f"lr={data['parameters']['lr']}" in text
    assert "names no metric" in told(outputs, "best", "begun", code=2)


def test_trials_are_exported_and_the_page_is_written_where_that_is_asked_for(
    outputs: Path, tmp_path: Path
) -> None:
    rows = list(csv.DictReader(told(outputs, "export", "lr").splitlines()))
    assert len(rows) == 27
    assert rows[17]["parameters.optimizer"] == "adamw"
    assert json.loads(told(outputs, "export", "lr", "--json"))[17]["parameters.optimizer"] == "adamw"
    told(outputs, "report", "begun", "--out", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_the_log_of_a_trial_is_that_of_its_last_attempt(outputs: Path) -> None:
    assert told(outputs, "logs", "lr", "3") == "second\nlast\n"
    assert told(outputs, "logs", "lr", "3", "-n", "1") == "last\n"
    assert "last\n" in told(outputs, "logs", "lr", "3", "-f")
    for words in (("lr", "99"), ("lr", "4"), ("begun",)):
        told(outputs, "logs", *words, code=2)
