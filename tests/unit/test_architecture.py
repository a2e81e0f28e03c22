"""The page that says where to change what leads to files that are there."""

import re
from pathlib import Path

import pytest

import pipeline

PACKAGE = Path(pipeline.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "architecture.md").read_text()
_, _, REST = PAGE.partition("### Where to change what")
ROWS = [line for line in REST.partition("## Words")[0].splitlines() if line.startswith("| ") and "`" in line]


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip() for row in ROWS])
def test_the_paths_of_a_row_are_there(row: str) -> None:
    """One without a folder stands beside the one before it in its row, as the page says."""
    beside = PACKAGE
    for path in re.findall(r"`((?:\w+/)*(?:[\w*]+\.py|\w+/|\w+/\w+\.yaml))`", row):
        folder, _, name = path.rpartition("/")
        if folder:
            beside = (PACKAGE.parent if folder.startswith("conf/") or path == "conf/" else PACKAGE) / folder
        assert list(beside.glob(name)) if name else beside.is_dir(), path


def test_the_page_says_where_much_is() -> None:
    assert len(ROWS) > 20
