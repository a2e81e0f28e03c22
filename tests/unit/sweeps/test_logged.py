import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sweeps.recorded import last_values, latest_values, logged_lines, naming, parsed


def test_lines_are_read_up_to_one_that_is_cut_off_and_others_cost_themselves(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 1, "values": {"loss": 2, "a": 1}}\n'
        'Traceback\n{"values": {"loss": "x"}}\n{"values": {"loss": null}, "time": 3}\n{"values": {"loss"'
    )
    found = list(parsed(logged_lines(path)))
    assert [(one.step, dict(one.values)) for one in found] == [
        (1, {"loss": 2.0, "a": 1.0}),
        (None, {"loss": None}),
    ]
    assert last_values(found) == latest_values(path) == {"loss": None, "a": 1.0}
    assert logged_lines(tmp_path / "none") == []
    assert latest_values(tmp_path) == {}


@pytest.mark.parametrize("number", ["1.9e130", "-1e101", "1" + "0" * 400, "1e999", "NaN", "-Infinity"])
def test_a_number_that_is_of_no_use_costs_itself_and_no_other_of_its_line(number: str) -> None:
    (line,) = parsed([b'{"step": 2, "values": {"loss": 300, "ppl": %s}}' % number.encode()])
    assert (line.step, line.values) == (2, {"loss": 300.0, "ppl": None})


def test_of_a_long_file_the_end_tells_the_latest_values(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"values": {"loss": float(at)}}) + "\n" for at in range(5000)))
    assert latest_values(path) == {"loss": 4999.0}


@pytest.mark.properties
@given(st.text(min_size=1, max_size=20))
def test_the_lines_of_a_metric_are_found_whatever_its_name(name: str) -> None:
    line = json.dumps({"values": {name: 1.0}}).encode()
    try:
        unescaped = json.dumps({"values": {name: 1.0}}, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        unescaped = line
    assert naming([line, b"{}", unescaped], name) == [line, unescaped]
