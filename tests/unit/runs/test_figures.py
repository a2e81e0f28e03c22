"""Figures as files: the same bytes from the same run, text as text, foreign names as they are."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.runs import figures
from pipeline.runs.loaded import load
from pipeline.runs.record import Results, write_results
from tests.doubles.pooled import pooled_row
from tests.doubles.runs import WrittenRun, chain_plan

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
    return found


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_equal_runs_have_equal_figures_whose_text_is_text(run: WrittenRun, tmp_path: Path) -> None:
    figures.write_figures(load(run.folder), tmp_path / "a", [one.name for one in figures.Format])
    figures.write_figures(load(run.folder), tmp_path / "b", ["svg"])
    first, again = written(tmp_path / "a"), written(tmp_path / "b")
    assert again == {name: first[name] for name in again}
    assert {name.partition(".")[0] for name in first} == {"front_d_m", "rounds_d_m"}
    assert first["rounds_d_m.png"].startswith(b"\x89PNG")
    svg = first["rounds_d_m.svg"].decode()
    assert r"$x_1$ &lt;script&gt;&amp;\x1b[2J" in svg
    assert "_under" in svg
    assert not re.search(r"<dc:date>|http://(?!www\.w3\.org|purl\.org|creativecommons\.org)", svg)
    pdf = first["rounds_d_m.pdf"]
    assert b"/FontFile2" in pdf
    assert b"CreationDate" not in pdf


def test_the_command_says_what_it_wrote_and_what_it_cannot_write(run: WrittenRun, tmp_path: Path) -> None:
    place = ["--output-dir", str(run.folder.path.parent.parent), "--out", str(tmp_path / "figures")]
    done = CliRunner().invoke(app, ["figures", "x", *place, "--format", "svg"])
    assert (done.exit_code, "2 files written" in done.output) == (0, True)
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
    monkeypatch.setattr(figures, "find_spec", lambda _: None)
    missing = CliRunner().invoke(app, ["figures", "x", *place])
    assert (missing.exit_code, "[figures]" in missing.output) == (2, True)


# -- the data behind them ----------------------------------------------------------------------------------------


PLACE = ("addition", "tiny")


def test_reward_against_divergence_is_of_the_last_round_with_the_optimum() -> None:
    kl = "kl_per_sequence"
    rows = [
        *(pooled_row("reference", 0, value, metric=name) for name, value in (("pass@1", 0.25), (kl, 0.0))),
        *(pooled_row("reference", 0, value, metric=f"optimum/{n}") for n, value in (("pass@1", 1.0), (kl, 2.0))),
        *(pooled_row("PITA", number, number / 4) for number in (2, 3)),
        *(pooled_row("PITA", number, number / 2, metric=kl) for number in (2, 3)),
        pooled_row("DPO@beta=1", 2, 0.5),
    ]
    found = figures.reward_against_kl(Results(rows=[], pooled=rows), PLACE)
    assert {name: [(point.x, point.y) for point in points] for name, points in found.items()} == {
        "reference": [(0.0, 0.25)],
        "PITA": [(1.5, 0.75)],
        "optimum": [(2.0, 1.0)],
    }
    assert (found["PITA"][0].x_low, found["PITA"][0].y_high) == (1.48, 0.77)
