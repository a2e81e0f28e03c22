"""Whatever is asked for, the answer is a request that can be planned or one readable message."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config import checks, load, schema
from pipeline.config.plain import to_plain
from pipeline.errors import PipelineError
from pipeline.plan.build import check_size
from tests.doubles.composing import quick_config

pytestmark = pytest.mark.properties

# Explaining a failure traces every line, which takes several times as long where there is none.
quickly = settings(phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink))
NAME = "experiment.name=t"
OWN = "algos.Mine.class_path=examples.fudge.Fudge"
MOST_LINES, MOST_CHARACTERS = 25, 10_000


def answered(make: Callable[[], schema.Config]) -> str:
    """A request or a message for people; any other exception is the failure of a test."""
    try:
        config = make()
        checks.check_config(config)
        check_size(config)
        return repr(config)
    except PipelineError as error:
        said = str(error)
        assert said
        assert len(said.splitlines()) <= MOST_LINES
        assert len(said) <= MOST_CHARACTERS
        return said


@cache
def everything() -> dict[str, Any]:
    """A request with one section of every kind, as plain data."""
    groups = ["algos=[QSharp-HF,DPO]", "dataset=[addition,imdb_sentiment]", "model=[tiny,hf]"]
    plain = to_plain(quick_config([NAME, *groups, "models.hf.path=a/b", OWN]))
    plain["algos"] = {name: algo for name, algo in plain["algos"].items() if algo["enabled"]}
    return plain


def places(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths of all tables, lists and values."""
    if path:
        yield path
    inside: Any = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, entry in inside:
        yield from places(entry, (*path, name))


odd_texts = st.sampled_from(
    [
        "",
        "???",
        "null",
        "nan",
        "${a}",
        "${output_dir}",
        "${oc.env:HOME}",
        "${",
        "\0",
        "[/red]",
        "\\[",
        "..",
        "/dev/null",
        "\x1b[2J",
    ]
) | st.text(max_size=20)
odd_numbers = st.sampled_from(
    [0, -1, 1, 2, 2**31, 2**63, 10**22, -(10**22), 1e-320, 1e308, float("nan"), float("inf"), float("-inf")]
)
odd_values = st.recursive(
    st.none() | st.booleans() | odd_numbers | st.integers() | st.floats() | odd_texts,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(odd_texts, inside, max_size=3),
    max_leaves=6,
)


def composed_of(plain: dict[str, Any]) -> DictConfig:
    try:
        return OmegaConf.create(plain)
    except OmegaConfBaseException as error:  # as composing would have raised it
        raise load.explain(error) from error


def changed(plain: dict[str, Any], path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    result = deepcopy(plain)
    node: Any = result
    for name in path[:-1]:
        node = node[name]
    node[path[-1]] = value
    return result


@quickly
@given(st.data(), odd_values)
def test_any_value_in_any_place_is_taken_or_explained(data: st.DataObject, value: Any) -> None:
    path = data.draw(st.sampled_from(list(places(everything()))))
    plain = changed(everything(), path, value)
    answered(lambda: load.typed(composed_of(plain)))


keys = st.builds(
    lambda prefix, path, suffix: prefix + ".".join(map(str, path)) + suffix,
    st.sampled_from(["", "+", "++", "~", "@"]),
    st.deferred(lambda: st.sampled_from(list(places(everything())))),
    st.sampled_from(["", ".x", "[0]", "@y", " "]),
)
groups = st.sampled_from(
    ["algos", "dataset", "model", "profile", "execution", "experiment", "hydra/launcher", "schema"]
)
values = odd_values.map(lambda value: str(value).replace("None", "null")) | st.text(
    alphabet="[]{}(),:='\"\\$ ab1.-*\n", max_size=20
)


requests = st.sampled_from([(NAME,), (NAME, OWN)])


@quickly
@given(requests, keys | st.text(max_size=8), values)
def test_any_setting_is_taken_or_explained(others: tuple[str, ...], key: str, value: str) -> None:
    answered(lambda: quick_config([*others, f"{key}={value}"]))
