"""What the command says of itself: help of our own, the version, completion in the shell."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pipeline
from pipeline import cli
from pipeline.__main__ import app
from pipeline.commands.help import typed_command, usage
from pipeline.config.install import conf_dir


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_is_about_this_program(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["experiment.name=x", flag]) == 0
    printed = capsys.readouterr().out
    assert "language-model post-training" in printed
    assert "_schema" not in printed
    assert "powered by" not in printed
    assert [line for line in printed.splitlines() if len(line) > 80 and "schema.py" not in line] == []


def test_help_lists_every_choice_of_every_group() -> None:
    words = usage().replace(",", " ").split()
    files = list(conf_dir().glob("*/*.yaml"))
    assert len(files) > 20
    assert {path.stem for path in files} | {path.parent.name for path in files} <= set(words)


@pytest.mark.parametrize(
    ("program", "typed"),
    [
        ("/home/me/run_parallel.py", "python run_parallel.py"),
        ("/lib/pipeline/__main__.py", "python -m pipeline run"),
        ("/env/bin/pipeline", "pipeline run"),
    ],
)
def test_help_shows_the_command_as_it_was_typed(program: str, typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [program])
    assert typed_command() == typed
    assert f"    {typed} experiment.name=NAME" in usage()


def test_the_version_is_told_by_both_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"pipeline {pipeline.__version__}\n"
    assert CliRunner().invoke(app, ["--version"]).output == f"pipeline {pipeline.__version__}\n"


def test_help_of_run_is_that_of_the_main_command() -> None:
    assert "Further words" in CliRunner().invoke(app, ["run", "--help"]).output


def test_the_shell_completes_commands() -> None:
    asked = {"_PIPELINE_COMPLETE": "complete_bash", "COMP_WORDS": "pipeline st", "COMP_CWORD": "1"}
    assert CliRunner().invoke(app, env=asked, prog_name="pipeline").output.split() == ["status", "store"]


def test_the_schema_that_help_names_is_there() -> None:
    assert Path(usage().partition("unit:\n")[2].split()[0]).is_file()
