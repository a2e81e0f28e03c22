"""What differs from the defaults is all that is filled in, and nobody can tell."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.plain import filled


class Color(Enum):
    red = "red"
    green = "green"


@dataclass(kw_only=True)
class Inner:
    depth: int = 0
    names: list[str] = field(default_factory=lambda: ["a", "b"])


@dataclass(kw_only=True)
class Sample:
    count: int = 1
    share: float = 1.0
    quick: bool = True
    color: Color = Color.red
    text: str | None = None
    sizes: list[float] = field(default_factory=lambda: [1.0, 2.0])
    table: dict[str, float] = field(default_factory=lambda: {"a": 1.0})
    anything: Any = 1
    inner: Inner = field(default_factory=Inner)
    inners: dict[str, Any] = field(default_factory=dict)


VALUES: list[Any] = [
    0,
    1,
    1.0,
    True,
    False,
    "1",
    "1.0",
    "true",
    "red",
    "green",
    None,
    "???",
    float("nan"),
    -0.0,
    "x",
]
VALUES += [[], [1, 2], [1.0, 2.0], [True, 2.0], ["a", "b"], [[1.0]], {}, {"a": 1.0}, {"a": True}, {"b": 2}]
VALUES += [{"depth": 1}, {"depth": 0, "names": ["a", "b"]}, {"names": ["a"]}, {"mine": {"depth": 3}}, {"mine": {}}]


def outcome(make: Any) -> str:
    try:
        return repr(make())
    except OmegaConfBaseException as error:
        return str(error)


@pytest.mark.parametrize("name", [*Sample.__dataclass_fields__, "unknown"])
def test_filling_in_is_merging_everything(name: str) -> None:
    tables = {"inners": {"mine": Inner}}
    node = OmegaConf.structured(Sample)
    node.inners["mine"] = OmegaConf.structured(Inner)
    for value in VALUES:
        merged = outcome(lambda value=value: OmegaConf.to_object(OmegaConf.merge(node, {name: value})))
        assert outcome(lambda value=value: filled(Sample, tables, {name: value})) == merged
