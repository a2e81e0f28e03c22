"""Sweeps as people read them on a terminal."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline.sweeps.report import (
    effective_batch,
    export_rows,
    foremost,
    headline,
    remaining_s,
    trials_table,
    varied,
    watched_sweep,
)
from pipeline.sweeps.storage import Record
from tests.doubles.sweeps import SweepOnPaper, hostile, searched


def drawn(*parts: Any, width: int = 200) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(*parts)
    return out.getvalue()


@pytest.mark.parametrize(
    ("parameters", "num_gpus", "batch"),
    [
        ({"batch_size": 8, "num_gpus": 4}, 4, 32),
        ({"batch_size": 8, "num_gpus": 4, "gradient_accumulation_steps": 2}, 4, 64),
        ({"trainer.batch_size": 8, "trainer.gradient_accumulation_steps": 2}, 2, 32),
        ({"batch_size": 8}, 1, None),
        ({"algos.PITA.batch_size": 64}, 4, None),  # the batch of all devices together
        ({"batch_size": True, "num_gpus": 4}, 4, None),
    ],
)
def test_a_step_sees_the_batch_of_every_device_and_micro_batch(
    parameters: Mapping[str, Any], num_gpus: int, batch: int | None
) -> None:
    assert effective_batch(parameters, num_gpus) == batch


def test_what_runs_comes_first_then_the_best_and_then_what_has_no_value(tmp_path: Path) -> None:
    sweep = searched(tmp_path, 27)
    with sweep.at_work():
        record = Record(sweep.folder)
        states = [trial.state for trial in foremost(record)]
        values = [trial.value for trial in foremost(record) if trial.value is not None]
        assert states[:2] == ["running"] * 2
        assert set(states[-2:]) == {"failed"}
        assert values == sorted(values)
        assert varied(list(record.trials.values())) == [
            name for name in record.trials[0].parameters if name != "epochs"
        ]
        text = drawn(trials_table(record, foremost(record)[:5], sweep.time, {25: 0.5}))
        assert "batch" in text
        assert "GPU 0" in text


def test_a_terminal_has_as_many_lines_as_it_has_room_for(tmp_path: Path) -> None:
    sweep = searched(tmp_path, 40)
    with sweep.at_work():
        record = Record(sweep.folder)
        for height in (3, 6, 12, 30):
            parts = watched_sweep(record, sweep.time, 100, height, last="a word")
            lines = [line for part in parts for line in drawn(part, width=100).splitlines()]
            assert len(lines) <= max(height, 7)
            assert "a word" in lines[-1]
    assert any(line.startswith("and ") for line in lines)


def test_a_sweep_of_more_trials_than_its_bound_and_one_whose_trials_are_alike_are_told_so(tmp_path: Path) -> None:
    sweep = SweepOnPaper(tmp_path, count=2)
    for number in range(3):
        sweep.create(number, {"lr": number})
        sweep.start(number)
        sweep.end(number, "done", 1.0)
    text = headline(Record(sweep.folder), sweep.time).plain
    assert "3 trials, 3 done" in text
    assert "does the program read its parameters?" in text


def test_what_is_left_is_told_by_what_trials_took(tmp_path: Path) -> None:
    sweep = SweepOnPaper(tmp_path, count=10)
    for number in range(3):
        sweep.create(number, {})
        sweep.start(number)
    sweep.end(0, "done", 1.0)  # after 32 s
    with sweep.at_work():
        record = Record(sweep.folder)
        assert remaining_s(record, sweep.time) == pytest.approx((32 * 9 - 31 - 30) / 2)
        sweep.tell(count=None)
        assert remaining_s(Record(sweep.folder), sweep.time) is None


def test_text_of_strangers_stays_on_its_line_and_has_no_control_characters(tmp_path: Path) -> None:
    sweep = hostile(tmp_path, "\x1b[2J\nx\u2028[red]")
    record = Record(sweep.folder)
    text = drawn(trials_table(record, list(record.trials.values()), sweep.time))
    assert not {"\x1b", "\u2028"} & set(text)
    assert len(text.splitlines()) <= len(record.trials) + 3
    rows = export_rows(record, sweep.time)
    assert len({tuple(row) for row in rows}) == 1
    assert len(rows) == len(record.trials)
