"""The console of every command, onto streams of every kind."""

import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from pipeline.terminal.console import Terminal, make_console, say


def printed(*things: object, encoding: str = "utf-8", width: int = 40) -> str:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Terminal(file=out, width=width, markup=False, emoji=False, color_system=None)
    for thing in things:
        console.print(thing)
    out.seek(0)
    return out.read()


def test_names_are_no_markup_no_emoji_and_no_commands() -> None:
    table = Table("name", title="[bold]t\x1b[2J")
    table.add_row(r"\[/red] :100: [blue]")
    table.add_row(Text("\x1b]0;x\x07"))
    text = printed(table)
    assert "[bold]t\\x1b[2J" in text
    assert r"\[/red] :100: [blue]" in text
    assert "\x1b" not in text


def test_what_is_escaped_keeps_its_style() -> None:
    out = io.StringIO()
    console = Terminal(file=out, force_terminal=True, color_system="standard", width=80)
    console.print(Text.assemble(("bad\x1b", "red"), "\x1b plain"), highlight=False)
    assert out.getvalue() == "\x1b[31mbad\x1b[0m\x1b[31m\\x1b\x1b[0m\\x1b plain\n"


def said(text: str, width: int, *, terminal: bool = True, copy: str = "") -> list[str]:
    out = io.StringIO()
    say(Terminal(file=out, force_terminal=terminal, color_system=None, width=width), text, copy=copy)
    return out.getvalue().splitlines()


def test_on_a_terminal_lines_end_between_words_and_what_is_to_be_copied_is_whole() -> None:
    path = "outputs/small/2026-01-01_00-00-00/run.log"
    assert said(f"one word and another, then {path} ends", 20) == ["one word and", "another, then", path, "ends"]
    assert said("read the first:", 20, copy="python -m pipeline logs x y") == [
        "read the first:",
        "python -m pipeline logs x y",
    ]
    assert said("go: `python -m pipeline gpus`, or not", 20) == ["go:", "`python -m pipeline gpus`,", "or not"]
    assert said("write x='a b c' or 'd e', or not", 20) == ["write x='a b c' or", "'d e', or not"]
    setting = "'datasets.jsonl.columns={prompt: the question that is asked, solution: the answer}'"
    assert said(f"write {setting}.", 40) == ["write", f"{setting}."]
    assert said("the runs' own 'a", 9) == ["the runs'", "own 'a"]
    assert said("  a  `b\n\nc", 20) == ["  a  `b", "", "c"]


def test_where_there_is_no_terminal_lines_stay_whole() -> None:
    assert said("one word and another", 8, terminal=False, copy="a b c") == ["one word and another a b c"]


@given(st.text(" `ab\n"), st.integers(1, 30))
def test_wrapping_changes_nothing_but_spaces(text: str, width: int) -> None:
    assert "".join(said(text, width)).replace(" ", "") == text.replace(" ", "").replace("\n", "")


@pytest.mark.parametrize(
    ("environ", "styled"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
    ids=["a real one", "a dumb one", "one that does not say what it is"],
)
def test_a_terminal_is_drawn_upon_only_if_it_can_be(
    environ: dict[str, str], styled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal, os.fdopen(master):
        monkeypatch.setattr("sys.stdout", terminal)
        console = make_console()
        assert console.is_interactive is styled
        assert (console.color_system is not None) is styled


@pytest.mark.properties
@given(
    st.lists(st.text(), min_size=1, max_size=4), st.sampled_from(["utf-8", "ascii", "latin-1"]), st.integers(1, 90)
)
def test_any_text_anywhere_is_printed_without_a_command(cells: list[str], encoding: str, width: int) -> None:
    table = Table(*cells, title=cells[0], caption=cells[-1])
    table.add_row(*cells)
    table.add_row(*map(Text, cells))
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="pipeline.fallback")
    console = Terminal(file=out, width=width, markup=False, emoji=False, color_system=None)
    console.print(table)
    for cell in cells:
        say(console, cell, "red")
        console.print(Text(cell))
    out.seek(0)
    text = out.read()
    assert all(char in "\n\t" or ord(char) > 0x9F or 0x20 <= ord(char) < 0x7F for char in text)


def test_a_notebook_gets_plain_lines_that_fit_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel asks the programs that it starts for colours, and is no terminal."""
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = make_console()
    say(console, "a word " * 30, "bold red")
    console.print(Text("styled", style="green"))
    assert "\x1b" not in stream.getvalue()
    assert max(map(len, stream.getvalue().splitlines())) <= console.width == 100
    assert not console.is_interactive
    assert not console.is_jupyter
