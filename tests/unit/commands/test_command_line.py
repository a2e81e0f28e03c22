"""A wrong command line is answered by one line: what was given, what may be, and where to read more."""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, get_args, get_type_hints

import pytest
import typer
from typer.core import TyperGroup

from pipeline.__main__ import app

Said = Callable[..., str]
COMMANDS = typer.main.get_command(app)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """What a command line that is wrong is answered."""

    def answer(*words: str) -> str:
        with pytest.raises(SystemExit) as end:
            COMMANDS.main(list(words), prog_name="pipeline")
        assert end.value.code == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.count("\n") == 1
        return told.err.removesuffix("\n")

    return answer


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("figures x --out y --format gif", "--format gif: must be pdf, svg or png. See `pipeline figures --help`"),
        ("logs x --lines 1e3", "--lines 1e3: must be a whole number, at least 0. See `pipeline logs --help`"),
        ("status --every 0", "--every 0: must be at least 0.1 and at most 86,400. See `pipeline status --help`"),
        (
            "gpus fit x --memory inf",
            "--memory inf: must be at least 1 and at most 1,000,000. See `pipeline gpus fit --help`",
        ),
        (
            "status --every inf",
            "--every inf: must be at least 0.1 and at most 86,400. See `pipeline status --help`",
        ),
        ("sweep multi x a 1", "gpus_per_run a: must be a whole number. See `pipeline sweep multi --help`"),
        ("figures x", "--out is missing: folder to write to. See `pipeline figures --help`"),
        ("show", "name is missing. See `pipeline show --help`"),
        ("status --evry 1", "No such option: --evry (Possible options: --every). See `pipeline status --help`"),
        ("statu", "No such command 'statu'. Did you mean 'status'? See `pipeline --help`"),
    ],
)
def test_a_wrong_word_is_named_with_what_may_be_given(said: Said, words: str, message: str) -> None:
    assert said(*words.split()) == f"error: {message}"


def commands(group: Any, *place: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, *place, name)
        else:
            yield (*place, name), command


def options(*kinds: type[Any]) -> Iterator[tuple[list[str], str]]:
    """Every option that takes one of these kinds, behind all that its command must be given."""
    for place, command in commands(COMMANDS):
        hints = get_type_hints(command.callback)
        for one in command.params:
            found = (hints.get(one.name), *get_args(hints.get(one.name)))
            if one.opts[0].startswith("-") and any(
                isinstance(each, type) and issubclass(each, kinds) and each is not bool for each in found
            ):
                needed = [each for each in command.params if each.required and each is not one]
                given = [word for each in needed for word in (*each.opts[:1], "1")[each.opts[0][0] != "-" :]]
                yield [*place, *given], one.opts[0]


@pytest.mark.parametrize("value", ["nothing-like-this", ""], ids=["wrong", "empty"])
def test_no_option_answers_in_words_of_the_libraries_that_read_it(said: Said, value: str) -> None:
    rows = list(options(int, float, Enum))
    assert len(rows) > 20
    for words, name in rows:
        told = said(*words, name, value)
        assert told.startswith("error: --")
        assert ": must be " in told
        assert "Value error" not in told
        assert "Input" not in told
