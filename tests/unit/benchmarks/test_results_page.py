"""The pages of results have a place for every part, and a part is a run that can be planned."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import results
from benchmarks.results import PARTS, Part, main, overrides_of, written
from pipeline.config.checks import check_config
from pipeline.config.plain import to_plain
from pipeline.engine.journal import Journal
from pipeline.engine.run_folder import RunFolder, create_run_folder
from pipeline.plan.build import build_plan
from pipeline.runs.cost import Compute, CostRow, write_compute
from pipeline.runs.record import Results, write_results
from tests.doubles.composing import quick_config


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "load_config", quick_config)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_part_can_be_run_and_has_its_place(part: Part, tmp_path: Path) -> None:
    config = quick_config([*part.words[1:], f"output_dir={tmp_path}"])
    check_config(config)
    if "tiny" in config.models:  # others are files that may not be here
        assert build_plan(config).jobs
    assert config.experiment.name == part.name
    assert config.evaluation.split == "test"
    page = part.page.read_text("utf-8")
    assert written(page, part.name, "x").count("<!-- results: ") == page.count("<!-- results: ")
    assert shlex.join(["python", *part.words]) in page


def test_only_the_place_of_a_part_is_written() -> None:
    page = "a\n<!-- results: one -->\nold\n<!-- end -->\nb\n<!-- results: two -->\nold\n<!-- end -->\nc\n"
    assert written(page, "two", "new \\1") == page.replace("two -->\nold", "two -->\n\nnew \\1\n")
    with pytest.raises(SystemExit, match="no place for three"):
        written(page, "three", "new")


PART = Part("first_run", (), lambda results, compute: "the table", 2)
PLACES = "<!-- results: first_run -->\nold\n<!-- end -->\n"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page with a place for the one part that there is."""
    found = tmp_path / "page.md"
    found.write_text(PLACES)
    monkeypatch.setattr(results, "PARTS", (replace(PART, page=found),))
    return found


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["results.py", *words])
    main()


def recorded(out: Path, *words: str, ended: str | None = None, costs: bool = True) -> RunFolder:
    """What a run of the part left, without its jobs.

    Args:
        out: Folder of the runs.
        words: More of its command line.
        ended: The signal that ended it.
        costs: Whether what it took is there.
    """
    run = create_run_folder(out, PART.name)
    run.config.write_text(yaml.safe_dump(to_plain(quick_config([*overrides_of(PART, out), *words]))))
    journal = Journal(run.journal)
    journal.write("RunStarted", jobs=1, unsettled=0)
    journal.write("RunFinished", interrupted=ended, stored=1)
    journal.close()
    write_results(run, Results(rows=[]))
    if costs:
        spent = CostRow(dataset="d", model="m", algo="PITA", round=1, flops=None, answer=None, device_s=None)
        write_compute(run.path, Compute(costs=[spent]))
    return run


def test_a_run_of_the_command_of_a_part_is_written(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path / "runs", "execution.workers=7")  # how fast it was says nothing of what came out
    monkeypatch.chdir(tmp_path)
    call(monkeypatch, "--write", "--out", "runs")
    assert "the table" in page.read_text()


@pytest.mark.parametrize(
    ("words", "given", "message"),
    [
        ((), {"ended": "SIGINT"}, "is not done but interrupted"),
        (
            ("experiment.seeds=[7]", "evaluation.budgets=[1e9]"),
            {},
            "differs in evaluation.budgets, experiment.seeds",
        ),
        ((), {"costs": False}, "compute.json has no costs"),
        (None, {}, "no run of 'first_run'"),
    ],
    ids=["interrupted", "of another command", "without costs", "never run"],
)
def test_no_other_run_is_written(
    words: tuple[str, ...] | None,
    given: dict[str, Any],
    message: str,
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if words is not None:
        recorded(tmp_path, *words, **given)
    with pytest.raises(SystemExit, match=message):
        call(monkeypatch, "--write", "--out", str(tmp_path))
    assert page.read_text() == PLACES
