"""What typer's completion offers for a word that has begun."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("st", ["status", "store"]),
        ("gpus fit --lora", ["--lora-rank"]),
        ("run algos.PITA.e", ["algos.PITA.enabled=", "algos.PITA.epochs=", "algos.PITA.eta="]),
        ("help training.grad_", ["training.grad_clip="]),
        ("show fi", ["first_run"]),
        ("status --output-dir nowhere fi", []),
    ],
)
def test_words_that_begin_so_are_offered(
    line: str, offered: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outputs" / "first_run" / "latest").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    words = f"pipeline {line}"
    asked = {"_PIPELINE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = CliRunner().invoke(app, [], prog_name="pipeline", env=asked)
    assert done.output.split() == offered
