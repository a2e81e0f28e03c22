"""``sweep run FILE --dry-run`` tells what would be done, and begins nothing."""

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").touch()
    asked = {
        "program": "own.py",
        "method": "grid",
        "metric": {"name": "loss"},
        "parameters": {"lr": {"values": [0.5, 0.25]}, "note": {"value": "it's $HOME"}},
    }
    path = tmp_path / "fit.yaml"
    path.write_text(json.dumps(asked))
    return path


def told(file: Path, *words: str, code: int = 0) -> str:
    outputs = file.parent / "outputs"
    command = ["sweep", "run", str(file), "--device", "cpu", "--dry-run", "--output-dir", str(outputs), *words]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == code, done.output
    assert not outputs.exists()
    return done.output


def test_it_tells_trials_devices_and_the_command_of_the_next(file: Path) -> None:
    said = told(file, "--agents", "2")
    assert "sweep fit: grid, 2 trials at most, 0 begun; 2 at a time on 2 CPU slots" in said
    assert "trial 0 with 1 CPU slot: lr=0.5" in said
    assert f"it would run, in {file.parent}:" in said
    assert "\n  python own.py --lr=0.5" in said, "and not /usr/bin/env and the path of python"
    assert shlex.quote("--note=it's $HOME") in said
    assert said.endswith("nothing was begun, as --dry-run asks\n")


def test_a_strategy_is_told_and_asks_nothing(file: Path) -> None:
    assert "3 at a time on 3 CPU slots" in told(file, "spread", "3")


def test_a_wrong_request_is_refused_as_ever(file: Path) -> None:
    assert "unknown strategy" in told(file, "nonsense", code=2)
    assert "W&B would choose" in told(file, "--wandb", code=2)
