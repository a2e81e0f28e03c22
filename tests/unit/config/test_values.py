"""Every number has a range that is declared with its field, and what is outside of it is refused."""

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from pipeline.config.checks import check_config
from pipeline.config.load import load_config
from pipeline.config.plain import value_problems
from pipeline.config.schema import RANGE, AlgoConfig, Config, Range, number
from pipeline.config.tables import TABLES, all_shipped
from pipeline.errors import ConfigError

SHIPPED = [Config, *(schema for table in TABLES for schema in all_shipped(table).values())]


@cache
def hints_of(schema: type) -> dict[str, Any]:
    """The types of its fields; finding them takes a millisecond, and there are hundreds of fields."""
    return get_type_hints(schema)


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
    return load_config(["experiment.name=t"])


@dataclass(kw_only=True)
class Inner:
    share: float = number(0.5, at_least=0, at_most=1)


@dataclass(kw_only=True)
class OwnConfig(AlgoConfig):
    margin: float = number(1.0, above=0, below=10, hint=", the distance that counts")
    shares: list[float] = number([0.5], at_least=0, at_most=1)
    speed: int = number(1, at_least=1, affects_result=False)
    free: float = 1.0
    inner: Inner = field(default_factory=Inner)


def test_settings_of_ones_own_may_declare_ranges_too() -> None:
    config = deepcopy(request_of_defaults())
    wrong = OwnConfig(enabled=True, margin=10, shares=[0.5, 2, 3], free=math.nan, inner=Inner(share=-1), epochs=0)
    config.algos["Mine"] = wrong
    with pytest.raises(ConfigError) as caught:
        check_config(config)
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
    [
        ("", "is empty"),
        ("a\0b", "NUL"),
        ("x" * 256, "255 bytes a name"),
        ("x/" * 2000, "3,000 in all"),
    ],
    ids=["empty", "NUL", "long name", "long path"],
)
def test_paths_that_no_file_system_takes_are_refused(path: str, said: str) -> None:
    config = deepcopy(request_of_defaults())
    config.models["tiny"].path = path
    with pytest.raises(ConfigError) as caught:
        check_config(config)
    assert str(caught.value).startswith("models.tiny.path=")
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


def test_texts_in_free_tables_are_looked_at_too() -> None:
    config = deepcopy(request_of_defaults())
    config.algos["PITA"].options = {"a": [{"b": "\0"}], "\udc80": 1}
    with pytest.raises(ConfigError) as caught:
        check_config(config)
    assert "algos.PITA.options.a[0].b='\\x00': holds a NUL" in str(caught.value)
    str(caught.value).encode()
