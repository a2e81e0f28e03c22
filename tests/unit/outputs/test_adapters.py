"""What says of which adapters a policy is made."""

from pathlib import Path

import pytest

from pipeline.errors import JobError
from pipeline.outputs.check import check_output
from pipeline.outputs.guidance import ADAPTERS, FOLDER, adapter_folders

KEY = "0" * 40


def test_adapters_are_merged_in_the_order_of_their_rounds(tmp_path: Path) -> None:
    assert adapter_folders(tmp_path) == []
    (tmp_path / ADAPTERS).write_text(f'{{"rounds": [2, 3, 10], "reference": "{KEY}"}}')
    check_output(tmp_path)
    assert adapter_folders(tmp_path) == [tmp_path / FOLDER / name for name in ("2", "3", "10")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"rounds": []}', "length >= 1"),
        ('{"rounds": [2, 1]}', "expected `rounds` in their order"),
        ('{"rounds": ["../../else"]}', "int"),
        ('{"rounds": [1], "reference": "/etc"}', "matching regex"),
    ],
)
def test_what_says_something_else_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / ADAPTERS).write_text(text)
    with pytest.raises(JobError, match=said):
        check_output(tmp_path)
    with pytest.raises(JobError, match=said):
        adapter_folders(tmp_path)
