"""Fronts: one algorithm at several values of its settings."""

import re

import pytest

from pipeline.config.checks import check_config
from pipeline.config.load import config_from_plain
from pipeline.config.plain import to_plain
from pipeline.config.schema import Config
from pipeline.config.tables import point_of
from pipeline.errors import ConfigError
from pipeline.learning.algos.dpo import DPOConfig
from pipeline.plan.build import build_plan
from tests.doubles.composing import quick_config


def request_of(*overrides: str) -> Config:
    config = quick_config(["experiment.name=t", "rounds_of_training=1", "algos=[DPO,PITA]", *overrides])
    check_config(config)
    return config


def enabled(config: Config) -> list[str]:
    return [name for name, algo in config.algos.items() if algo.enabled]


@pytest.mark.parametrize(
    ("front", "said"),
    [
        ("{beta: [0.1, 1e-1]}", "algos.DPO.front.beta: names 0.1 twice"),
        (
            f"{{beta: {list(range(1, 42))}, epochs: {list(range(1, 42))}}}",
            "1,681 combinations of values, at most 1,000",
        ),
        ("{lora.rank: [1, 2]}", "Those of a section below it cannot make points"),
        ("{beta: [x]}", "algos.DPO.front.beta=x: must be a number, above 0"),
        ("{epochs: [1], beta: [0.1, nan]}", "algos.DPO.front.beta=nan: "),
        ("beta", "algos.DPO.front='beta': must be a table"),
        ("{betta: [1]}", "algos.DPO.front: unknown setting of algos.DPO 'betta'. Did you mean 'beta'?"),
        ("{beta: [1000000, 1e6]}", "algos.DPO.front.beta: names 1000000 twice"),
        ("{beta: 0.1}", "must be a table of settings, each with a list of one value or more"),
        ("{class_path: [a]}", "algos.DPO.front: unknown setting of algos.DPO 'class_path'."),
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


def test_several_settings_make_points_of_all_combinations() -> None:
    config = request_of("algos.PITA.front={eta: [0.3, inf], head: [q, v]}")
    names = ["PITA@eta=0.3,head=q", "PITA@eta=0.3,head=v", "PITA@eta=inf,head=q", "PITA@eta=inf,head=v"]
    assert sorted(enabled(config)) == ["DPO", *names]
    assert point_of(names[0]) == ("PITA", "eta=0.3,head=q")


def test_a_front_changes_no_other_key() -> None:
    plain, swept = (
        {job.id: job.key for job in build_plan(request_of(*more)).jobs.values()}
        for more in ((), ("algos.DPO.front={beta: [0.03]}",))
    )
    assert {name for name in plain.keys() & swept.keys() if plain[name] != swept[name]} == set()
