"""A wrong command line is answered by one line: what was given, and where to read more. And completion."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from pipeline.__main__ import app, main

COMMANDS = typer.main.get_command(app)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("figures x --out y --format gif", ["--format", "gif", "pdf", "figures"]),
        ("logs x --lines 1e3", ["--lines", "1e3", "logs"]),
        ("status --every inf", ["--every", "inf", "86400", "status"]),
        ("sweep multi x a 1", ["gpus_per_run", "a", "sweep multi"]),
        ("show", ["name", "show"]),
        ("status --evry 1", ["--evry", "--every", "status"]),
        ("statu", ["'statu'", "'status'"]),
    ],
)
def test_a_wrong_word_is_named_in_one_line(
    words: str, named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        COMMANDS.main(words.split(), prog_name="pipeline")
    told = capsys.readouterr()
    assert (end.value.code, told.out, told.err.count("\n")) == (2, "", 1)
    *rest, command = named
    assert [word for word in rest if word not in told.err] == []
    assert "Input should" not in told.err
    assert told.err.endswith(
        f" See `pipeline {command} --help`\n" if "'" not in command else "See `pipeline --help`\n"
    )


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("st", ["status", "stop", "store"]),
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
    assert sorted(done.output.split()) == offered


def test_the_command_that_a_shell_completes_has_one_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    monkeypatch.setattr("sys.argv", ["pipeline/__main__.py", "--show-completion", "bash"])
    with pytest.raises(SystemExit) as end:
        main()
    told = capsys.readouterr().out
    assert (end.value.code, told.splitlines()[-1]) == (0, "complete -o default -F _pipeline_completion pipeline")
