"""The points of a grid and their order, against W&B's way of listing them."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sweeps.reading.parameters import read_parameters
from pipeline.sweeps.searching.searches import Grid
from pipeline.sweeps.space import fingerprint


def grid_of(**block: Any) -> Grid:
    return Grid({parameter.name: parameter for parameter in read_parameters(block)})


def listed(block: dict[str, Any]) -> list[dict[str, Any]]:
    """As `sweeps.grid_search` of W&B's package goes through a grid: sorted names, each combination once."""
    values = {name: _values(given) for name, given in sorted(block.items())}
    last = {name: {fingerprint(value): value for value in of} for name, of in values.items()}
    marks = dict.fromkeys(itertools.product(*([fingerprint(value) for value in of] for of in values.values())))
    return [{name: last[name][mark] for name, mark in zip(values, each, strict=True)} for each in marks]


def _values(given: dict[str, Any]) -> list[Any]:
    if "value" in given:
        return [given["value"]]
    if "values" in given:
        return list(given["values"])
    if given.get("distribution") == "q_uniform":
        return list(np.arange(given["min"], given["max"], given.get("q", 1.0)).tolist())
    return list(range(given["min"], given["max"] + 1))


_scalars = st.one_of(st.integers(-3, 3), st.booleans(), st.none(), st.sampled_from("ab"), st.floats(-2, 2))
_parameters = st.one_of(
    st.builds(lambda values: {"values": values}, st.lists(_scalars, min_size=1, max_size=4)),
    st.builds(lambda value: {"value": value}, _scalars),
    st.builds(lambda low, size: {"min": low, "max": low + size}, st.integers(-3, 3), st.integers(1, 4)),
    st.builds(
        lambda low, steps, q, more: {
            "distribution": "q_uniform",
            "min": low,
            "max": low + steps * q + more,
            "q": q,
        },
        st.one_of(st.integers(-3, 3), st.floats(-2, 2)),
        st.integers(1, 4),
        st.sampled_from([1, 2, 0.1, 0.3, 1.0]),
        st.sampled_from([0, 0.0, 0.75]),
    ),
)


@pytest.mark.properties
@given(st.dictionaries(st.sampled_from(["b", "a", "lr", "B", "a.x"]), _parameters, min_size=1, max_size=4))
def test_points_are_wandbs_in_its_order(block: dict[str, Any]) -> None:
    grid, expected = grid_of(**block), listed(block)
    points = [grid.point(number) for number in range(grid.size)]
    assert repr([sorted(point.items()) for point in points]) == repr([sorted(point.items()) for point in expected])
    assert [grid.number(point) for point in points] == list(range(grid.size))
    assert all(list(point) == list(block) for point in points)


def test_names_are_sorted_table_by_table() -> None:
    """So a dotted name comes after a table of which it has the name before its dot, as W&B has it."""
    two = {"values": [1, 2]}
    grid = grid_of(**{"b": two, "a.d": two, "a": {"parameters": {"z": two, "c": two}}})
    slowest_last = [grid.point(2**place) for place in range(4)]
    changed = [next(name for name, value in point.items() if value == 2) for point in slowest_last]
    assert changed == ["b", "a.d", "a.z", "a.c"]


def test_points_that_are_missing_are_found_whatever_the_order() -> None:
    grid = grid_of(a={"values": [1, 2, 3]}, b={"min": 0, "max": 1})
    points = [grid.point(number) for number in (3, 0, 4)]
    assert list(grid.missing([*points, {"a": 9, "b": 0}, {"a": 1}])) == [1, 2, 5]


def test_a_grid_without_end_is_counted_and_not_listed() -> None:
    grid = grid_of(a={"min": 0, "max": 10**60}, b={"min": 0, "max": 9})
    assert grid.size == 10 * (10**60 + 1)
    assert grid.point(grid.size - 1) == {"a": 10**60, "b": 9}
    assert grid.number({"a": 10**60, "b": 9}) == grid.size - 1


@pytest.mark.parametrize("value", [True, 1.5, "1", None, [1], float("inf"), 7])
def test_what_is_no_point_has_no_number(value: object) -> None:
    assert grid_of(a={"min": 0, "max": 5}).number({"a": value}) is None
    assert grid_of(a={"min": 0, "max": 5, "q": 1, "distribution": "q_uniform"}).number({"a": value}) is None
