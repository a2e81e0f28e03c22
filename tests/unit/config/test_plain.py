"""Plain data of settings are what OmegaConf makes of them, though it is seldom asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config import plain
from pipeline.config.plain import to_plain
from tests.doubles.composing import quick_config


class Kind(Enum):
    first = "1"
    second = "2"


@dataclass
class Inner:
    weight: float = 1.0


@dataclass
class Special(Inner):
    count: int = 3


@dataclass
class Other:
    weight: float = 1.0


@dataclass
class Settings:
    count: int = 1
    rate: float = 0.5
    name: str = "a"
    kind: Kind = Kind.first
    place: Path | None = None
    limit: int | None = None
    size: int | str = 4
    anything: Any = None
    below: Inner = field(default_factory=Inner)
    perhaps: Inner | None = None
    table: dict[str, Inner] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=lambda: {"one": 1, "kinds": [1, {"two": 2.0}]})
    names: list[str] = field(default_factory=lambda: ["a", "b"])
    rates: list[float] = field(default_factory=lambda: [1.0, 2.0])


@dataclass
class Referring:
    name: str = "a"
    names: list[str] = field(default_factory=lambda: ["${..name}", "b"])


def answer(settings: object) -> object:
    """What OmegaConf makes of settings; of what it refuses, why."""
    try:
        node = OmegaConf.structured(settings)
        made = OmegaConf.to_container(node, resolve=True, enum_to_str=True)
    except OmegaConfBaseException as error:
        return repr(error)
    return repr(made)  # 1, 1.0 and True are equal


def given(settings: object) -> object:
    try:
        return repr(to_plain(settings))
    except OmegaConfBaseException as error:
        return repr(error)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"count": True},
        {"count": 2.0},
        {"count": "many"},
        {"rate": 1},
        {"rate": float("inf")},
        {"name": "${.count}"},
        {"name": "???"},
        {"name": 7},
        {"kind": Kind.second},
        {"kind": "second"},
        {"kind": "third"},
        {"place": Path("x")},
        {"limit": 3},
        {"size": "large"},
        {"size": 1.5},
        {"anything": Kind.second},
        {"anything": [1, Kind.second]},
        {"anything": Inner(2)},
        {"anything": Inner},
        {"below": Inner(2)},
        {"below": Inner("heavy")},  # type: ignore[arg-type]
        {"below": Special()},
        {"below": Other()},
        {"below": None},
        {"perhaps": Inner()},
        {"perhaps": Other()},
        {"table": {"x": Inner(3.5), "y": Special(count=2)}},
        {"table": {"x": Other()}},
        {"table": Inner()},
        {"table": {"x": {"weight": 2}}},
        {"numbers": {"one": 1.0, "kinds": [1, {"two": 2.0}]}},
        {"numbers": {"one": True, "kinds": [1, {"two": 2.0}]}},
        {"numbers": {"kinds": [1, {"two": 2.0}], "one": 1}},
        {"numbers": {}},
        {"names": []},
        {"names": ["a", 1]},
        {"names": ["${..name}"]},
        {"rates": [1, 2]},
        {"rates": (1.0, 2.0)},
    ],
    ids=str,
)
def test_plain_data_is_what_omegaconf_makes_of_settings(changed: dict[str, Any]) -> None:
    settings = Settings(**changed)
    assert given(settings) == answer(settings)


def test_what_a_default_refers_to_stands_in_plain_data() -> None:
    assert to_plain(Referring("x")) == {"name": "x", "names": ["x", "b"]}


def test_plain_data_of_settings_may_be_changed() -> None:
    to_plain(Settings())["numbers"]["kinds"].append(3)
    assert to_plain(Settings())["numbers"] == {"one": 1, "kinds": [1, {"two": 2.0}]}


@pytest.mark.parametrize(
    "settings",
    [[], ["algos=[QSharp-HF,DPO]", "algos.DPO.lora.rank=4", "dataset=hf", "datasets.hf.path=x"]],
    ids=["default", "changed"],
)
def test_a_request_of_values_of_their_types_needs_no_omegaconf(
    settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = quick_config(["experiment.name=t", *settings])
    expected = answer(config)
    to_plain(config)  # which finds out the defaults of each class
    monkeypatch.setattr(plain, "OmegaConf", None)
    assert given(config) == expected
