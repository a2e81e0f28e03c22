"""What a sweep shows while its agent works on it."""

import io
from pathlib import Path

from pipeline.sweeps.report.live import told_on
from pipeline.terminal.console import Terminal
from tests.doubles.sweeps import SweepOnPaper


def shown(sweep: SweepOnPaper, *, terminal: bool) -> str:
    """What is drawn when a trial has begun since the view was opened, and a line is said of it."""
    file = io.StringIO()
    console = Terminal(file=file, width=100, height=24, force_terminal=terminal, force_interactive=terminal)
    with told_on(console, sweep.folder) as told:
        sweep.create(0, {"lr": 0.25})
        sweep.start(0)
        told.say("trial 0 on cpu slot 0")
        return file.getvalue()


def test_a_terminal_shows_where_the_sweep_stands_and_what_was_said_last(tmp_path: Path) -> None:
    said = shown(SweepOnPaper(tmp_path), terminal=True)
    assert "1 trial, " in said
    assert "0.25" in said
    assert said.count("trial 0 on cpu slot 0") == 1


def test_elsewhere_every_line_is_printed_and_no_table(tmp_path: Path) -> None:
    assert shown(SweepOnPaper(tmp_path), terminal=False) == "trial 0 on cpu slot 0\n"
