"""Looking again and again: in place on a terminal, elsewhere what is new, until there is no more to see."""

import io
import sys

import pytest
from rich.console import Console
from rich.text import Text

from pipeline.terminal import console as watching
from pipeline.terminal.console import Terminal, wait_for, watch


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


@pytest.mark.parametrize("interactive", [True, False], ids=["terminal", "pipe"])
def test_what_is_waited_for_is_taken_away_where_that_can_be_done(
    interactive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    console = Console(file=out, width=60, height=12, force_terminal=interactive, force_interactive=interactive)
    missing = ["There are no runs.", "There are no runs.", ""]
    monkeypatch.setattr(watching.time, "sleep", lambda _: None)
    wait_for(console, 1.0, lambda: missing.pop(0))
    assert "There are no runs. Waiting for it; Ctrl-C ends that.\n" in out.getvalue()
    assert interactive or out.getvalue().count("Waiting") == 1
    assert out.getvalue().endswith("\x1b[2K") == interactive  # the line is erased


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
