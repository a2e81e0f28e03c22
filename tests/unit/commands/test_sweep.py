"""What the commands say of sweeps, and what they say instead of a traceback."""

import io
import json
import shlex
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.commands import sweep as sweep_command
from pipeline.sweeps.storage import sweep_folder
from tests.doubles.sweeps import SweepOnPaper, searched


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    outputs = tmp_path_factory.mktemp("outputs")
    sweep = searched(outputs, 27)
    for attempt, words in ((1, "first\n"), (2, "second\nlast\n")):
        sweep.folder.trial(3).log(attempt).write_text(words)
    words = ["/usr/bin/env", sys.executable, "my train.py", "--lr=1", "=x"]
    sweep.folder.trial(17).start(1).write_text(json.dumps({"command": words, "port": 1}))
    SweepOnPaper(outputs, "begun", metric="")
    (outputs / "damaged/sweep/optuna.log").parent.mkdir(parents=True)
    (outputs / "damaged/sweep/optuna.log").write_text("x\nx\n")
    return outputs


def told(outputs: Path, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["sweep", *words, "--output-dir", str(outputs)])
    assert done.exit_code == code, done.output
    return done.output


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


def test_watching_ends_with_the_sweep_and_tells_each_trial_once(tmp_path: Path) -> None:
    sweep = searched(tmp_path, 5)
    sweep.tell(halted="finished", reason="all trials were made")
    text = told(tmp_path, "status", "lr", "--watch")
    assert text.count("done: trial 0:") == 1
    assert "lr: finished (all trials were made)" in text


def test_the_best_trial_is_told_with_all_digits_and_how_it_ran(outputs: Path) -> None:
    text = told(outputs, "best", "lr")
    of = "20 done, 2 failed, 3 stopped, 2 lost"
    assert text.startswith(f"trial 17: val/loss 0.49902 (minimize; {of})\n  lr=0.00036")
    assert of in told(outputs, "status", "lr"), "the same words"
    assert "again: python 'my train.py' --lr=1 '=x'\n" in text
    data = json.loads(told(outputs, "best", "lr", "--json"))
    assert f"lr={data['parameters']['lr']}" in text
    assert data["command"][:2] == ["/usr/bin/env", sys.executable], "as it was started"
    assert "names no metric" in told(outputs, "best", "begun", code=2)


@pytest.mark.parametrize("runs", [False, True], ids=["arguments alone", "with a run of W&B"])
def test_what_repeats_the_best_trial_has_its_settings_from_where_the_program_reads_them(
    tmp_path: Path, runs: bool
) -> None:
    sweep = searched(tmp_path, 5)
    sweep.folder.file.write_text(
        "{program: train.py, method: random, metric: {name: loss}, parameters: {lr: {min: 0, max: 1}}, "
        "pipeline: {environment: {SIZE: two words}}}"
    )
    number = json.loads(told(tmp_path, "best", "lr", "--json"))["number"]
    place = sweep.folder.trial(number)
    given = {"WANDB_SWEEP_PARAM_PATH": str(place.for_wandb), "WANDB_MODE": "offline"}
    start = {"command": [sys.executable, "train.py", "--lr=1"], "folder": str(tmp_path), "environment": given}
    place.start(1).write_text(json.dumps(start))
    if runs:
        (place.path / "wandb/offline-run-1").mkdir(parents=True)
    wanted = {"SIZE": "two words", **(given if runs else {})}
    assert json.loads(told(tmp_path, "best", "lr", "--json"))["environment"] == wanted
    again = told(tmp_path, "best", "lr").partition("again, in ")[2].partition(": ")[2]
    typed = " ".join(f"{name}={shlex.quote(value)}" for name, value in wanted.items())
    assert again == f"{typed} python train.py --lr=1\n"


def test_trials_are_exported_as_csv_and_json(outputs: Path, tmp_path: Path) -> None:
    assert len(told(outputs, "export", "lr").splitlines()) == 28
    for name in ("lr.json", "lr.csv"):
        told(outputs, "export", "lr", "--to", str(tmp_path / name))
    rows = json.loads((tmp_path / "lr.json").read_text())
    assert rows[17]["parameters.optimizer"] == "adamw"
    assert (tmp_path / "lr.csv").read_text().splitlines()[:20] == told(outputs, "export", "lr").splitlines()[:20]
    for words, allowed in ((["lr.xyz"], "*.csv, or *.json"), (["lr.csv", "--json"], "*.csv, or *.json")):
        assert allowed in told(outputs, "export", "lr", "--to", str(tmp_path / words[0]), *words[1:], code=2)
    assert not (tmp_path / "lr.xyz").exists()
    assert "cannot write" in told(outputs, "export", "lr", "--to", str(tmp_path / "lr.csv/lr.csv"), code=2)


@pytest.mark.parametrize("words", [["export", "lr", "--to"], ["report", "lr", "--out"]])
@pytest.mark.parametrize("store", ["begins/.store", "elsewhere/store"])
def test_nothing_is_written_into_a_store(outputs: Path, tmp_path: Path, words: list[str], store: str) -> None:
    folder = tmp_path / store
    folder.mkdir(parents=True)
    if store.startswith("elsewhere"):
        (folder / ".claims").mkdir()
        (folder / ".lock").touch()
    assert "that is inside" in told(outputs, *words, str(folder / "lr.csv"), code=2)
    assert not (folder / "lr.csv").exists()


@pytest.mark.parametrize("words", [["status"], ["logs"], ["report"]])
def test_a_command_for_runs_points_from_the_name_of_a_sweep_to_those_for_sweeps(
    outputs: Path, words: list[str]
) -> None:
    done = CliRunner().invoke(app, [*words, "lr", "--output-dir", str(outputs)])
    assert done.exit_code == 2
    assert f"python -m pipeline sweep status lr --output-dir {shlex.quote(str(outputs))}" in done.output
    assert "there is no run of 'lr'" in done.output


def test_the_log_of_a_trial_is_that_of_its_last_attempt(outputs: Path) -> None:
    assert told(outputs, "logs", "lr", "3") == "second\nlast\n"
    assert told(outputs, "logs", "lr", "3", "-n", "1", "--attempt", "1") == "first\n"
    assert "last\n" in told(outputs, "logs", "lr", "3", "-f")
    assert "There are: 0 to 26" in told(outputs, "logs", "lr", "99", code=2)
    assert "no log of attempt 1; there are: none" in told(outputs, "logs", "lr", "4", code=2)
    assert "no log of attempt 7; there are: 1, 2" in told(outputs, "logs", "lr", "3", "--attempt", "7", code=2)
    assert "no trial of sweep begun has begun yet" in told(outputs, "logs", "begun", code=2)


def test_the_page_of_a_sweep_is_written_where_it_is_asked_for(outputs: Path, tmp_path: Path) -> None:
    assert told(outputs, "report", "begun").endswith("begun/sweep/report.html\n")
    told(outputs, "report", "begun", "--out", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert "cannot write" in told(outputs, "report", "begun", "--out", str(tmp_path / "page.html/x.html"), code=2)


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyError("loss")])
def test_a_page_that_cannot_be_written_is_one_message(
    outputs: Path, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise fault

    monkeypatch.setattr("pipeline.sweeps.report.write_sweep_page", refuse)
    out = io.StringIO()
    sweep_command.conclude(sweep_folder(outputs, "begun"), Console(file=out, width=200))
    assert out.getvalue().count("no report was written") == 1


def test_a_sweep_that_is_not_there_is_told_with_those_that_are(outputs: Path, tmp_path: Path) -> None:
    said = told(outputs, "best", "lrr", code=2)
    assert f"error: no sweep 'lrr' in {outputs}. Did you mean 'lr'? Known: " in said
    assert said.count("'lrr'") == 1
    assert "there are no sweeps in" in told(tmp_path, "status")
    assert "`sweep run FILE` begins one" in told(tmp_path, "status", "lr", code=2)


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["export", "lr", "--to"], "optuna.log"),
        (["export", "lr", "--to"], "report.html"),
        (["report", "lr", "--out"], "trials/0000/log.txt"),
        (["report", "lr", "--out"], "../sweep/sweep.yaml"),
    ],
)
def test_nothing_is_written_over_what_a_sweep_has_recorded(outputs: Path, words: list[str], file: str) -> None:
    target = outputs / "lr/sweep" / file
    before = target.read_bytes() if target.exists() else None
    assert "that is inside" in told(outputs, *words, str(target), code=2)
    assert (target.read_bytes() if target.exists() else None) == before
