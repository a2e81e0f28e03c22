"""No command writes into a store."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.runs.record import Results, write_results
from tests.doubles.pooled import pooled_row
from tests.doubles.runs import WrittenRun, chain_plan


@pytest.mark.parametrize("way", ["straight", "by a link"])
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
def test_a_place_inside_the_store_is_refused(tmp_path: Path, words: list[str], way: str) -> None:
    run = WrittenRun(tmp_path / "outputs", chain_plan(rounds=1))
    write_results(run.folder, Results(rows=[], pooled=[pooled_row("PITA", 1, 0.5)]))
    output = run.store("a" * 40, metrics_json="{}")
    (tmp_path / "link").symlink_to(output)
    target = (output if way == "straight" else tmp_path / "link") / "new"
    told = CliRunner().invoke(app, [*words, str(target), "--output-dir", str(tmp_path / "outputs")])
    assert told.exit_code == 2
    assert " ".join(told.output.split()).startswith(f"error: {words[-1]} {target}: that is inside the store")
    assert not target.exists()
