"""What outputs took is found again, whoever else notes something, whatever else lies there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.engine.store.costs import Costs

KEY = "ab" + "0" * 38
OTHER = "ab" + "1" * 38
NOTE_MANY = """
import sys
from pipeline.engine.store.costs import Costs
costs, number = Costs(sys.argv[1]), int(sys.argv[2])
for index in range(200):
    costs.note(f"ab{number}{index:037d}", {"tokens": number * 1000 + index})
"""


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


def test_what_several_processes_note_at_once_is_all_there(tmp_path: Path) -> None:
    started = [subprocess.Popen([sys.executable, "-c", NOTE_MANY, tmp_path, str(each)]) for each in range(4)]
    assert [process.wait() for process in started] == [0] * 4
    costs = Costs(tmp_path)
    found = [costs.of(f"ab{number}{index:037d}") for number in range(4) for index in range(200)]
    assert found == [{"tokens": number * 1000 + index} for number in range(4) for index in range(200)]


def test_a_file_that_an_earlier_version_wrote_is_read_until_something_newer_is_noted(tmp_path: Path) -> None:
    old = tmp_path / ".costs" / "ab" / f"{KEY}.json"
    old.parent.mkdir(parents=True)
    old.write_text('{"tokens": 7}')
    costs = Costs(tmp_path)
    assert costs.of(KEY) == {"tokens": 7}
    costs.note(OTHER, {"tokens": 1})
    assert costs.of(KEY) == {"tokens": 7}
    costs.note(KEY, {"tokens": 8})
    assert costs.of(KEY) == {"tokens": 8}


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


def test_what_cannot_be_noted_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / ".costs").write_text("")
    costs = Costs(tmp_path)
    costs.note(KEY, {"tokens": 1})
    assert costs.of(KEY) == {}


def test_a_number_that_is_not_finite_costs_its_own_line_alone(tmp_path: Path) -> None:
    costs = Costs(tmp_path)
    costs.note(KEY, {"tokens": 1})
    costs.note(KEY, {"tokens": float("nan")})
    assert json.loads(lines(tmp_path)[1])["cost"] == {"tokens": None}
    assert costs.of(KEY) == {"tokens": 1}
