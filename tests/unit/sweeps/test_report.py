"""Sweeps as people read them on a terminal."""

import io
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from rich.console import Console

from pipeline.runs.report import html
from pipeline.sweeps.report import _SCRIPTS as SCRIPTS
from pipeline.sweeps.report import (
    axes_of,
    effective_batch,
    export_rows,
    foremost,
    headline,
    importance,
    trials_table,
    varied,
    watched_sweep,
)
from pipeline.sweeps.report import page_of as sweep_page_of
from pipeline.sweeps.storage import Record, Trial
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
        table = trials_table(record, foremost(record)[:5], sweep.time, {25: 0.5})
        shown = dict(zip([column.heading for column in table.columns], table.texts[0], strict=True))
        given = record.trials[int(shown["trial"])].parameters
        assert (shown["lr"], shown["optimizer"]) == (f"{given['lr']:.4g}", given["optimizer"])
        assert "batch" in drawn(table)


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


def test_text_of_strangers_stays_on_its_line_and_has_no_control_characters(tmp_path: Path) -> None:
    sweep = hostile(tmp_path, "\x1b[2J\nx\u2028[red]")
    record = Record(sweep.folder)
    text = drawn(trials_table(record, list(record.trials.values()), sweep.time))
    assert not {"\x1b", "\u2028"} & set(text)
    assert len(text.splitlines()) <= len(record.trials) + 3
    rows = export_rows(record, sweep.time)
    assert len({tuple(row) for row in rows}) == 1
    assert len(rows) == len(record.trials)


# -- test page ---------------------------------------------------------------------------------------------------
# The page of a sweep: what it has of trials in every state, whatever their parameters and reasons hold.


OURS = "".join(path.read_text() for path in (*html.FRAME, *SCRIPTS))


def page_of(sweep: SweepOnPaper) -> dict[str, Any]:
    return sweep_page_of(Record(sweep.folder), time.time())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    sweep = searched(tmp_path_factory.mktemp("sweep"), 27)
    with sweep.at_work():
        return page_of(sweep)


def test_every_column_has_a_place_for_every_trial(page: dict[str, Any]) -> None:
    columns = [
        page["numbers"],
        page["states"],
        page["values"],
        page["ended"],
        page["words"],
        page["ranking"],
        page["table"]["rows"],
    ]
    columns += [axis.values for axis in page["axes"]] + [one["values"] for one in page["measures"]]
    assert {len(column) for column in columns} == {27}
    assert {axis.name: axis.kind for axis in page["axes"]}["lr"] == "log"
    assert {axis.name: axis.kind for axis in page["axes"]}["optimizer"] == "choices"


def test_a_sweep_that_has_just_begun_has_a_page_and_curves_of_many_values_are_thinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = page_of(SweepOnPaper(tmp_path, "new", metric="", method="grid"))
    assert (page["metric"], page["numbers"]) == ("", [])
    assert page["unfinished"]
    assert html.page_html(page, SCRIPTS)
    monkeypatch.setattr("pipeline.sweeps.report.points_each", lambda _: 5)
    sweep = searched(tmp_path, 1)
    sweep.log(0, [{"val/loss": 0.01 * at} for at in range(92)])
    page = page_of(sweep)
    assert [len(one["steps"]) for one in page["curves"]] == [5]
    assert page["curves_about"] == "5 of 100 values that were logged, evenly spread."


def test_the_scripts_use_every_field_and_no_way_out(page: dict[str, Any]) -> None:
    assert not [name for name in page if not re.search(rf"\bdata\.{name}\b", OURS)]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\(|https?:", OURS)


SPACES: dict[str, BaseDistribution] = {
    "lr": FloatDistribution(1e-5, 1e-2, log=True),
    "flag": CategoricalDistribution(["a", "b"]),
}


# -- axes and importance -----------------------------------------------------------------------------------------


def done(number: int, parameters: dict[str, object], value: float | None) -> Trial:
    return Trial(number=number, parameters=parameters, value=value, state="done")


@pytest.mark.parametrize(
    ("values", "kind", "choices"),
    [
        ([1e-5, 3e-5, 1e-4, 2e-3, 1e-2, 0.1, 0.5], "log", []),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], "linear", []),
        ([8, 16, 8, 16, 32, 8], "choices", ["8", "16", "32"]),
        (["b", "a", "b", True, None, 1], "choices", ["1", "a", "b", "null", "true"]),
        ([[1], [2], [1], [2], [1], [2]], "choices", ["[1]", "[2]"]),
    ],
)
def test_a_parameter_is_seen_by_its_size_its_order_of_magnitude_or_as_choices(
    values: list[object], kind: str, choices: list[str]
) -> None:
    (axis,) = axes_of([done(at, {"x": value, "same": 1}, 0.0) for at, value in enumerate(values)])
    assert (axis.name, axis.kind, axis.choices) == ("x", kind, choices)


def judged(count: int, value: Callable[[float, str], float]) -> list[Trial]:
    chosen, trials = random.Random(0), list[Trial]()
    for number in range(count):
        given: dict[str, Any] = {"lr": 10 ** chosen.uniform(-5, -2), "flag": chosen.choice("ab")}
        trials.append(
            replace(done(number, given, value(given["lr"], given["flag"])), sampled=given, distributions=SPACES)
        )
    return trials


def test_what_decides_over_the_metric_matters_most_and_trials_that_tell_nothing_have_no_shares() -> None:
    trials = judged(60, lambda lr, flag: abs(lr - 1e-3) + 1e-4 * (flag == "a"))
    trials += [done(60, {"lr": 1.0}, None), Trial(number=61, parameters={"lr": 1e9}, state="failed")]
    found = importance(trials, "minimize")
    assert list(found) == ["lr", "flag"]
    assert abs(sum(found.values()) - 1) < 1e-9
    assert importance(judged(9, lambda lr, _: lr), "minimize") == {}
    assert importance(judged(20, lambda *_: 1.0), "minimize") == {}
    assert importance([done(at, {"lr": at}, float(at)) for at in range(20)], "minimize") == {}
