"""A run in a notebook: frames with the columns of the page, and a table that nothing foreign gets out of."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

import pipeline
from pipeline.files import lock
from pipeline.outputs.formats import Sample, TrainingStep, write_curve
from pipeline.runs.loaded import load
from pipeline.runs.notebook import Run
from pipeline.runs.record import ResultRow, Results, write_results
from tests.doubles.pooled import comparison, pooled_row
from tests.doubles.runs import CHAIN, WrittenRun, chain_plan

PAGE = Path(pipeline.__file__).parents[1] / "docs" / "python.md"
FRAMES = ("results", "pooled", "comparisons", "samples", "curves", "timeline", "compute")
HOSTILE = "<script>alert(1)</script>\x1b[2J</td>"


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    return WrittenRun(tmp_path, chain_plan(rounds=1))


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_has_the_columns_that_the_page_names_even_without_rows(run: WrittenRun, name: str) -> None:
    (line,) = re.findall(rf"^\| `run\.{name}` \|.*$", PAGE.read_text(), re.MULTILINE)
    named = re.findall(r"`([a-z]\w*)`", re.sub(r"\([^)]*\)", "", line.rpartition(" | ")[2]))
    frame = getattr(Run(load(run.folder)), name)
    assert set(named) <= set(frame.columns)
    assert len(frame) == 0


def test_frames_keep_their_types_where_something_is_missing(run: WrittenRun) -> None:
    line = '{"row": 1, "sample": 0, "prompt": "p", "completion": "c", "tokens": 2, "reward": null, '
    line += '"correct": null, "kl": null, "truncated": false, "parts": {"style": 0.5}}\n'
    train = run.plan.jobs[f"{CHAIN}/r1/train"]
    folder = run.store(train.key, samples_jsonl=line)
    step = {"training": "policy", "steps": 2, "tokens": 9, "grad_norm": None, "learning_rate": 0.1}
    write_curve(folder, [TrainingStep(step=1, loss=None, **step), TrainingStep(step=2, loss=0.5, **step)])
    row = ResultRow("X", "d", "m", 0, 1, "pass@1", None, None, None, 0)
    write_results(run.folder, Results(rows=[row], pooled=[pooled_row("X")], comparisons=[comparison("X")]))
    run.worker(0, "GPU 0")
    run.begin(train.id)
    found = Run(load(run.folder))
    assert found.samples.dtypes[["reward", "correct", "kl", "seed", "rewards/style"]].map(str).to_list() == [
        *("float64", "boolean", "float64", "Int64", "float64")
    ]
    assert found.curves.loss.isna().to_list() == [True, False]
    assert found.results.dtypes[["reference", "value", "round"]].map(str).to_list() == [
        "Int64",
        "float64",
        "int64",
    ]
    assert found.comparisons.p.to_list() == [0.04]
    with run.folder.journal.open() as engine:  # which lives as long as it holds its journal
        lock(engine.fileno(), shared=False, wait=False)
        timeline = found.timeline
    (span,) = timeline.itertuples()
    assert (span.outcome, str(span.start.tz)) == ("running", "UTC")
    assert timeline[["end", "seconds"]].isna().all(axis=None)
    run.finish(train.id)
    assert found.refresh().timeline.seconds.to_list() == [1.0]


def test_each_sample_has_the_solution_of_its_row(run: WrittenRun) -> None:
    samples = [
        Sample(row, sample, "p", "c", 1, None, None, None, False, solution=solution)
        for row, sample, solution in ((1, 0, "a"), (1, 1, None), (2, 0, None))
    ]
    train = run.plan.jobs[f"{CHAIN}/r1/train"]
    run.store(train.key, samples_jsonl="".join(json.dumps(asdict(each)) + "\n" for each in samples))
    assert Run(load(run.folder)).samples.solution.fillna("").to_list() == ["a", "a", ""]


def test_what_a_notebook_shows_is_whole_in_itself_and_escaped(run: WrittenRun) -> None:
    found = Run(load(run.folder))
    assert "no results yet" in found._repr_html_()
    write_results(run.folder, Results(rows=[], pooled=[pooled_row(HOSTILE, 2, 0.5)]))
    shown = found.refresh()._repr_html_()
    assert r"&lt;script&gt;alert(1)&lt;/script&gt;\x1b[2J&lt;/td&gt;" in re.sub("</?span[^>]*>", "", shown)
    assert "<script" not in shown
    assert not re.search(r"src=|href=|url\(|@import", shown)
    assert "0.500" in shown
