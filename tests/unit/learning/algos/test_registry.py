"""Algorithms by name, and what is said of a class that cannot run."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import pytest

from pipeline.config.load import load_config
from pipeline.errors import ConfigError
from pipeline.learning.algos.base import METRICS, Algorithm, JobContext, Read, Stage
from pipeline.learning.algos.best_of_n import BestOfN
from pipeline.learning.algos.pita import PITA
from pipeline.learning.algos.post_training import PostTrainingAlgorithms
from pipeline.learning.algos.registry import known_algorithms, load_algorithm, with_bounded_kl
from pipeline.learning.algos.value_guided import ValueGuidedAlgorithms


class Mine(Algorithm):
    """An algorithm of a user's own."""

    name: ClassVar[str] = "Mine"
    stages: ClassVar[tuple[Stage, ...]] = (Stage("think"),)

    def think(self, ctx: JobContext) -> None:
        """Do nothing."""


class MyPITA(PITA):
    """Takes the place of one that ships."""


class Choosy(BestOfN):
    """Picks in a way of its own."""

    name: ClassVar[str] = "Choosy"


class Exact(BestOfN):
    """Says how far it really is."""

    name: ClassVar[str] = "Exact"
    kl_is_bound: ClassVar[bool] = False


class OddBound(Mine):
    kl_is_bound: ClassVar[bool] = "log n"  # type: ignore[assignment]


class WithDefaults(Mine):
    def think(self, ctx: JobContext, loudly: bool = False) -> None:
        """Do nothing, with a setting that the engine leaves alone."""


class Static(Mine):
    @staticmethod
    def think(ctx: JobContext) -> None:
        """Do nothing, with no need of an object."""


class OwnBase(Mine, ABC):
    @abstractmethod
    def idea(self) -> str: ...


class Whole(OwnBase):
    def idea(self) -> str:
        return "none"


class Unfinished(Mine):
    """Lists a stage for which it has no method."""

    stages: ClassVar[tuple[Stage, ...]] = (Stage("think"), Stage("act"))


class Nameless(Algorithm):
    stages: ClassVar[tuple[Stage, ...]] = (Stage("think"),)

    def think(self, ctx: JobContext) -> None: ...


class Stageless(Algorithm):
    name: ClassVar[str] = "Stageless"


class NoTuple(Mine):
    stages: ClassVar[Any] = Stage("think")


class Empty(Mine):
    stages: ClassVar[tuple[Stage, ...]] = ()


class OddVersion(Mine):
    version: ClassVar[Any] = "2"


class NoOffset(ValueGuidedAlgorithms):
    name: ClassVar[str] = "NoOffset"

    def draw(self, *_: Any) -> Any: ...

    def label(self, *_: Any) -> Any: ...


class NoLoss(PostTrainingAlgorithms):
    name: ClassVar[str] = "NoLoss"


class TakesNothing(Mine):
    def think(self) -> None: ...  # type: ignore[override]


class TakesTwo(Mine):
    def think(self, ctx: JobContext, more: int) -> None: ...  # type: ignore[override]


class Awaited(Mine):
    async def think(self, ctx: JobContext) -> None: ...  # type: ignore[override]


class Yields(Mine):
    def think(self, ctx: JobContext) -> Any:
        yield ctx


def with_stages(*stages: Stage) -> type[Algorithm]:
    """An algorithm with these stages and a method for each that can have one."""
    methods = {stage.name: Mine.think for stage in stages}
    return type("Odd", (Mine,), {**methods, "stages": stages})


ReadsUnknown = with_stages(Stage("train", reads=(Read("generat"),)), Stage("generate"))
ReadsLater = with_stages(Stage("train", reads=(Read("generate"),)), Stage("generate"))
ReadsItself = with_stages(Stage("train", reads=(Read("train", "so_far"),)))
ReadsPrevious = with_stages(Stage("train", reads=(Read("evaluate", "previous"),)), Stage("evaluate"))
ReadsUnknownShared = with_stages(Stage("train", reads=(Read("generate", algo="reference"),)))
ReadsStranger = with_stages(Stage("train", reads=(Read("train", algo="PITA"),)))  # type: ignore[arg-type]
ReadsWhen = with_stages(Stage("train", reads=(Read("train", "next"),)))  # type: ignore[arg-type]
ReadsText = with_stages(Stage("train", reads=("generate",)))  # type: ignore[arg-type]
Twice = with_stages(Stage("train"), Stage("train"))
Dashed = with_stages(Stage("best-of-n"))
Keyword = with_stages(Stage("yield"))
Reserved = with_stages(METRICS, Stage("config_class"))
OddShards = with_stages(Stage("train", shards="test"))  # type: ignore[arg-type]
NoDevice = with_stages(Stage("train", devices=0))
OddSection = with_stages(Stage("train", config=("trainin",)))  # type: ignore[arg-type]
an_object = Mine()


def test_every_algorithm_that_ships_can_be_found() -> None:
    assert known_algorithms() == [
        "BestOfN", "CD", "DPO", "GRPO", "GRPO-HF", "KTO", "ORPO", "PITA", "QSharp", "QSharp-HF", "RAFT",
        "REINFORCEpp", "RLOO", "SFT", "SimPO",
    ]  # fmt: skip
    for name in [*known_algorithms(), "reference", "dataset"]:
        kind = load_algorithm(name)
        assert kind.name == name
        assert all(callable(getattr(kind, stage.name)) for stage in kind.stages)


@pytest.mark.parametrize("kind", [Mine, WithDefaults, Static, Whole, ReadsPrevious])
def test_an_algorithm_of_ones_own(kind: type[Algorithm]) -> None:
    name = next(name for name, value in globals().items() if value is kind)
    assert load_algorithm("Mine", f"{__name__}.{name}") is kind
    assert load_algorithm("Mine", f"{__name__}:{name}") is kind


def test_one_that_ships_may_run_under_another_name() -> None:
    assert load_algorithm("Mild", "pipeline.learning.algos.pita.PITA") is PITA


def test_whether_a_divergence_is_a_bound_is_what_the_class_says_under_any_name() -> None:
    own = [f"algos.{name}.class_path={__name__}.{kind}" for name, kind in (("Mine", "Choosy"), ("Yours", "Exact"))]
    front = "algos.Mine.front={num_generations: [2, 4]}"
    config = load_config(["experiment.name=t", "algos=[PITA,BestOfN]", *own, front])
    assert {name for name in config.algos if name.startswith("Mine")} == {
        "Mine@num_generations=2", "Mine@num_generations=4"
    }  # fmt: skip
    assert with_bounded_kl(config) == ["BestOfN", "Mine"]


def test_the_name_of_one_that_ships_is_for_what_builds_on_it() -> None:
    assert load_algorithm("PITA", f"{__name__}.MyPITA") is MyPITA
    with pytest.raises(
        ConfigError, match=r"PITA is the name of an algorithm that ships.*algos\.MyPITA\.class_path"
    ):
        load_algorithm("PITA", f"{__name__}.Mine")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("test_names_of_inputs", "is no algorithm: it is no class, but a function"),
        ("an_object", "is no algorithm: it is no class, but a Mine; name the class"),
        ("pytest", "is no algorithm: it is no class, but a module"),
        ("JobContext", "must be a subclass of pipeline.learning.algos.base.Algorithm"),
        ("Nameless", "it has no name; add the line: name = 'Nameless'"),
        ("Stageless", r"it has no stages; add a line such as: stages = \(Stage"),
        ("NoTuple", "but must be a tuple of one Stage or more"),
        ("Empty", r"its stages are \(\), but must be"),
        ("OddVersion", "its version is '2', but must be a whole number"),
        ("OddBound", "its kl_is_bound is 'log n', but must be True or False"),
        ("Unfinished", r"lists the stages act but has no method.*write def act\(self, ctx: JobContext\)"),
        ("NoOffset", r"must define offset\(\), which ValueGuidedAlgorithms leaves"),
        ("NoLoss", r"must define training_set\(\), which PostTrainingAlgorithms leaves"),
        ("OwnBase", r"must define idea\(\), which OwnBase leaves"),
        ("TakesNothing", r"method think must take the JobContext and nothing else"),
        ("TakesTwo", r"method think must take the JobContext and nothing else"),
        ("Awaited", "think is async or yields"),
        ("Yields", "think is async or yields"),
        ("ReadsUnknown", "reads 'generat': unknown stage 'generat'. Did you mean 'generate'"),
        ("ReadsLater", r"reads 'generate', which comes later.*Read\('generate', 'previous'\)"),
        ("ReadsItself", "reads 'train@so_far', which comes later"),
        (
            "ReadsUnknownShared",
            "an unknown stage of reference: unknown stage 'generate'.*Known: evaluate, metrics",
        ),
        ("ReadsStranger", "of algo='PITA'; it must be one of self, reference, dataset"),
        ("ReadsWhen", "of rounds='next'; it must be one of this, previous, so_far"),
        ("ReadsText", r"it must be Read\('generate'\)"),
        ("Twice", "the stage 'train' is listed twice"),
        ("Dashed", "the stage 'best-of-n' must be named as its method is"),
        ("Keyword", "the stage 'yield' must be named"),
        ("Reserved", "the stage 'config_class' must be named"),
        ("OddShards", "shards='test'; it must be 'train', 'eval' or None"),
        ("NoDevice", "devices=0; it must be at least 1"),
        ("OddSection", "unknown section 'trainin'. Did you mean 'training'"),
    ],
)
def test_a_class_that_cannot_run_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load_algorithm("X", f"{__name__}.{name}")
    assert f"{__name__}.{name}" in str(caught.value)


def test_all_that_is_wrong_is_said_at_once() -> None:
    kind = with_stages(Stage("a-b"), Stage("train", shards="test", devices=0))  # type: ignore[arg-type]
    globals()["Several"] = kind
    with pytest.raises(ConfigError) as caught:
        load_algorithm("X", f"{__name__}.Several")
    assert len(str(caught.value).splitlines()) == 4


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown algorithm 'Qsharp'\. Did you mean 'QSharp'"):
        load_algorithm("Qsharp")


def test_names_of_inputs() -> None:
    names = [Read("train"), Read("train", "previous"), Read("generate", "so_far"), Read("train", algo="reference")]
    assert [read.name for read in names] == ["train", "train@previous", "generate@so_far", "reference.train"]
