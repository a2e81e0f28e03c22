"""No command writes into a store, or over what a run has left."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.runs.record import Results, write_results
from tests.doubles.pooled import pooled_row
from tests.doubles.runs import WrittenRun, chain_plan

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
    assert said.startswith(f"error: {words[-1]} {target}: that is inside the store")
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
    assert said.startswith(f"error: {words[-1]} {target}: that is inside the folder of a run, {other.path}")
    assert not target.exists()


def test_a_page_may_take_the_place_of_the_report_of_a_run(run: WrittenRun, tmp_path: Path) -> None:
    code, _ = _told(["report", "x", "--out"], tmp_path / "outputs/x/latest/report.html", tmp_path)
    assert code == 0
    assert run.folder.report.read_text().startswith("<!doctype html>")


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
