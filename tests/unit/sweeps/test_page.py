"""The page of a sweep: what it has of trials in every state, whatever their parameters and reasons hold."""

import random
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from pipeline.runs.report import html
from pipeline.sweeps.report import _SCRIPTS as SCRIPTS
from pipeline.sweeps.report import axes_of, importance
from pipeline.sweeps.report import page_of as sweep_page_of
from pipeline.sweeps.storage import Record, Trial
from tests.doubles.sweeps import SweepOnPaper, searched

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
