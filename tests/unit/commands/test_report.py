"""What runs have found, for others: which runs are compared, pages, trackers; and where nothing may be written."""

import io
import json
import logging
import shlex
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.commands import report, results
from pipeline.commands.report import runs_named
from pipeline.config.schema import Tracker, TrackingConfig
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.errors import ConfigError
from pipeline.runs import trackers
from pipeline.runs.origin import Origin, write_origin
from pipeline.runs.record import Results, write_results
from pipeline.runs.trackers import TRACKERS
from tests.doubles.pooled import pooled_row
from tests.doubles.runs import CHAIN, WrittenRun, chain_plan
from tests.doubles.sweeps import SweepOnPaper
from tests.doubles.tracked import TrackedRun


def asked(output_dir: Path, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*words, "--output-dir", str(output_dir)])
    assert done.exit_code == code, done.output
    return done.output


# -- compare -----------------------------------------------------------------------------------------------------


def tried(output_dir: Path, name: str, second: int, eta: float, group: str = "") -> WrittenRun:
    found = WrittenRun(output_dir, chain_plan(rounds=1), f"2026-01-02_10-00-0{second}", name)
    found.folder.config.write_text(f"algos:\n  PITA:\n    eta: {eta}\n")
    write_origin(found.folder.path, Origin(group=group))
    write_results(found.folder, Results(rows=[], pooled=[pooled_row("PITA", 1, eta / 10)]))
    return found


def named(output_dir: Path, *names: str) -> list[str]:
    return [f"{one.name}{one.stamp[-1]}" for one in runs_named(output_dir, names)]


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    for second, eta, group in ((1, 3.0, ""), (2, 1.0, "first"), (3, 1.0, "again"), (4, 2.0, "again")):
        tried(tmp_path, "sweep", second, eta, group)
    for second, eta in ((1, 1.0), (2, 2.0), (3, 1.0)):
        tried(tmp_path, "tried", second, eta)
    return tmp_path


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["sweep"], ["sweep3", "sweep4"]),
        (["tried"], ["tried3", "tried2"]),
        (["tried", "sweep"], ["tried3", "sweep3", "sweep4"]),
        (["tried/2026-01-02_10-00-01"], ["tried1"]),
        (["t*", "sweep/2026-01-02_10-00-01"], ["tried3", "sweep1"]),
        (["tried", "tried"], ["tried3"]),
    ],
    ids=" ".join,
)
def test_a_name_stands_for_these_runs(outputs: Path, names: list[str], found: list[str]) -> None:
    assert named(outputs, *names) == found
    for wrong, known in (("x*", "sweep, tried"), ("trid", "'tried'")):
        with pytest.raises(ConfigError, match=known):
            runs_named(outputs, [wrong])


def test_of_a_sweep_the_runs_of_its_trials_are_compared_and_not_the_test_of_the_best(tmp_path: Path) -> None:
    for second, eta in ((1, 1.0), (2, 2.0)):
        tried(tmp_path, "eta", second, eta)
    winner = tried(tmp_path, "eta", 3, 2.0)
    winner.folder.config.write_text("algos:\n  PITA:\n    eta: 2.0\nevaluation:\n  split: test\n")
    write_origin(winner.folder.path, Origin(settings=["algos.PITA.eta=2.0", "evaluation.split=test"]))
    assert named(tmp_path, "eta") == ["eta1", "eta2", "eta3"], "of an experiment that is no sweep it is one more"
    SweepOnPaper(tmp_path, "eta")
    assert named(tmp_path, "eta") == ["eta1", "eta2"]
    tried(tmp_path, "tried", 1, 1.0)
    assert named(tmp_path, "eta", "tried") == ["eta2", "tried1"]


def test_runs_are_printed_as_a_table_or_written_as_csv_or_as_a_page(outputs: Path) -> None:
    printed = asked(outputs, "compare", "sweep")
    rows = [line.split()[:3] for line in printed.splitlines() if line.split()[:1] == ["PITA"]]
    assert rows == [["PITA", "1", "0.100"], ["PITA", "2", "0.200"]]
    csv, page = outputs / "runs.csv", outputs / "page"
    asked(outputs, "compare", "sweep", "--csv", str(csv))
    assert len(csv.read_text().splitlines()) == 3
    both = ["compare", "sweep", "--csv", "/dev/stdout", "--html", str(page), "--output-dir", str(outputs)]
    assert CliRunner().invoke(app, both).stdout == csv.read_text()
    assert page.read_text().startswith("<!doctype html>")
    assert "cannot write" in asked(outputs, "compare", "sweep", "--csv", str(outputs), code=2)


# -- pages -------------------------------------------------------------------------------------------------------


def data_of(page: Path) -> dict[str, Any]:
    text = page.read_text().split('<script type="application/json" id="data">')[1].split("</script>")[0]
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("later", [False, True], ids=["killed", "and gone on with since"])
def test_the_page_of_a_killed_run_tells_what_was_lost_and_what_later_runs_made(
    tmp_path: Path, later: bool
) -> None:
    run = WrittenRun(tmp_path, chain_plan())
    run.worker(0, "gpu 0")
    first, second = (f"{CHAIN}/r1/generate/{shard:03d}" for shard in range(2))
    run.begin(first)
    run.finish(first)
    run.begin(second)
    for job in list(run.plan.jobs.values())[1:] if later else []:
        run.store(job.key)
    assert "report.html" in asked(tmp_path, "report", "x")
    (page,) = data_of(run.folder.report)["runs"]
    assert (page["name"], page["stamp"], page["state"]) == ("x", "2026-01-02_10-00-00", "killed")
    assert f"{6 if later else 1} of 6 jobs done" in page["unfinished"][0]
    (lost,) = page["failures"]["rows"]
    assert (lost["job"], lost["kind"]) == (second, "lost")
    assert page["timeline"]["lanes"] == ["gpu 0"]
    assert page["timeline"]["bars"]["name"] == [first, second]
    assert page["timeline"]["bars"]["outcome"] == ["done", "lost"]


def test_one_page_has_several_runs_and_what_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    for name in ("one", "two"):
        WrittenRun(tmp_path, chain_plan(), name=name)
    asked(tmp_path, "report", "one", "two", "two")
    assert [run["name"] for run in data_of(tmp_path / "report.html")["runs"]] == ["one", "two"]
    (tmp_path / "file").touch()
    asked(tmp_path, "report", "one", "--out", str(tmp_path / "file" / "page.html"), code=2)
    asked(tmp_path, "report", "one", "two", "--run", "2026", code=2)
    asked(tmp_path, "report", "three", code=2)


def test_a_run_whose_page_cannot_be_written_is_a_run_nevertheless(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = WrittenRun(tmp_path, chain_plan())
    run.folder.report.mkdir()
    console = Console(file=io.StringIO(), width=200)
    with caplog.at_level(logging.WARNING, "pipeline"):
        results.leave_report(run.folder, console)
    assert "warning: no report was written" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "no report was written" in caplog.text
    assert not list(run.folder.path.glob(".report*"))


# -- targets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["figures", "x", "--format", "svg", "--out"],
        ["report", "x", "--out"],
        ["compare", "x", "--csv"],
        ["compare", "x", "--html"],
        ["export", "x", "PITA", "--to"],
    ],
    ids=lambda words: words[0] + words[-1],
)
def test_nothing_is_written_over_what_runs_and_stores_hold(tmp_path: Path, words: list[str]) -> None:
    output_dir = tmp_path / "outputs"
    run, other = (WrittenRun(output_dir, chain_plan(rounds=1), name=name) for name in ("x", "other"))
    for each in (run, other):
        write_results(each.folder, Results(rows=[], pooled=[pooled_row("PITA", 1, 0.5)]))
    (tmp_path / "link").symlink_to(other.folder.path)
    for place in (run.store("a" * 40, metrics_json="{}"), other.folder.path, tmp_path / "link"):
        said = " ".join(asked(output_dir, *words, str(place / "new"), code=2).split())
        assert said.startswith(f"error: {words[-1]} {place / 'new'}: that is inside ")
        assert not (place / "new").exists()
    if words[-1] != "--csv":
        asked(output_dir, *words, "/dev/stdout", code=2)


# -- trackers ----------------------------------------------------------------------------------------------------


ASKED = TrackingConfig(report_to=[Tracker.wandb], finish_timeout_s=7.0)


class Noted:
    """In the place of the processes: what is asked of them."""

    def __init__(self, *given: Any) -> None:
        self.given, self.asked, self.look_commands = given, list[str](), {"wandb": "wandb sync here"}
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
    for module in (report, trackers):
        monkeypatch.setattr(module, "Feeders", Noted)
    return made


@pytest.fixture
def run(tmp_path: Path) -> TrackedRun:
    return TrackedRun(tmp_path / "outputs")


def test_trackers_are_heard_meanwhile_waited_for_and_ended(noted: list[Noted], run: TrackedRun) -> None:
    out = io.StringIO()
    with StopSignals() as signals:
        for tracking in (TrackingConfig(), ASKED):
            with results.tracked(run.folder, tracking, Console(file=out), signals) as hear:
                hear()
        with results.tracked(run.folder, ASKED, Console(file=out), signals):
            signals.received = "SIGINT"
        with pytest.raises(OSError), results.tracked(run.folder, ASKED, Console(file=out), StopSignals()):
            raise OSError
    # One that asks for none starts nothing; after an interrupt or a fault nobody waits.
    assert [each.asked for each in noted] == [["look", "finish 7", "end"], ["end"], ["end"]]
    assert "wandb: wandb sync here" in out.getvalue()


def test_a_tracker_that_is_not_installed_costs_a_warning_that_says_how(
    run: TrackedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TRACKERS["wandb"], "package", "no_such_package")
    out = io.StringIO()
    with StopSignals() as signals, results.tracked(run.folder, ASKED, Console(file=out, width=1000), signals):
        pass
    [line] = out.getvalue().splitlines()
    assert line.startswith("warning: tracking: wandb: it is not installed: pip install ")
    command = line.partition("`python -m pipeline ")[2].partition("`")[0]
    WrittenRun(run.folder.path.parents[1], chain_plan(rounds=1), "2026-12-31_10-00-00", "x")  # asks for no tracker
    outcome = CliRunner().invoke(app, shlex.split(command))
    assert (outcome.exit_code, "it is not installed" in outcome.output) == (1, True)


def test_the_command_does_what_the_run_asked_for_or_what_is_said(noted: list[Noted], run: TrackedRun) -> None:
    output_dir = run.folder.path.parents[1]
    assert "--report-to" in asked(output_dir, "track", "x", code=2)
    run.folder.config.write_text("tracking: {report_to: [wandb, trackio], project: p}\n")
    asked(output_dir, "track", "x")
    asked(output_dir, "track", "x", "--report-to", "tensorboard")
    first, second = (each.given[1] for each in noted)
    assert (first.report_to, first.project, first.mode.value) == ([Tracker.wandb, Tracker.trackio], "p", "offline")
    assert (second.report_to, second.project, second.mode.value) == ([Tracker.tensorboard], "p", "offline")
    assert noted[0].asked == ["finish inf", "end"]
