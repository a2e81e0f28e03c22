"""docs/seed_coverage.md names files and tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "docs" / "seed_coverage.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| promise")
]


def exists(test: str) -> bool:
    return any((ROOT / "tests" / folder / test).exists() for folder in ("", "unit"))


def test_there_are_rows() -> None:
    assert len(ROWS) > 90
    assert {len(row) for row in ROWS} == {3}


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_names_what_exists(row: list[str]) -> None:
    promise, where, tests = row
    assert promise
    assert where
    assert [test for test in re.split(r", *", tests.strip(" |")) if test and not exists(test)] == []
    named = re.findall(r"\b([a-z_]+/[a-z_]+\.py)\b", where)
    assert [path for path in named if not ((ROOT / "pipeline" / path).exists() or (ROOT / path).exists())] == []
