"""How figures look: methods are told apart, and many rounds by their order."""

from pipeline.learning.algos.base import REFERENCE
from pipeline.runs.figures.data import OPTIMUM
from pipeline.runs.figures.style import fills, in_order, looks, some_of
from pipeline.runs.looks import COLOURS


def test_no_two_methods_look_the_same() -> None:
    names = [f"Method{number:02d}" for number in range(22)]
    found = looks(names)
    assert found.keys() == {*names, REFERENCE, OPTIMUM}
    assert len({(look.colour, look.marker, look.line) for look in found.values()}) == 24


def test_each_stage_has_a_fill_of_its_own() -> None:
    assert len(set(fills(f"stage{number}" for number in range(20)).values())) == 20


def test_rounds_have_colours_of_their_own_and_a_legend_of_many_has_some_of_them() -> None:
    assert len(set(in_order([0, 1]).values())) == 2
    many = list(range(50))
    assert len(set(in_order(many).values())) == 50
    assert some_of([0, 1]) == {0, 1}
    assert {0, 49} <= some_of(many)
    assert len(some_of(many)) == len(COLOURS)
