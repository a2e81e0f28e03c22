"""Figures as files: the same bytes from the same run, text as text, foreign names as they are."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.learning.algos.base import REFERENCE
from pipeline.outputs.formats import TrainingStep, write_curve
from pipeline.runs.cost import Compute, CostRow, write_compute
from pipeline.runs.figures import charts, data, write
from pipeline.runs.figures.charts import fills, in_order, looks, some_of, styled
from pipeline.runs.loaded import load
from pipeline.runs.looks import COLOURS
from pipeline.runs.record import Results, write_results
from tests.doubles.pooled import pooled_row
from tests.doubles.runs import CHAIN, WrittenRun, chain_plan

HOSTILE = "$x_1$ <script>&\x1b[2J"


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    found = WrittenRun(tmp_path / "outputs", chain_plan(rounds=2))
    place = {"dataset": "d", "model": "m"}
    rows = [
        pooled_row("reference", 0, 0.25, **place),
        pooled_row(HOSTILE, 1, 0.5, **place),
        pooled_row(HOSTILE, 2, 0.75, **place),
    ]
    rows += [pooled_row(HOSTILE, 2, 1.5, metric="kl_per_sequence", **place), pooled_row("_under", 2, 0.5, **place)]
    write_results(found.folder, Results(rows=[], pooled=rows))
    job = found.plan.jobs[f"{CHAIN}/r1/train"]
    losses = ((at, 1 / at) for at in range(1, 9))
    steps = [
        TrainingStep(training="value", step=at, steps=8, tokens=at, loss=loss, grad_norm=None, learning_rate=0.1)
        for at, loss in losses
    ]
    write_curve(found.store(job.key), steps)
    found.worker(0, "GPU 0")
    found.begin(job.id)
    found.finish(job.id)
    return found


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_equal_runs_have_equal_figures_whose_text_is_text(run: WrittenRun, tmp_path: Path) -> None:
    write.write_figures(load(run.folder), tmp_path / "a", write.FORMATS)
    write.write_figures(load(run.folder), tmp_path / "b", ("pdf", "svg"))
    first, again = written(tmp_path / "a"), written(tmp_path / "b")
    assert again == {name: first[name] for name in again}
    assert {name.partition(".")[0] for name in first} == {"front_d_m", "rounds_d_m", "training_d_m", "timeline"}
    assert first["rounds_d_m.png"].startswith(b"\x89PNG")
    svg = first["rounds_d_m.svg"].decode()
    assert r"$x_1$ &lt;script&gt;&amp;\x1b[2J" in svg
    assert "_under" in svg
    assert not re.search(r"<dc:date>|http://(?!www\.w3\.org|purl\.org|creativecommons\.org)", svg)
    pdf = first["rounds_d_m.pdf"]
    assert b"/FontFile2" in pdf
    assert b"CreationDate" not in pdf


@pytest.mark.parametrize("beside", [(), ("DPO",)], ids=["fronts alone", "beside a method"])
def test_every_point_of_a_front_is_drawn_by_round_and_against_compute(
    tmp_path: Path, beside: tuple[str, ...]
) -> None:
    run = WrittenRun(tmp_path, chain_plan(rounds=2))
    place = {"dataset": "d", "model": "m"}
    points = ["PITA@eta=0.3", "PITA@eta=1"]
    rows = [pooled_row(name, number, 0.5, **place) for name in (*points, *beside) for number in (1, 2)]
    write_results(run.folder, Results(rows=[], pooled=[pooled_row("reference", 0, 0.25, **place), *rows]))
    cost = {"answer": None, "device_s": None, **place}
    costs = [CostRow(algo=row.algo, round=row.round, flops=1e9, **cost) for row in rows]
    write_compute(run.folder.path, Compute(costs=costs))
    write.write_figures(load(run.folder), tmp_path / "out", ["svg"])
    for kind in ("rounds", "flops"):
        svg = (tmp_path / "out" / f"{kind}_d_m.svg").read_text()
        assert all(f">{name}<" in svg for name in (*points, *beside)), kind


def test_a_long_legend_takes_no_room_from_the_axes() -> None:
    series = [data.Series(name=f"PITA@eta={at}", points=[data.Point(x=1, y=at)]) for at in range(20)]
    with styled():
        heights = []
        for some in (series[:4], series):
            figure = charts.rounds(some, "pass@1", [one.name for one in series])
            figure.draw_without_rendering()
            heights.append(figure.axes[0].get_window_extent().height)
    assert heights[1] >= 0.9 * heights[0]


def test_the_command_says_what_it_wrote_and_what_it_cannot_write(run: WrittenRun, tmp_path: Path) -> None:
    place = ["--output-dir", str(run.folder.path.parent.parent), "--out", str(tmp_path / "figures")]
    done = CliRunner().invoke(app, ["figures", "x", *place, "--format", "svg"])
    assert (done.exit_code, "4 files written" in done.output) == (0, True)
    assert "no rounds_*" not in done.output
    wrong = CliRunner().invoke(app, ["figures", "x", *place, "--format", "gif"])
    assert (wrong.exit_code, all(each in wrong.output for each in ("--format", "gif", "pdf"))) == (2, True)
    (tmp_path / "file").touch()
    blocked = CliRunner().invoke(app, ["figures", "x", *place[:2], "--out", str(tmp_path / "file" / "below")])
    assert (blocked.exit_code, "cannot write" in blocked.output) == (2, True)


def test_a_run_with_nothing_to_show_and_a_missing_library_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WrittenRun(tmp_path, chain_plan())
    place = ["--output-dir", str(tmp_path), "--out", str(tmp_path / "figures")]
    empty = CliRunner().invoke(app, ["figures", "x", *place])
    assert (empty.exit_code, "nothing to show in a figure yet" in empty.output) == (2, True)
    monkeypatch.setattr(write, "find_spec", lambda _: None)
    missing = CliRunner().invoke(app, ["figures", "x", *place])
    assert (missing.exit_code, "[figures]" in missing.output) == (2, True)


def test_the_legend_of_many_points_takes_less_room_than_the_axes() -> None:
    names = ["reference", "CD", *(f"DPO@beta={beta}" for beta in (0.1, 0.3, 1, 3)), "PITA", "QSharp"]
    names += [f"RAFT@learning_rate={rate}" for rate in ("5e-05", 0.0002, 0.001)]
    points = [data.Point(x=number, y=0.5) for number in (1, 2)]
    with styled():
        figure = charts.rounds([data.Series(name=name, points=points) for name in names], "pass@1", names)
        figure.draw_without_rendering()
    legend, axes = figure.legends[0].get_window_extent(), figure.axes[0].get_window_extent()
    assert legend.height < 0.6 * axes.height
    assert legend.width <= figure.bbox.width


def test_a_run_of_one_round_says_that_no_figure_goes_over_rounds(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, chain_plan(rounds=1))
    place = {"dataset": "d", "model": "m"}
    rows = [pooled_row("reference", 0, 0.25, **place), pooled_row("PITA", 1, 0.5, **place)]
    write_results(run.folder, Results(rows=[], pooled=rows))
    run.worker(0, "GPU 0")
    run.begin(f"{CHAIN}/r1/train")
    run.finish(f"{CHAIN}/r1/train")
    arguments = ["figures", "x", "--output-dir", str(tmp_path), "--out", str(tmp_path / "out"), "--format", "svg"]
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, "no rounds_* of d/m: there is one round" in " ".join(done.output.split())) == (0, True)


def test_no_two_methods_look_the_same() -> None:
    names = [f"Method{number:02d}" for number in range(22)]
    found = looks(names)
    assert found.keys() == {*names, REFERENCE, data.OPTIMUM}
    assert len({(look.colour, look.marker, look.line) for look in found.values()}) == 24


def test_each_stage_has_a_fill_of_its_own() -> None:
    assert len(set(fills(f"stage{number}" for number in range(20)).values())) == 20


def test_rounds_have_colours_of_their_own_and_a_legend_of_many_has_some_of_them() -> None:
    assert len(set(in_order([0, 1]).values())) == 2
    many = list(range(50))
    assert len(set(in_order(many).values())) == 50
    assert some_of([0, 1]) == {0, 1}
    assert {0, 49} <= some_of(many)
    assert len(some_of(many)) == len(COLOURS)
