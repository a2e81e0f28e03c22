"""Reports while a run goes on: when one is written, and that none of them can do a run any harm."""

import time
from pathlib import Path

import pytest

from pipeline.commands import results
from pipeline.commands.results import MOST_OFTEN_S, RoundReports, finished_rounds
from pipeline.runs.run_view import JobCounts, RunView
from tests.doubles.runs import WrittenRun, chain_plan


def view_of(*cells: tuple[str, int, JobCounts]) -> RunView:
    view = RunView()
    view.cells = {(chain, number): counts for chain, number, counts in cells}
    return view


def test_a_round_has_finished_when_all_chains_have_finished_it() -> None:
    done, half = JobCounts(total=2, done=2), JobCounts(total=2, done=1)
    before = JobCounts(total=2, stored=2)
    assert finished_rounds(view_of(("a", 1, done), ("b", 1, half), ("a", 2, half))) == 0
    assert finished_rounds(view_of(("a", 1, done), ("b", 1, done), ("a", 2, half))) == 1
    assert finished_rounds(view_of(("a", 0, before), ("a", 1, half))) == 0  # there is nothing new
    assert finished_rounds(view_of(("a", 1, done), ("a", 2, done))) == 0  # the end writes the last one


def updated_until_it_has_ended(reports: RoundReports, view: RunView) -> None:
    now, deadline = 1000.0, time.monotonic() + 600
    reports.update(view, now)
    assert reports._process is not None
    while reports._process is not None:
        assert time.monotonic() < deadline
        now += MOST_OFTEN_S
        time.sleep(0.01)
        reports.update(view, now)


def test_a_report_is_written_beside_the_run_that_goes_on(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, chain_plan())
    view = view_of(("a", 1, JobCounts(total=1, done=1)), ("a", 2, JobCounts(total=1)))
    with RoundReports(run.folder) as reports:
        updated_until_it_has_ended(reports, view)
        reports.update(view, 5000.0)
        assert reports._process is None  # of the same rounds there is one already
    assert "X" in run.folder.report.read_text()


def test_a_report_that_fails_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = WrittenRun(tmp_path, chain_plan())
    run.folder.results_json.write_text("{")
    view = view_of(("a", 1, JobCounts(total=1, done=1)), ("a", 2, JobCounts(total=1)))
    with RoundReports(run.folder) as reports:
        updated_until_it_has_ended(reports, view)
        reports.update(
            view_of(*((chain, number + 1, cell) for (chain, number), cell in view.cells.items())), 9000.0
        )
        assert reports._process is None  # what went wrong once is not tried again and again
    assert "no report of the rounds so far was written: StoreError: cannot read" in caplog.text
    assert not run.folder.report.exists()


def test_none_is_being_written_any_more_when_a_run_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = WrittenRun(tmp_path, chain_plan())
    monkeypatch.setattr(results, "command", lambda *_, **__: (["sleep", "600"], {}))
    left = run.folder.path / f".{run.folder.report.name}.1234"
    left.touch()
    with RoundReports(run.folder) as reports:
        reports.update(view_of(("a", 1, JobCounts(total=1, done=1)), ("a", 2, JobCounts(total=1))), 1000.0)
        process = reports._process
        assert process is not None
    assert process.returncode == -9
    assert not left.exists()
