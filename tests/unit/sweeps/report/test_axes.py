import math
import random
from typing import Any

import pytest

from pipeline.sweeps.report.page import axes_of, by_size
from pipeline.sweeps.space import LogUniform, Parameter, Quantized, Uniform
from pipeline.sweeps.trials import Trial


def trials(*parameters: dict[str, Any]) -> list[Trial]:
    return [Trial(number=number, parameters=each) for number, each in enumerate(parameters)]


def test_parameters_that_differ_are_axes_and_others_are_not() -> None:
    axes = axes_of(trials({"a.lr": 0.1, "same": 1, "b.lr": 3}, {"a.lr": 0.2, "same": 1, "b.lr": 4}))
    assert [(axis.name, axis.heading, axis.values) for axis in axes] == [
        ("a.lr", "a.lr", [0.1, 0.2]),
        ("b.lr", "b.lr", [3.0, 4.0]),
    ]


def test_a_parameter_that_only_some_trials_have_is_an_axis_with_gaps() -> None:
    (axis,) = axes_of(trials({"m": 1}, {}))
    assert axis.values == [0.0, None] or axis.values == [1.0, None]


def test_texts_lists_and_truth_are_choices_in_order_numbers_by_their_size() -> None:
    given = ["b", "a", True, 1, [1, 2], {"x": None}, None, math.inf, 10, 2]
    (axis,) = axes_of(trials(*({"p": value} for value in given)))
    assert axis.kind == "choices"
    assert axis.choices[:3] == ["1", "2", "10"]
    assert [axis.choices[int(place)] for place in axis.values if place is not None][:2] == ["b", "a"]
    assert len(axis.choices) == len(given), "1 and true are two values"


def test_numbers_that_come_again_and_again_stand_in_equal_distances() -> None:
    grid = axes_of(trials(*({"lr": lr} for lr in (1e-4, 1e-3, 1e-2) * 3)))[0]
    assert (grid.kind, grid.choices) == ("choices", ["0.0001", "0.001", "0.01"])


@pytest.mark.parametrize("seed", range(3))
def test_numbers_are_drawn_by_size_where_they_were_searched_so(seed: int) -> None:
    chosen = random.Random(seed)
    assert by_size([10 ** chosen.uniform(-5, -2) for _ in range(30)])
    assert not by_size([chosen.uniform(0.0001, 0.5) for _ in range(30)])
    assert not by_size([0.0, 1e-9, 1.0])


def test_an_axis_is_as_its_values_were_drawn() -> None:
    close = trials(*({"p": 1.0 + 0.1 * number} for number in range(9)))
    far = trials(*({"p": 10.0**number} for number in range(9)))
    drawn = {
        "log": LogUniform(0.5, 9.0),
        "quantized": Quantized(LogUniform(0.5, 9.0), 0.1),
        "even": Uniform(0, 1e9),
    }
    kinds = {
        name: [axes_of(each, {"p": Parameter(("p",), of)})[0].kind for each in (close, far)]
        for name, of in drawn.items()
    }
    assert kinds == {"log": ["log", "log"], "quantized": ["log", "log"], "even": ["linear", "linear"]}
    assert [axes_of(each)[0].kind for each in (close, far)] == ["linear", "log"]
