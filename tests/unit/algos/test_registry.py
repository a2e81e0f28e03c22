"""Algorithms by name."""

from typing import ClassVar

import pytest

from pipeline.algos.base import Algorithm, JobContext, Read, Stage
from pipeline.algos.registry import known_algorithms, load_algorithm
from pipeline.errors import ConfigError


class Mine(Algorithm):
    """An algorithm of a user's own."""

    name: ClassVar[str] = "Mine"
    stages: ClassVar[tuple[Stage, ...]] = (Stage("think"),)

    def think(self, ctx: JobContext) -> None:
        """Do nothing."""


class Unfinished(Mine):
    """Lists a stage for which it has no method."""

    stages: ClassVar[tuple[Stage, ...]] = (Stage("think"), Stage("act"))


def test_every_algorithm_that_ships_can_be_found() -> None:
    assert known_algorithms() == [
        "BestOfN", "CD", "DPO", "GRPO", "GRPO-HF", "PITA", "QSharp", "QSharp-HF", "SFT"
    ]  # fmt: skip
    for name in [*known_algorithms(), "reference"]:
        kind = load_algorithm(name)
        assert kind.name == name
        assert all(callable(getattr(kind, stage.name)) for stage in kind.stages)


def test_an_algorithm_of_ones_own() -> None:
    assert load_algorithm("Mine", f"{__name__}.Mine").name == "Mine"


@pytest.mark.parametrize(
    ("name", "path", "said"),
    [
        ("Qsharp", None, "unknown algorithm 'Qsharp'. Did you mean 'QSharp'"),
        ("X", "pathlib.Path", "is no algorithm"),
        ("X", "no_such_module.X", "cannot import 'no_such_module.X'"),
        ("X", f"{__name__}.Unfinished", "lists the stages act but has no method"),
    ],
    ids=["name", "class", "module", "method"],
)
def test_what_cannot_be_used_is_refused(name: str, path: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_algorithm(name, path)


def test_names_of_inputs() -> None:
    names = [Read("train"), Read("train", "previous"), Read("generate", "so_far"), Read("train", algo="reference")]
    assert [read.name for read in names] == ["train", "train@previous", "generate@so_far", "reference.train"]
