"""Whose settings a section has, and what settings of the user's own say of themselves."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.checks import check_config
from pipeline.config.ignored import idle_settings
from pipeline.config.load import load_config
from pipeline.config.schema import AlgoConfig, Config, Settings, number
from pipeline.config.tables import ALGORITHMS, DATASETS, MODELS, TABLES, all_shipped, conf_dir
from pipeline.config.user_code import check_settings_class
from pipeline.errors import ConfigError
from pipeline.learning.algos.base import Algorithm
from pipeline.learning.algos.value_guided import PITA, PITAConfig
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.datasets.from_files import FilesConfig, FilesDataset
from tests.doubles.composing import quick_config

NAME = "experiment.name=t"


@pytest.mark.parametrize("table", TABLES)
def test_what_ships_has_settings_with_defaults(table: str) -> None:
    for name, schema in all_shipped(table).items():
        check_settings_class(name, schema, TABLES[table].base)


@pytest.mark.parametrize(("group", "shipped"), [("algos", ALGORITHMS), ("dataset", DATASETS), ("model", MODELS)])
def test_what_ships_has_a_file(group: str, shipped: dict[str, str]) -> None:
    assert shipped.keys() <= {path.stem for path in (conf_dir() / group).glob("*.yaml")}


@dataclass(kw_only=True)
class Hints(Settings):
    count: int = number(1, at_least=0, at_most=9)

    def problems(self, key: str, config: Config) -> Iterator[str]:
        if self.count == 9:
            yield f"{key}.count=9: more than there are rounds ({config.rounds_of_training})"

    def idle(self, setting: str) -> str:
        return "" if self.count else f"without hints {setting} is nothing"


@dataclass(kw_only=True)
class RiddlesConfig(FilesConfig):
    hardest: int = number(5, at_least=1, at_most=9)
    easiest: int = number(1, at_least=1, at_most=9)
    reward: str = "length"
    hints: Hints = field(default_factory=Hints)
    many: list[Hints] = field(default_factory=list)
    named: dict[str, Hints] = field(default_factory=dict)
    shares: dict[str, float] = number({"easy": 1.0}, at_least=0)

    def problems(self, key: str, config: Config) -> Iterator[str]:
        if self.easiest > self.hardest:
            yield f"{key}.easiest={self.easiest} must not be above {key}.hardest={self.hardest}"

    def idle(self, setting: str) -> str:
        return "there is one level" if setting == "easiest" and self.hardest == 1 else super().idle(setting)


class Riddles(FilesDataset):
    config_class = RiddlesConfig


RIDDLES = ["dataset=hf", "datasets.hf.path=x/y", f"datasets.hf.class_path={__name__}.Riddles"]


def test_a_class_in_the_place_of_a_dataset_that_ships_brings_its_settings() -> None:
    config = load_config([NAME, *RIDDLES, "datasets.hf.hardest=3", "datasets.hf.prompt_template='{prompt}?'"])
    section = config.datasets["hf"]
    assert isinstance(section, RiddlesConfig)
    assert (section.hardest, section.kind, section.prompt_template) == (3, "hf", "{prompt}?")
    assert section.reward == "length"
    assert isinstance(load_dataset(section), Riddles)
    check_config(config)
    again = load_config([NAME, "dataset=hf", "datasets.hf.path=x/y"]).datasets["hf"]
    assert type(again) is FilesConfig  # the next request is as if there had been none before


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["datasets.hf.hardst=3"], "Did you mean 'datasets.hf.hardest'"),
        (
            ["datasets.hf.hints.cuont=3"],
            "Did you mean 'datasets.hf.hints.count'? Known in datasets.hf.hints: count.",
        ),
        (["datasets.hf.hardest=1", "datasets.hf.easiest=2"], "easiest=2 must not be above datasets.hf.hardest=1"),
        (["datasets.hf.many=[{},{count:9}]"], "datasets.hf.many[1].count=9: more than there are rounds (2)"),
        (["datasets.hf.named={a:{count:9}}"], "datasets.hf.named.a.count=9: more than there are rounds (2)"),
    ],
)
def test_what_is_wrong_with_own_settings_of_a_dataset_is_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_config(quick_config([NAME, *RIDDLES, *overrides]))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["datasets.hf.hardest=1", "datasets.hf.easiest=1"], ["datasets.hf.easiest=1", "there is one level"]),
        (["datasets.hf.hints.count=0"], ["datasets.hf.hints.count=0", "without hints count is nothing"]),
        (["datasets.hf.hints.count=2", "datasets.hf.easiest=1", "datasets.hf.many=[{}]"], []),
    ],
)
def test_own_settings_say_which_have_no_effect(overrides: list[str], said: list[str]) -> None:
    told = idle_settings(quick_config([NAME, *RIDDLES, *overrides]), overrides, gpu=False)
    assert list(told) == [" has no effect in this run: ".join(said)] * bool(said)


@dataclass(kw_only=True)
class Failing(PITAConfig):
    def problems(self, key: str, config: Config) -> Iterator[str]:
        yield key.no_such_name  # type: ignore[attr-defined]


class FailingPITA(PITA):
    config_class = Failing


def test_rules_that_fail_are_told_with_their_line() -> None:
    config = load_config([NAME, f"algos.Mine.class_path={__name__}.FailingPITA"])
    with pytest.raises(ConfigError) as caught:
        check_config(config)
    said = str(caught.value)
    assert said.startswith(
        "algos.Mine: problems() of Failing failed: AttributeError: 'str' object has no attribute"
    )
    assert f"({Path(__file__)}:" in said


@dataclass(kw_only=True)
class Answering(AlgoConfig):
    problems_give: Any = ()
    idle_gives: Any = ""

    def problems(self, key: str, config: Config) -> Any:
        return self.problems_give

    def idle(self, setting: str) -> Any:
        return {}["nothing"] if self.idle_gives == "fails" else self.idle_gives


class Asked(Algorithm):
    stages = ()
    config_class = Answering


@pytest.mark.parametrize("given", ["bad", "5"])
def test_messages_that_are_none_are_told_with_their_line(given: str) -> None:
    config = quick_config([NAME, f"algos.Mine.class_path={__name__}.Asked", f"algos.Mine.problems_give={given}"])
    said = r"^algos\.Mine: problems\(\) of Answering gave .*, but must yield messages \(.*test_tables\.py:\d+\)$"
    with pytest.raises(ConfigError, match=said):
        check_config(config)


@dataclass(kw_only=True)
class Part:
    size: int = 1

    def __post_init__(self) -> None:
        if self.size == 0:
            raise ValueError("nothing of it is left")


@dataclass(kw_only=True)
class PartsConfig(AlgoConfig):
    parts: list[Part] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.epochs != 7


class Parts(Algorithm):
    stages = ()
    config_class = PartsConfig


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("algos.Mine.epochs=7", r"algos\.Mine: __post_init__\(\) of PartsConfig failed: AssertionError"),
        (
            "algos.Mine.parts=[{},{size:0}]",
            r"algos\.Mine\.parts\[1\]: __post_init__\(\) of Part failed: ValueError: no",
        ),
    ],
)
def test_settings_whose_code_fails_are_told_with_key_class_and_line(given: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{said}.* \(.*test_tables\.py:\d+\)$"):
        quick_config([NAME, f"algos.Mine.class_path={__name__}.Parts", given])
