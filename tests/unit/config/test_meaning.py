"""Every key says what it means, and says it from where it is declared."""

from dataclasses import dataclass, field
from enum import Enum

from pipeline.config.load import known_keys
from pipeline.config.meaning import meanings, shipped_meanings, shipped_sections
from pipeline.config.schema import AlgoConfig, number
from pipeline.config.tables import TABLES


class Colour(Enum):
    """What it is painted with."""

    red = "red"  # as a rose
    blue = "blue"


@dataclass(kw_only=True)
class Inside:
    """Settings inside of others."""

    depth: int = number(3, at_least=1, at_most=9)  # in metres


@dataclass(kw_only=True)
class OwnConfig(AlgoConfig):
    """Settings of a user's own."""

    strength: float | None = number(None, above=0, at_most=2, hint=", or null for none", affects_result=False)
    """How hard it pulls, in newtons.
    Null does not pull; more is no better."""
    colour: Colour = Colour.red
    names: list[str] = field(default_factory=lambda: ["a", "b"])
    learning_rate: float = number(0.5, above=0, at_most=1)
    inside: Inside = field(default_factory=Inside)


def test_every_key_that_ships_says_what_it_means() -> None:
    found = shipped_meanings()
    assert set(found) == set(known_keys()) - set(TABLES)
    assert [each.key for each in found.values() if not each.text] == []
    assert [key for key, text in shipped_sections().items() if not text] == []
    unexplained = {key for key, each in found.items() if not all(each.choices.values())}
    assert unexplained == set()


def test_what_is_declared_is_told() -> None:
    own = {each.key: each for each in meanings(OwnConfig, "algos.Mine")}
    pull = own["algos.Mine.strength"]
    assert pull.text == "How hard it pulls, in newtons. Null does not pull; more is no better."
    assert pull.line == "How hard it pulls, in newtons"
    assert (pull.type, pull.default, pull.allowed) == (
        "number or null",
        "null",
        "above 0 and at most 2, or null for none",
    )
    assert not pull.affects_result
    colour = own["algos.Mine.colour"]
    assert (colour.type, colour.default, colour.text) == ("choice", "red", "What it is painted with.")
    assert colour.choices == {"red": "as a rose", "blue": ""}
    assert (own["algos.Mine.names"].type, own["algos.Mine.names"].default) == ("list of texts", "[a,b]")
    assert (own["algos.Mine.inside.depth"].text, own["algos.Mine.inside.depth"].default) == ("in metres", "3")
