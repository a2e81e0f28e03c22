"""Whose settings a section has, and what settings of the user's own say of themselves."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.config.checks import check_config
from pipeline.config.load import config_from_plain
from pipeline.config.plain import to_plain
from pipeline.config.schema import AlgoConfig, Config, Settings, number
from pipeline.config.tables import ALGORITHMS, DATASETS, MODELS, TABLES, all_shipped, conf_dir
from pipeline.config.user_code import check_settings_class
from pipeline.errors import ConfigError
from pipeline.learning.algos.base import Algorithm
from pipeline.learning.algos.dpo import DPOConfig
from pipeline.learning.algos.value_guided import PITA, PITAConfig
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.datasets.from_files import FilesConfig, FilesDataset
from pipeline.plan.build import build_plan
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


class Riddles(FilesDataset):
    config_class = RiddlesConfig


RIDDLES = ["dataset=hf", "datasets.hf.path=x/y", f"datasets.hf.class_path={__name__}.Riddles"]


def test_a_class_in_the_place_of_a_dataset_that_ships_brings_its_settings() -> None:
    config = quick_config([NAME, *RIDDLES, "datasets.hf.hardest=3", "datasets.hf.prompt_template='{prompt}?'"])
    section = config.datasets["hf"]
    assert isinstance(section, RiddlesConfig)
    assert (section.hardest, section.kind, section.prompt_template) == (3, "hf", "{prompt}?")
    assert section.reward == "length"
    assert isinstance(load_dataset(section), Riddles)
    check_config(config)
    again = quick_config([NAME, "dataset=hf", "datasets.hf.path=x/y"]).datasets["hf"]
    assert type(again) is FilesConfig  # the next request is as if there had been none before


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["datasets.hf.hardst=3"], "Did you mean 'datasets.hf.hardest'"),
        (["datasets.hf.hints.cuont=3"], "'datasets.hf.hints.count'? Known in datasets.hf.hints: count."),
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


@dataclass(kw_only=True)
class Failing(PITAConfig):
    def problems(self, key: str, config: Config) -> Iterator[str]:
        yield key.no_such_name  # type: ignore[attr-defined]


class FailingPITA(PITA):
    config_class = Failing


def test_rules_that_fail_are_told_with_their_line() -> None:
    config = quick_config([NAME, f"algos.Mine.class_path={__name__}.FailingPITA"])
    with pytest.raises(ConfigError) as caught:
        check_config(config)
    said = str(caught.value)
    assert said.startswith(
        "algos.Mine: problems() of Failing failed: AttributeError: 'str' object has no attribute"
    )
    assert f"({Path(__file__)}:" in said


@dataclass(kw_only=True)
class Returning(PITAConfig):
    def problems(self, key: str, config: Config) -> str | None:  # type: ignore[override]
        return f"{key}: too few" if self.epochs < 3 else None


class ReturningPITA(PITA):
    config_class = Returning


def test_a_rule_may_return_its_message() -> None:
    mine = [NAME, f"algos.Mine.class_path={__name__}.ReturningPITA"]
    with pytest.raises(ConfigError) as caught:
        check_config(quick_config([*mine, "algos.Mine.epochs=1"]))
    assert str(caught.value) == "algos.Mine: too few"
    check_config(quick_config([*mine, "algos.Mine.epochs=3"]))


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
        ("algos.Mine.parts=[{},{size:0}]", r"algos\.Mine\.parts\[1\]: __post_init__\(\) of Part failed: Val"),
    ],
)
def test_settings_whose_code_fails_are_told_with_key_class_and_line(given: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{said}.* \(.*test_tables\.py:\d+\)$"):
        quick_config([NAME, f"algos.Mine.class_path={__name__}.Parts", given])


def request_of(*overrides: str) -> Config:
    config = quick_config(["experiment.name=t", "rounds_of_training=1", "algos=[DPO,PITA]", *overrides])
    check_config(config)
    return config


def enabled(config: Config) -> list[str]:
    return [name for name, algo in config.algos.items() if algo.enabled]


@pytest.mark.parametrize(
    ("front", "said"),
    [
        (f"{{beta: {list(range(1, 42))}, epochs: {list(range(1, 42))}}}", "1,681 combinations"),
        ("{lora.rank: [1, 2]}", "Those of a section below it cannot make points"),
        ("{betta: [1]}", "algos.DPO.front: unknown setting of algos.DPO 'betta'. Did you mean 'beta'?"),
        ("{beta: [1000000, 1e6]}", "algos.DPO.front.beta: names 1000000 twice"),
        ("{beta: [a/b]}", "algos.DPO.front.beta: 'a/b' is no number or plain word"),
    ],
)
def test_fronts_that_cannot_be_are_refused(front: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        request_of(f"algos.DPO.front={front}")


def test_a_front_of_strengths_is_tested_at_what_its_points_are_called() -> None:
    asked = ["algos=[QSharp]", "algos.QSharp.front={eta: [0.1, 0.3]}", "evaluation.etas=[1.0]"]
    with pytest.raises(ConfigError, match="both set the strength of guidance"):
        check_config(quick_config(["experiment.name=t", *asked]))


def test_an_algorithm_is_run_at_each_value() -> None:
    config = request_of("algos.DPO.front={beta: [0.03, 0.1]}", "algos.DPO.epochs=3")
    assert sorted(enabled(config)) == ["DPO@beta=0.03", "DPO@beta=0.1", "PITA"]
    points = [algo for name, algo in config.algos.items() if name.startswith("DPO@")]
    assert [(point.beta, point.epochs) for point in points if isinstance(point, DPOConfig)] == [
        (0.03, 3),
        (0.1, 3),
    ]
    trained = {job.algo for job in build_plan(config).jobs.values() if job.stage == "train"}
    assert trained == {"reference", "DPO@beta=0.03", "DPO@beta=0.1", "PITA"}
    assert config_from_plain(to_plain(config)) == config


def test_a_front_changes_no_other_key() -> None:
    plain, swept = (
        {job.id: job.key for job in build_plan(request_of(*more)).jobs.values()}
        for more in ((), ("algos.DPO.front={beta: [0.03]}",))
    )
    assert {name for name in plain.keys() & swept.keys() if plain[name] != swept[name]} == set()
