"""The console of every command, onto streams of every kind."""

import io
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.terminal import console as watching
from pipeline.terminal.console import Terminal, make_console, say, watch


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


@pytest.mark.parametrize(
    ("environ", "styled"),
    [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({}, False)],
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
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
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


# -- test watch --------------------------------------------------------------------------------------------------
# Looking again and again: in place on a terminal, elsewhere what is new, until there is no more to see.


class Looks:
    """A thing that changes three times."""

    def __init__(self) -> None:
        self.times = 0
        self.slept: list[float] = []

    def look(self) -> bool:
        self.times += 1
        return self.times < 3

    def lines(self) -> list[str]:
        return [f"look {self.times}"]

    def page(self, width: int, height: int) -> list[Text]:
        return [Text(f"look {self.times} {line} of {width}", no_wrap=True) for line in range(40)]


def test_elsewhere_than_on_a_terminal_what_is_new_is_printed() -> None:
    out, looks = io.StringIO(), Looks()
    watch(Terminal(file=out, width=80), 2.5, looks.look, looks.page, looks.lines, looks.slept.append)
    assert out.getvalue() == "look 1\nlook 2\nlook 3\n"
    assert looks.slept == [2.5, 2.5]


def test_on_a_terminal_a_page_is_redrawn_in_place_and_fits() -> None:
    out, looks = io.StringIO(), Looks()
    console = Console(
        file=out, width=60, height=12, force_terminal=True, force_interactive=True, legacy_windows=False
    )
    watch(console, 1.0, looks.look, looks.page, looks.lines, looks.slept.append)
    drawn = out.getvalue()
    assert "look 3 0 of 60" in drawn
    assert "look 2 12 of" not in drawn  # what has no room would scroll away what is above it
    assert "\x1b[1A" in drawn  # it goes up to where it began
    assert drawn.endswith("\x1b[?25h")  # and leaves a cursor that can be seen


def test_after_a_change_of_its_size_the_terminal_is_drawn_anew() -> None:
    out, looks = io.StringIO(), Looks()
    console = Console(file=out, width=60, height=12, force_terminal=True, force_interactive=True)

    def shrink(_seconds: float) -> None:
        console.size = (30, 12)  # type: ignore[assignment]

    watch(console, 1.0, looks.look, looks.page, looks.lines, shrink)
    before, cleared, after = out.getvalue().partition("\x1b[2J\x1b[H")
    assert "of 60" in before
    assert cleared
    assert "of 30" in after
    assert "of 60" not in after


def test_it_ends_when_nobody_reads_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks()
    monkeypatch.setattr(watching, "is_gone", lambda stream: stream is sys.stdout)
    watch(Terminal(file=io.StringIO(), width=80), 1.0, looks.look, looks.page, looks.lines, looks.slept.append)
    assert looks.times == 1
