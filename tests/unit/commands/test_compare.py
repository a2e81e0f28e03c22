"""Which runs are compared by what a user names."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.commands.compare import runs_named
from pipeline.errors import ConfigError
from pipeline.runs.origin import Origin, write_origin
from pipeline.runs.record import Results, write_results
from tests.doubles.pooled import pooled_row
from tests.doubles.runs import WrittenRun, chain_plan
from tests.doubles.sweeps import SweepOnPaper, searched


def run(output_dir: Path, name: str, second: int, eta: float, group: str = "") -> WrittenRun:
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
        run(tmp_path, "sweep", second, eta, group)
    for second, eta in ((1, 1.0), (2, 2.0), (3, 1.0)):
        run(tmp_path, "tried", second, eta)
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


def test_of_a_sweep_the_runs_of_its_trials_are_compared_and_not_the_test_of_the_best(tmp_path: Path) -> None:
    for second, eta in ((1, 1.0), (2, 2.0)):
        run(tmp_path, "eta", second, eta)
    winner = run(tmp_path, "eta", 3, 2.0)
    winner.folder.config.write_text("algos:\n  PITA:\n    eta: 2.0\nevaluation:\n  split: test\n")
    write_origin(winner.folder.path, Origin(settings=["algos.PITA.eta=2.0", "evaluation.split=test"]))
    assert named(tmp_path, "eta") == ["eta1", "eta2", "eta3"], "of an experiment that is no sweep it is one more"
    sweep = SweepOnPaper(tmp_path, "eta")
    sweep.folder.once("winner").path.mkdir(parents=True)
    assert named(tmp_path, "eta") == ["eta1", "eta2"]
    run(tmp_path, "tried", 1, 1.0)
    assert named(tmp_path, "eta", "tried") == ["eta2", "tried1"]
    told = CliRunner().invoke(app, ["compare", "eta", "--output-dir", str(tmp_path)]).output
    assert "the best trial on the test split: `python -m pipeline sweep best eta" in told


def test_a_name_of_no_run_is_refused(outputs: Path) -> None:
    with pytest.raises(ConfigError, match=r"no experiment in .* fits 'x\*'\. There are: sweep, tried"):
        runs_named(outputs, ["x*"])
    with pytest.raises(ConfigError, match="Did you mean 'tried'"):
        runs_named(outputs, ["trid"])


def test_the_command_prints_a_table_or_writes_a_csv(outputs: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["compare", "sweep", "--output-dir", str(outputs)])
    rows = [line.split()[:3] for line in done.output.splitlines() if line.split()[:1] == ["PITA"]]
    assert rows == [["PITA", "1", "0.100"], ["PITA", "2", "0.200"]]
    csv = tmp_path / "runs.csv"
    written = CliRunner().invoke(app, ["compare", "sweep", "--csv", str(csv), "--output-dir", str(outputs)])
    assert (written.exit_code, len(csv.read_text().splitlines())) == (0, 3)
    for name in ("-", "/dev/stdout"):
        printed = CliRunner().invoke(
            app,
            ["compare", "sweep", "--csv", name, "--html", str(tmp_path / "page"), "--output-dir", str(outputs)],
        )
        assert (printed.exit_code, printed.stdout) == (0, csv.read_text()), printed.output
    refused = CliRunner().invoke(app, ["compare", "sweep", "--csv", str(outputs), "--output-dir", str(outputs)])
    assert (refused.exit_code, "cannot write" in refused.output) == (2, True)


def test_trials_of_a_sweep_stand_side_by_side_the_best_first(tmp_path: Path) -> None:
    sweep = searched(tmp_path, 8)
    place = ["--output-dir", str(tmp_path)]
    with sweep.at_work():
        text = CliRunner().invoke(app, ["compare", "lr", *place]).output
    about, _, *rest = text.splitlines()
    assert about.startswith("running first, then best first")
    rows = [line.split() for line in rest]
    assert [row[1] for row in rows[:2]] == ["running", "running"]
    values = [float(row[2]) for row in rows if row[1] in ("done", "stopped")]
    assert len(values) == 5
    assert values == sorted(values)
    assert "stopped" in [row[1] for row in rows[2:-1]], "not last"
    assert len(rows) == 8
    for option, begin in (("--csv", "number,"), ("--html", "<!doctype html>")):
        file = tmp_path / "written"
        assert CliRunner().invoke(app, ["compare", "lr", *place, option, str(file)]).exit_code == 0
        assert file.read_text().startswith(begin)
    printed = CliRunner().invoke(app, ["compare", "lr", *place, "--csv", "-"]).output
    assert printed.startswith("number,")
    assert "written" not in printed
    exported = CliRunner().invoke(app, ["sweep", "export", "lr", *place, "--to", "/dev/stdout"]).output
    assert exported.splitlines()[0] == printed.splitlines()[0]
