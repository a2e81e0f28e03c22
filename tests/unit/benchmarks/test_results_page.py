"""The pages of results have a place for every part, and a part is a run that can be planned."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.results import PARTS, Part, methods, written
from pipeline.config.checks import check_config
from pipeline.config.load import load_config
from pipeline.plan.build import build_plan
from pipeline.runs.cost import Compute
from pipeline.runs.record import Comparison, PooledRow, ResultRow, Results


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_part_can_be_run_and_has_its_place(part: Part, tmp_path: Path) -> None:
    config = load_config([*part.words[1:], f"output_dir={tmp_path}"])
    check_config(config)
    if "tiny" in config.models:  # others are files that may not be here
        assert build_plan(config).jobs
    assert config.experiment.name == part.name
    assert config.evaluation.split == "test"
    page = part.page.read_text("utf-8")
    assert written(page, part.name, "x").count("<!-- results: ") == page.count("<!-- results: ")


def test_only_the_place_of_a_part_is_written() -> None:
    page = "a\n<!-- results: one -->\nold\n<!-- end -->\nb\n<!-- results: two -->\nold\n<!-- end -->\nc\n"
    assert written(page, "two", "new \\1") == page.replace("two -->\nold", "two -->\n\nnew \\1\n")
    with pytest.raises(SystemExit, match="no place for three"):
        written(page, "three", "new")


def test_a_table_has_the_mean_the_worst_policy_and_the_spread() -> None:
    at: dict[str, Any] = {"dataset": "d", "model": "m", "round": 1, "metric": "pass@1", "n": 9}
    none: dict[str, Any] = {"algo": "PITA", "ci_low": None, "ci_high": None, **at}
    values = {(0, 0): 0.5, (0, 1): 0.7, (1, 0): 0.9, (1, 1): 0.7}
    rows = [ResultRow(reference=ref, seed=seed, value=value, **none) for (ref, seed), value in values.items()]
    at |= {"over": "policies", "references": 2, "seeds": 2}
    bounds = {"difference_low": 0.2, "difference_high": 0.4}
    pooled = PooledRow(algo="PITA", value=0.7, ci_low=0.6, ci_high=0.8, difference=0.3, **bounds, **at)
    at |= {"first": "PITA", "second": "reference", "test": "swaps", "detectable": 0.1}
    comparison = Comparison(difference=0.3, ci_low=0.2, ci_high=0.4, p=0.0001, **at)
    printed, spread, by_reference = methods(
        Results(rows=rows, pooled=[pooled], comparisons=[comparison]), Compute()
    ).split("\n\n|")
    assert "+0.300" in printed
    assert spread.splitlines()[2] == "| PITA | 4 | 0.700 | 0.500 | 0.163 |"
    assert by_reference.splitlines()[2:] == ["| 0 | 0.600, 0.500 |", "| 1 | 0.800, 0.700 |"]
