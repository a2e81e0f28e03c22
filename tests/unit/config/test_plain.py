"""Plain data of settings are what OmegaConf makes of them, and each value is in the range of its field."""

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin

import pytest
from omegaconf import OmegaConf

from pipeline.config import checks, tables
from pipeline.config.plain import filled, hints_of, to_plain, value_problems
from pipeline.config.schema import RANGE, AlgoConfig, Config, Range, number
from pipeline.errors import ConfigError
from tests.doubles.composing import quick_config


class Kind(Enum):
    first = "1"
    second = "2"


@dataclass
class Inner:
    weight: float = 1.0


@dataclass
class Settings:
    count: int = 1
    rate: float = 0.5
    kind: Kind = Kind.first
    limit: float | None = None
    size: int | str = 4
    anything: Any = None
    below: Inner = field(default_factory=Inner)
    table: dict[str, Inner] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=lambda: {"one": 1, "kinds": [1, {"two": 2.0}]})
    rates: list[float] = field(default_factory=lambda: [1.0, 2.0])


def made(config: object) -> str:
    return repr(OmegaConf.to_container(OmegaConf.structured(config), resolve=True, enum_to_str=True))


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"rate": 1, "limit": 3, "size": "large"},
        {"rate": float("inf"), "kind": Kind.second, "anything": [1, Kind.second, 2.0]},
        {"below": Inner(2), "table": {"x": Inner(3)}},
        {"numbers": {"kinds": [1, {"two": 2.0}], "one": True}, "rates": [1, 2]},
        {"numbers": {}, "rates": []},
    ],
    ids=str,
)
def test_plain_data_is_what_omegaconf_makes_of_settings(changed: dict[str, Any]) -> None:
    assert repr(to_plain(Settings(**changed))) == made(Settings(**changed))
    to_plain(Settings())["numbers"]["kinds"].append(3)
    assert to_plain(Settings())["numbers"] == {"one": 1, "kinds": [1, {"two": 2.0}]}


def test_so_is_that_of_a_request() -> None:
    settings = ["algos=[QSharp-HF,DPO]", "algos.DPO.front={beta: [1, 0.1]}", "dataset=hf", "datasets.hf.path=x"]
    config = quick_config(["experiment.name=t", "evaluation.etas=[1]", *settings])
    assert repr(to_plain(config)) == made(config)


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({}, {}),
        ({"count": "5", "rate": 1, "limit": "1e-3"}, {"count": 5, "rate": 1.0, "limit": 0.001}),
        ({"kind": "second", "size": "large"}, {"kind": Kind.second, "size": "large"}),
        ({"below": {"weight": 2}, "table": {"x": {}}}, {"below": Inner(2.0), "table": {"x": Inner()}}),
        (
            {"numbers": {"two": [1, {"a": None}]}},
            {"numbers": {"one": 1, "kinds": [1, {"two": 2.0}], "two": [1, {"a": None}]}},
        ),
        ({"rates": [1, "inf"]}, {"rates": [1.0, float("inf")]}),
    ],
    ids=str,
)
def test_plain_values_are_converted_to_what_fields_declare(given: dict[str, Any], made: dict[str, Any]) -> None:
    assert repr(filled(Settings, given)) == repr(Settings(**made))
    filled(Settings, given).rates.append(3.0)
    assert Settings().rates == filled(Settings, {}).rates


@pytest.mark.parametrize(
    "given",
    [
        {"count": True},
        {"count": 2.0},
        {"rate": "x"},
        {"kind": "third"},
        {"size": 1.5},
        {"rates": [[1]]},
        {"limit": []},
    ],
    ids=str,
)
def test_values_of_other_types_are_not(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="of another type"):
        filled(Settings, given)


# -- test values -------------------------------------------------------------------------------------------------
# Every number has a range that is declared with its field, and what is outside of it is refused.


SHIPPED = [Config, *(schema for table in tables.TABLES for schema in tables.all_shipped(table).values())]


def schemas() -> list[type]:
    """Every class of settings that ships, those inside others included."""
    found: dict[type, None] = {}
    waiting: list[type] = list(SHIPPED)
    while waiting:
        schema = waiting.pop()
        if schema not in found:
            found[schema] = None
            waiting += [kind for hint in hints_of(schema).values() for kind in parts(hint) if is_dataclass(kind)]
    return list(found)


def parts(hint: Any) -> Iterator[Any]:
    """The plain types that an annotation is made of."""
    if get_origin(hint) in (list, dict, Union, UnionType):
        for inside in get_args(hint):
            yield from parts(inside)
    else:
        yield hint


NUMBERS = [
    (schema, item)
    for schema in schemas()
    for item in fields(schema)
    if {int, float} & set(parts(hints_of(schema)[item.name]))
]


def ends(allowed: Any) -> tuple[bool, bool]:
    """Whether there is a least and a most."""
    if not isinstance(allowed, Range):
        return False, False
    return (
        allowed.at_least is not None or allowed.above is not None,
        allowed.at_most is not None or allowed.below is not None,
    )


def test_every_number_that_ships_has_a_range_with_two_ends() -> None:
    found = {f"{schema.__name__}.{item.name}": ends(item.metadata.get(RANGE)) for schema, item in NUMBERS}
    assert [name for name, both in found.items() if not all(both)] == [], "declare them with `number`"


def test_defaults_are_in_range() -> None:
    for schema in SHIPPED:
        assert list(value_problems(schema())) == []


@cache
def request_of_defaults() -> Config:
    return quick_config(["experiment.name=t"])


@dataclass(kw_only=True)
class Share:
    share: float = number(0.5, at_least=0, at_most=1)


@dataclass(kw_only=True)
class OwnConfig(AlgoConfig):
    margin: float = number(1.0, above=0, below=10, hint=", the distance that counts")
    shares: list[float] = number([0.5], at_least=0, at_most=1)
    speed: int = number(1, at_least=1, affects_result=False)
    free: float = 1.0
    inner: Share = field(default_factory=Share)


def test_settings_of_ones_own_may_declare_ranges_too() -> None:
    config = deepcopy(request_of_defaults())
    wrong = OwnConfig(enabled=True, margin=10, shares=[0.5, 2, 3], free=math.nan, inner=Share(share=-1), epochs=0)
    config.algos["Mine"] = wrong
    with pytest.raises(ConfigError) as caught:
        checks.check_config(config)
    assert str(caught.value).splitlines() == [
        "4 settings are wrong:",
        "  - algos.Mine.epochs=0: must be at least 1 and at most 1,000,000",
        "  - algos.Mine.margin=10: must be above 0 and below 10, the distance that counts",
        "  - algos.Mine.shares[1]=2: must be at least 0 and at most 1",
        "  - algos.Mine.inner.share=-1: must be at least 0 and at most 1",
    ]
    assert OwnConfig.__dataclass_fields__["speed"].metadata["affects_result"] is False


@pytest.mark.parametrize(
    ("path", "said"),
    [("", "is empty"), ("a\0b", "NUL"), ("x" * 256, "255 bytes a name"), ("x/" * 2000, "3,000 in all")],
    ids=["empty", "NUL", "long name", "long path"],
)
def test_paths_that_no_file_system_takes_are_refused(path: str, said: str) -> None:
    config = deepcopy(request_of_defaults())
    config.models["tiny"].path = path
    with pytest.raises(ConfigError) as caught:
        checks.check_config(config)
    assert str(caught.value).startswith("models.tiny.path=")
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


def test_texts_in_free_tables_are_looked_at_too() -> None:
    config = deepcopy(request_of_defaults())
    config.algos["PITA"].options = {"a": [{"b": "\0"}], "\udc80": 1}
    with pytest.raises(ConfigError) as caught:
        checks.check_config(config)
    assert "algos.PITA.options.a[0].b='\\x00': holds a NUL" in str(caught.value)
    str(caught.value).encode()
