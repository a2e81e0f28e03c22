"""Trackers beside a run, and the command that brings them up to date: what is said, and what is asked of whom."""

import io
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.commands import track
from pipeline.config.schema import Tracker, TrackingConfig
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.runs.tracking.trackers import TRACKERS
from tests.doubles.runs import WrittenRun, chain_plan
from tests.doubles.tracked import TrackedRun

ASKED = TrackingConfig(report_to=[Tracker.wandb], finish_timeout_s=7.0)


class Noted:
    """In the place of the processes: what is asked of them."""

    def __init__(self, *given: Any) -> None:
        self.given, self.asked, self.told = given, list[str](), {"wandb": "wandb sync here"}
        made.append(self)

    def look(self) -> None:
        self.asked.append("look")

    def finish(self, timeout_s: float, interrupted: int = -1) -> None:
        self.asked.append(f"finish {timeout_s:g}")

    def end(self) -> None:
        self.asked.append("end")


made: list[Noted] = []


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[Noted]:
    made.clear()
    monkeypatch.setattr(track, "Feeders", Noted)
    return made


@pytest.fixture
def run(tmp_path: Path) -> TrackedRun:
    return TrackedRun(tmp_path / "outputs")


def test_a_run_that_asks_for_no_tracker_starts_nothing(noted: list[Noted], run: TrackedRun) -> None:
    with track.tracked(run.folder, TrackingConfig(), Console(), StopSignals()) as hear:
        hear()
    assert not noted


def test_trackers_are_heard_meanwhile_waited_for_and_ended(noted: list[Noted], run: TrackedRun) -> None:
    out = io.StringIO()
    with StopSignals() as signals, track.tracked(run.folder, ASKED, Console(file=out), signals) as hear:
        hear()
    assert noted[0].asked == ["look", "finish 7", "end"]
    assert "wandb: wandb sync here" in out.getvalue()


def test_after_an_interrupt_or_a_fault_nobody_waits(noted: list[Noted], run: TrackedRun) -> None:
    with StopSignals() as signals:
        with track.tracked(run.folder, ASKED, Console(file=io.StringIO()), signals):
            signals.received = "SIGINT"
        with pytest.raises(OSError), track.tracked(run.folder, ASKED, Console(), StopSignals()):
            raise OSError
    assert [each.asked for each in noted] == [["end"], ["end"]]


def test_a_tracker_that_is_not_installed_costs_a_warning_that_says_how(
    run: TrackedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = {**TRACKERS, "wandb": replace(TRACKERS["wandb"], package="no_such_package")}
    monkeypatch.setattr("pipeline.runs.tracking.feeders.TRACKERS", missing)
    out = io.StringIO()
    console = Console(file=out, width=1000)
    with StopSignals() as signals, track.tracked(run.folder, ASKED, console, signals):
        pass
    [line] = out.getvalue().splitlines()
    assert line.startswith("warning: tracking: wandb: it is not installed: pip install ")
    assert "[wandb]" in line
    command = line.partition("`python -m pipeline ")[2].partition("`")[0]
    WrittenRun(run.folder.path.parents[1], chain_plan(rounds=1), "2026-12-31_10-00-00", "x")  # asks for no tracker
    outcome = CliRunner().invoke(app, shlex.split(command))
    assert (outcome.exit_code, "it is not installed" in outcome.output) == (1, True)


def tracking(run: TrackedRun, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["track", "x", "--output-dir", str(run.folder.path.parents[1]), *words])
    return done.exit_code, " ".join(done.output.split())


def test_the_command_does_what_the_run_asked_for_or_what_is_said(noted: list[Noted], run: TrackedRun) -> None:
    code, said = tracking(run)
    assert code == 2
    assert "asked for no tracker. Say which by --report-to" in said
    run.folder.config.write_text("tracking: {report_to: [wandb, trackio], project: p}\n")
    assert tracking(run) == (0, "wandb was told everything: wandb sync here")
    assert tracking(run, "--report-to", "tensorboard", "--project", "q", "--online")[0] == 0
    first, second = (each.given[1] for each in noted)
    assert (first.report_to, first.project, first.mode.value) == ([Tracker.wandb, Tracker.trackio], "p", "offline")
    assert (second.report_to, second.project, second.mode.value) == ([Tracker.tensorboard], "q", "online")
    assert noted[0].asked == ["finish inf", "end"]
