"""What outputs took is found again, whoever else notes something, whatever else lies there."""

import json
from pathlib import Path

import pytest

from pipeline.engine.store.measured import read_peaks, update_peaks
from pipeline.engine.store.store import Costs

KEY = "ab" + "0" * 38
OTHER = "ab" + "1" * 38


def lines(root: Path) -> list[str]:
    return list(filter(None, (root / ".costs" / "ab.jsonl").read_text().splitlines()))


def test_what_was_noted_last_counts(tmp_path: Path) -> None:
    costs = Costs(tmp_path)
    assert costs.of(KEY) == {}
    costs.note(KEY, {"tokens": 1})
    costs.note(OTHER, {"tokens": 2})
    costs.note(KEY, {"tokens": 3, "flops/training": 4.5})
    assert (costs.of(KEY), costs.of(OTHER)) == ({"tokens": 3, "flops/training": 4.5}, {"tokens": 2})
    assert len(lines(tmp_path)) == 3
    assert costs.of("") == {}


@pytest.mark.parametrize(
    "line",
    [
        f'{{"key": "{KEY}", "cost": {{"tokens": 9',
        f'{{"key": "{KEY}", "cost": {{"tokens": -1}}}}',
        f'{{"key": "{OTHER}", "cost": {{"tokens": 9}}, "of": "{KEY}"}}',
        f"{KEY}",
        "\0\0\0",
    ],
)
def test_a_line_that_is_none_hides_no_other(tmp_path: Path, line: str) -> None:
    costs = Costs(tmp_path)
    costs.note(KEY, {"tokens": 1})
    with (tmp_path / ".costs" / "ab.jsonl").open("a") as file:
        file.write("\n" + line)
    costs.note(OTHER, {"tokens": 2})
    assert (costs.of(KEY), costs.of(OTHER)) == ({"tokens": 1}, {"tokens": 2})


def test_a_line_that_was_cut_off_anywhere_takes_no_other_with_it(tmp_path: Path) -> None:
    costs, path = Costs(tmp_path), tmp_path / ".costs" / "ab.jsonl"
    costs.note(KEY, {"tokens": 1})
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        costs.note(OTHER, {"tokens": 2})
        assert costs.of(OTHER) == {"tokens": 2}
        assert costs.of(KEY) == ({"tokens": 1} if length == len(whole) else {})


def test_a_number_that_is_not_finite_costs_its_own_line_alone(tmp_path: Path) -> None:
    costs = Costs(tmp_path)
    costs.note(KEY, {"tokens": 1})
    costs.note(KEY, {"tokens": float("nan")})
    assert json.loads(lines(tmp_path)[1])["cost"] == {"tokens": None}
    assert costs.of(KEY) == {"tokens": 1}


def test_a_newer_peak_replaces_an_older_one(tmp_path: Path) -> None:
    update_peaks(tmp_path, {"a": 100, "b": 5})
    update_peaks(tmp_path, {"a": 80})
    assert read_peaks(tmp_path) == {"a": 80, "b": 5}
