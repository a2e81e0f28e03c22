"""tests/seed_coverage.md names files and tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "tests" / "seed_coverage.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| promise")
]


def exists(test: str) -> bool:
    return any((ROOT / "tests" / folder / test).exists() for folder in ("", "unit"))


def test_there_are_rows() -> None:
    assert len(ROWS) > 90
    assert {len(row) for row in ROWS} == {3}
    assert [promise for promise, where, _tests in ROWS if "not yet" in where] == []


def test_rows_name_what_exists() -> None:
    for promise, where, tests in ROWS:
        assert promise
        assert where
        named = [test for test in re.split(r", *", tests.strip(" |")) if test]
        assert [test for test in named if not exists(test)] == [], promise
        modules = re.findall(r"(?<![\w/])((?:[a-z_]+/)+[a-z_]+\.py)\b", where)
        missing = [path for path in modules if not ((ROOT / "pipeline" / path).exists() or (ROOT / path).exists())]
        assert missing == [], promise
