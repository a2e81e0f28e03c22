"""Algorithms by name, and what is said of a class that cannot run."""

import weakref
from contextlib import nullcontext
from typing import Any, ClassVar

import pytest
import torch

from pipeline.config.tables import ALGORITHMS
from pipeline.errors import ConfigError, JobError
from pipeline.learning.algos import post_training, registry, stage_entry, value_guided
from pipeline.learning.algos.base import Algorithm, JobContext, Read, Stage
from pipeline.learning.algos.stage_entry import _advice_on_determinism as _advised
from pipeline.learning.algos.stage_entry import prepare_torch
from pipeline.learning.models.cache import ModelCache


class Mine(Algorithm):
    """An algorithm of a user's own."""

    name: ClassVar[str] = "Mine"
    stages: ClassVar[tuple[Stage, ...]] = (Stage("think"),)

    def think(self, ctx: JobContext) -> None:
        """Do nothing."""


class MyPITA(value_guided.PITA):
    """Takes the place of one that ships."""


class Static(Mine):
    @staticmethod
    def think(ctx: JobContext, loudly: bool = False) -> None:
        """Do nothing, with no need of an object, and a setting that the engine leaves alone."""


class Unfinished(Mine):
    stages: ClassVar[tuple[Stage, ...]] = (Stage("think"), Stage("act"))


class Nameless(Algorithm):
    stages: ClassVar[tuple[Stage, ...]] = (Stage("think"),)


class NoTuple(Mine):
    stages: ClassVar[Any] = Stage("think")


class NoLoss(post_training.PostTrainingAlgorithms):
    name: ClassVar[str] = "NoLoss"


class TakesTwo(Mine):
    def think(self, ctx: JobContext, more: int) -> None: ...  # type: ignore[override]


def with_stages(*stages: Stage) -> type[Algorithm]:
    """An algorithm with these stages and a method for each that can have one."""
    methods = {stage.name: Mine.think for stage in stages}
    return type("Odd", (Mine,), {**methods, "stages": stages})


ReadsUnknown = with_stages(Stage("train", reads=(Read("generat"),)), Stage("generate"))
ReadsLater = with_stages(Stage("train", reads=(Read("generate"),)), Stage("generate"))
ReadsPrevious = with_stages(Stage("train", reads=(Read("evaluate", "previous"),)), Stage("evaluate"))
ReadsUnknownShared = with_stages(Stage("train", reads=(Read("generate", algo="reference"),)))
Twice = with_stages(Stage("train"), Stage("train"))
an_object = Mine()


def test_every_algorithm_that_ships_can_be_found() -> None:
    for name in [*ALGORITHMS, "reference", "dataset"]:
        kind = registry.load_algorithm(name)
        assert kind.name == name
        assert all(callable(getattr(kind, stage.name)) for stage in kind.stages)


@pytest.mark.parametrize("kind", [Mine, Static, ReadsPrevious])
def test_an_algorithm_of_ones_own(kind: type[Algorithm]) -> None:
    name = next(name for name, value in globals().items() if value is kind)
    assert registry.load_algorithm("Mine", f"{__name__}.{name}") is kind
    assert registry.load_algorithm("Mine", f"{__name__}:{name}") is kind


def test_the_name_of_one_that_ships_is_for_what_builds_on_it() -> None:
    assert registry.load_algorithm("PITA", f"{__name__}.MyPITA") is MyPITA
    with pytest.raises(ConfigError, match=r"algos\.MyPITA\.class_path"):
        registry.load_algorithm("PITA", f"{__name__}.Mine")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("an_object", "is no Algorithm"),
        ("Nameless", "name = 'Nameless'"),
        ("NoTuple", "must be a tuple"),
        ("Unfinished", r"write def act\(self, ctx: JobContext\)"),
        ("NoLoss", r"must define training_set\(\), which PostTrainingAlgorithms leaves"),
        ("TakesTwo", "method think must take the JobContext"),
        ("ReadsUnknown", "Did you mean 'generate'"),
        ("ReadsLater", r"Read\('generate', 'previous'\)"),
        ("ReadsUnknownShared", "unknown stage 'generate'.*Known: evaluate, metrics"),
        ("Twice", "the stage 'train' is listed twice"),
    ],
)
def test_a_class_that_cannot_run_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        registry.load_algorithm("X", f"{__name__}.{name}")
    assert f"{__name__}.{name}" in str(caught.value)


@pytest.mark.parametrize(
    ("made", "given"),
    [
        (Stage, {"name": "best-of-n"}),
        (Stage, {"name": "yield"}),
        (Stage, {"name": "train", "shards": "test"}),
        (Stage, {"name": "train", "devices": 0}),
        (Stage, {"name": "train", "config": ("trainin",)}),
        (Stage, {"name": "train", "reads": ("generate",)}),
        (Read, {"stage": "train", "rounds": "next"}),
        (Read, {"stage": "train", "algo": "PITA"}),
    ],
)
def test_a_stage_that_no_plan_can_be_made_of_is_refused_where_it_is_written(made: Any, given: Any) -> None:
    with pytest.raises(ValueError, match=r"named as its method|section|one device or more|must be one of"):
        made(**given)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'QSharp'"):
        registry.load_algorithm("Qsharp")


# -- test stage entry --------------------------------------------------------------------------------------------
# What a stage is given before its method is called.


def test_what_generation_has_loaded_is_let_go_of() -> None:
    cache = ModelCache(4)
    left = weakref.ref(cache.get(("policy",), lambda: torch.nn.Linear(1, 1), nullcontext))
    stage_entry._empty(cache)
    assert left() is not None
    cache.begin_job()
    stage_entry._empty(cache)
    assert left() is None


def test_a_model_that_cannot_be_trained_deterministically_is_told_how_to_be_trained_all_the_same() -> None:
    said = "foo_cuda does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms"
    with pytest.raises(JobError, match=r"foo_cuda does not .*training.deterministic=false"), _advised():
        raise RuntimeError(said)
    with pytest.raises(RuntimeError, match="other"), _advised():
        raise RuntimeError("other")


# -- test torch setup --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "trains", "exact", "flags"),
    [
        ("cpu", True, True, (True, True)),
        ("cpu", False, True, (True, True)),
        ("cuda", True, True, (True, False)),
        ("cuda", False, True, (False, False)),
        ("cuda", True, False, (True, True)),
    ],
)
def test_only_trainings_on_a_gpu_must_be_deterministic(
    device: str, trains: bool, exact: bool, flags: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a mere warning attention takes backward passes that add up in an order of chance."""
    given = []
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    monkeypatch.setattr(
        torch, "use_deterministic_algorithms", lambda mode, *, warn_only=False: given.append((mode, warn_only))
    )
    prepare_torch(1, device, trains=trains, exact=exact)
    assert given == [flags]
    assert not torch.utils.deterministic.fill_uninitialized_memory
