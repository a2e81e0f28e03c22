"""The command that writes pages of runs, and the page that a run leaves when it ends."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.commands.report import leave_report
from pipeline.runs.record import Results, write_results
from tests.doubles.pooled import pooled_row
from tests.doubles.runs import CHAIN, WrittenRun, chain_plan


def data_of(page: Path) -> dict[str, Any]:
    text = page.read_text().split('<script type="application/json" id="data">')[1].split("</script>")[0]
    found: dict[str, Any] = json.loads(text)
    return found


def asked(*words: str, output_dir: Path, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["report", *words, "--output-dir", str(output_dir)])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


def test_a_page_of_a_run_is_written_into_its_folder(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, chain_plan())
    run.worker(0, "gpu 0")
    for shard in range(2):
        run.begin(f"{CHAIN}/r1/generate/{shard:03d}")
        run.finish(f"{CHAIN}/r1/generate/{shard:03d}")
    assert str(run.folder.report) in asked("x", output_dir=tmp_path)
    (page,) = data_of(run.folder.report)["runs"]
    assert (page["name"], page["stamp"], page["state"]) == ("x", "2026-01-02_10-00-00", "killed")
    assert "2 of 6 jobs done" in page["unfinished"][0]
    assert CHAIN in " ".join(page["unfinished"])
    assert page["timeline"]["lanes"] == ["gpu 0"]
    assert page["timeline"]["bars"]["name"] == [f"{CHAIN}/r1/generate/000", f"{CHAIN}/r1/generate/001"]


def test_a_page_of_a_killed_run_tells_what_later_runs_made_and_what_was_lost(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, chain_plan())
    run.worker(0, "gpu 0")
    first, second = (f"{CHAIN}/r1/generate/{shard:03d}" for shard in range(2))
    run.begin(first)
    run.finish(first)
    run.begin(second)
    for job in list(run.plan.jobs.values())[1:]:
        run.store(job.key)
    asked("x", output_dir=tmp_path)
    (page,) = data_of(run.folder.report)["runs"]
    assert "5 " in " ".join(page["unfinished"])
    assert "later runs" in " ".join(page["unfinished"])
    (lost,) = page["failures"]["rows"]
    assert (lost["job"], lost["kind"], lost["outcome"]) == (second, "lost", "lost with the run")
    assert page["timeline"]["bars"]["outcome"] == ["done", "lost"]


def test_one_page_has_several_runs(tmp_path: Path) -> None:
    for name in ("one", "two"):
        WrittenRun(tmp_path, chain_plan(), name=name)
    asked("one", "two", "two", output_dir=tmp_path)
    assert [run["name"] for run in data_of(tmp_path / "report.html")["runs"]] == ["one", "two"]
    asked("two", "one", "--out", str(tmp_path / "other.html"), output_dir=tmp_path)
    assert [run["name"] for run in data_of(tmp_path / "other.html")["runs"]] == ["two", "one"]


def test_what_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    for name in ("one", "two"):
        WrittenRun(tmp_path, chain_plan(), name=name)
    (tmp_path / "file").touch()
    said = asked("one", "--out", str(tmp_path / "file" / "page.html"), output_dir=tmp_path, code=2)
    assert "Give another file as --out." in said
    assert "give one NAME with it" in asked("one", "two", "--run", "2026", output_dir=tmp_path, code=2)
    assert "no run of 'three'" in asked("three", output_dir=tmp_path, code=2)


def test_a_run_whose_page_cannot_be_written_is_a_run_nevertheless(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = WrittenRun(tmp_path, chain_plan())
    run.folder.report.mkdir()
    console = Console(file=io.StringIO(), width=200)
    with caplog.at_level(logging.WARNING, "pipeline"):
        leave_report(run.folder, console)
    assert "warning: no report was written" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "no report was written" in caplog.text
    assert not list(run.folder.path.glob(".report*"))


# -- test targets ------------------------------------------------------------------------------------------------
# No command writes into a store, or over what a run has left.


WRITING = pytest.mark.parametrize(
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
BY_LINK = pytest.mark.parametrize("by_link", [False, True], ids=["straight", "by a link"])


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    return _written(tmp_path, "x")


@WRITING
@BY_LINK
def test_a_place_inside_the_store_is_refused(
    run: WrittenRun, tmp_path: Path, words: list[str], by_link: bool
) -> None:
    output = run.store("a" * 40, metrics_json="{}")
    target = _place(output, tmp_path, by_link) / "new"
    code, said = _told(words, target, tmp_path)
    assert code == 2
    assert said.startswith(f"error: {words[-1]} {target}: that is inside ")
    assert not target.exists()


@WRITING
@BY_LINK
def test_a_place_inside_the_folder_of_a_run_is_refused(
    run: WrittenRun, tmp_path: Path, words: list[str], by_link: bool
) -> None:
    other = _written(tmp_path, "other").folder
    target = _place(other.path, tmp_path, by_link) / "new"
    code, said = _told(words, target, tmp_path)
    assert code == 2
    assert said.startswith(f"error: {words[-1]} {target}: that is inside {other.path}")
    assert not target.exists()


@pytest.mark.parametrize(
    "words", [["compare", "x", "--html"], ["report", "x", "--out"], ["figures", "x", "--out"]]
)
@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_standard_output_is_no_place_for_a_page(
    run: WrittenRun, tmp_path: Path, words: list[str], name: str
) -> None:
    code, said = _told(words, Path(name), tmp_path)
    assert (code, "nothing is written to the output of a command" in said) == (2, True)


def _written(tmp_path: Path, name: str) -> WrittenRun:
    run = WrittenRun(tmp_path / "outputs", chain_plan(rounds=1), name=name)
    write_results(run.folder, Results(rows=[], pooled=[pooled_row("PITA", 1, 0.5)]))
    return run


def _place(folder: Path, tmp_path: Path, by_link: bool) -> Path:
    if not by_link:
        return folder
    (tmp_path / "link").symlink_to(folder)
    return tmp_path / "link"


def _told(words: Sequence[str], target: Path, tmp_path: Path) -> tuple[int, str]:
    answer = CliRunner().invoke(app, [*words, str(target), "--output-dir", str(tmp_path / "outputs")])
    return answer.exit_code, " ".join(answer.output.split())
