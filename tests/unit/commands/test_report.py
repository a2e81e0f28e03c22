"""The command that writes pages of runs, and the page that a run leaves when it ends."""

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.commands.report import leave_report
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
