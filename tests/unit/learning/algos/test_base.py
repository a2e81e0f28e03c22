"""What a stage's method may ask of its context."""

from dataclasses import dataclass

import pytest

from pipeline.config.bases import AlgoConfig
from pipeline.errors import JobError
from pipeline.learning.algos.grpo import GRPOConfig
from pipeline.learning.algos.policy_config import PolicyAlgoConfig
from tests.doubles.contexts import context


@dataclass(kw_only=True)
class Mine(GRPOConfig):
    pace: float = 2.0


@pytest.mark.parametrize("kind", [Mine, GRPOConfig, PolicyAlgoConfig, AlgoConfig])
def test_settings_are_those_of_the_class_and_of_all_that_it_builds_on(kind: type[AlgoConfig]) -> None:
    algo = Mine(beta=0.5)
    assert context(algo).settings(kind) is algo


def test_settings_of_another_kind_are_one_message() -> None:
    said = (
        "algos.Mine has the settings of PolicyAlgoConfig, and this stage reads those of GRPOConfig; set "
        "its config_class to GRPOConfig or a subclass of it"
    )
    with pytest.raises(JobError) as raised:
        context(PolicyAlgoConfig()).settings(GRPOConfig)
    assert str(raised.value) == said
