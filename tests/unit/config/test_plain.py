"""Plain data of settings are what OmegaConf makes of them."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
from omegaconf import OmegaConf

from pipeline.config.plain import filled, to_plain
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
