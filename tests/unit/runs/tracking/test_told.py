"""Our own note of what a tracker was told."""

from pathlib import Path

import pytest

from pipeline.runs.tracking.batches import ROUND, Batch, Row
from pipeline.runs.tracking.feeder import Told, ToldFiles


def batch(name: str, rows: int) -> Batch:
    row = Row(axis=ROUND, at=1, round=1, values={"a": 1.0})
    return Batch(id=name, round=1, time=0.0, rows=[row] * rows)


def test_rows_keep_their_numbers_whatever_comes_later() -> None:
    told = Told(name="n").extended([batch("late", 2), batch("b", 3)])
    assert told.lacks(["late"])
    told = told.all_kept().extended([batch("early", 4), batch("b", 3)])
    assert [told.first_row(name) for name in ("late", "b", "early")] == [0, 2, 5]
    assert not told.lacks(["b", "late"])
    assert told.lacks(["early"])


def test_what_is_noted_is_read_again(tmp_path: Path) -> None:
    files, told = ToldFiles(tmp_path / "told"), Told(name="n").extended([batch("b", 3)]).all_kept()
    assert files.read("id") is None
    files.write("id", told)
    assert files.read("id") == told


@pytest.mark.parametrize("content", ["", "{", '{"name": 3}', '{"name": "n", "kept": -1}'])
def test_a_note_that_is_damaged_counts_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "id.json").write_text(content)
    assert ToldFiles(tmp_path).read("id") is None


def test_two_chains_with_one_name_are_called_differently(tmp_path: Path) -> None:
    files = ToldFiles(tmp_path)
    assert files.free_name("first-id", "X/d") == "X/d"
    files.write("first-id", Told(name="X/d"))
    assert files.free_name("first-id", "X/d") == "X/d"
    assert files.free_name("second-id", "X/d") == "X/d@second"
