"""How many workers a cluster has room for, and where."""

from __future__ import annotations

import pytest

from pipeline.engine.workers.ray.cluster import nodes_of
from pipeline.engine.workers.ray.places import places_of, present_with


@pytest.mark.parametrize(
    ("there", "taken", "places"),
    [
        ({"GPU": 4.0, "CPU": 8.0}, {"GPU": 1.0}, 4),
        ({"GPU": 4.0, "CPU": 3.0}, {"GPU": 1.0, "CPU": 2.0}, 1),
        ({"CPU": 8.0}, {"GPU": 1.0}, 0),
        ({"CPU": 8.0}, {"CPU": 2.0, "memory": 0.0}, 4),
    ],
)
def test_room_on_a_node(there: dict[str, float], taken: dict[str, float], places: int) -> None:
    assert places_of(there, taken) == places


def test_large_nodes_are_filled_first_and_those_to_come_are_as_large() -> None:
    assert nodes_of([2, 4], 6) == [0, 0, 0, 0, 1, 1]
    assert nodes_of([2, 4], 3) == [0, 0, 0]
    assert nodes_of([2, 4], 11) == [0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 3]


@pytest.mark.parametrize(
    ("room", "whole", "present"),
    [(2, False, 2), (3, False, 3), (9, False, 6), (3, True, 2), (4, True, 4), (9, True, 6), (1, False, 2)],
)
def test_places_are_asked_for_once_nodes_have_joined_that_have_room(room: int, whole: bool, present: int) -> None:
    assert present_with([0, 0, 1, 1, 2, 2], 2, room, whole=whole) == present
