"""How figures look: methods are told apart, and many rounds by their order."""

from pipeline.learning.algos.base import REFERENCE
from pipeline.runs.figures.data import OPTIMUM
from pipeline.runs.figures.style import fills, in_order, looks, some_of


def test_no_two_methods_or_points_of_a_front_look_the_same_and_points_change_no_method() -> None:
    names = [f"Method{number:02d}" for number in range(20)]
    points = ["Method03@beta=0.1", "Method03@beta=1"]
    found = looks([*names, REFERENCE, OPTIMUM, *points])
    assert len({(look.colour, look.marker, look.line) for look in found.values()}) == len(found) == 24
    assert looks(names).items() <= found.items()


def test_each_stage_has_a_fill_of_its_own() -> None:
    assert len(set(fills(f"stage{number}" for number in range(20)).values())) == 20


def test_rounds_have_colours_of_their_own_and_a_legend_of_many_has_some_of_them() -> None:
    assert len(set(in_order([0, 1]).values())) == 2
    many = list(range(50))
    assert len(set(in_order(many).values())) == 50
    assert some_of([0, 1]) == {0, 1}
    assert {0, 49} <= some_of(many)
    assert len(some_of(many)) == 7
