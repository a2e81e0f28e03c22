"""A plan that nobody could wait for is refused before it is built, with what would fit."""

import re
from copy import deepcopy
from functools import cache
from typing import Any

import pytest

from pipeline.config.schema import Config
from pipeline.errors import PlanError
from pipeline.plan.build import build_plan
from pipeline.plan.size import MOST_JOBS, MOST_LINKS, check_size, extent_of
from tests.doubles.composing import quick_config


@cache
def composed(*overrides: str) -> Config:
    return quick_config(["experiment.name=t", *overrides])


def request_of(*overrides: str, **changes: Any) -> Config:
    config = deepcopy(composed(*overrides))
    for key, value in changes.items():
        section, _, name = key.rpartition("__")
        setattr(getattr(config, section) if section else config, name, value)
    return config


def refused(config: Config) -> str:
    with pytest.raises(PlanError) as caught:
        check_size(config)
    with pytest.raises(PlanError):
        build_plan(config)
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        ([], {}),
        ([], {"rounds_of_training": 5, "experiment__seeds": [1, 2, 3]}),
        (["algos=[CD,GRPO,RAFT]"], {"execution__shard_size": 333}),
        (["dataset=[addition,jsonl]", "datasets.jsonl.path=x.jsonl"], {}),
    ],
    ids=["default", "rounds and seeds", "algorithms", "datasets"],
)
def test_the_size_is_that_of_the_plan(overrides: list[str], changes: dict[str, Any]) -> None:
    config = request_of(*overrides, **changes)
    unprepared = 2 * sum(section.kind == "addition" for section in config.datasets.values())
    assert extent_of(config).jobs == pytest.approx(len(build_plan(config).jobs) + unprepared, abs=5)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"rounds_of_training": 1_000_000}, "rounds_of_training=1000000"),
        ({"rounds_of_training": 5000}, "rounds_of_training=5000"),
        ({"experiment__seeds": list(range(100_000))}, "100,000 experiment.seeds"),
        ({"data_collection__prompts_per_round": 10**9}, "data_collection.prompts_per_round=1000000000"),
        (
            {"execution__shard_size": 1, "data_collection__prompts_per_round": 600_000},
            "execution.shard_size=1 ",
        ),
    ],
    ids=["jobs", "links", "seeds", "prompts", "shards"],
)
def test_the_setting_to_blame_is_named_with_what_would_fit(changes: dict[str, Any], key: str) -> None:
    told = refused(request_of(**changes))
    assert f"It is {key.strip()} that makes it so large" in told
    fits = int(re.findall(r"large: (\d+) or (?:fewer|more) would fit", told)[0])
    name = next(name for name in changes if key.partition("=")[0].split(".")[-1].strip() in name)
    section = name.rpartition("__")[0]
    better: Any = list(range(fits)) if section == "experiment" else fits
    check_size(request_of(**{**changes, name: better}))
    worse: Any = list(range(fits + 1)) if section == "experiment" else fits + (-1 if "more would" in told else 1)
    refused(request_of(**{**changes, name: worse}))


def test_where_no_setting_alone_is_to_blame_all_are_named() -> None:
    told = refused(request_of(rounds_of_training=100_000, data_collection__prompts_per_round=10**9))
    assert "No single setting makes it fit" in told
    assert "rounds_of_training: 100,000" in told


def test_bounds_leave_room_for_real_requests() -> None:
    extent = extent_of(request_of(rounds_of_training=100, experiment__seeds=list(range(10))))
    assert extent.fits
    assert (MOST_JOBS, MOST_LINKS) == (1_000_000, 5_000_000)
