"""What a stage's method may ask of its context."""

from dataclasses import dataclass

import pytest

from pipeline.errors import JobError
from pipeline.learning.algos.grpo import GRPOConfig
from pipeline.learning.algos.policy_config import PolicyAlgoConfig
from tests.doubles.contexts import context


@dataclass(kw_only=True)
class Mine(GRPOConfig):
    pace: float = 2.0


def test_settings_of_another_kind_are_one_message() -> None:
    said = (
        "algos.Mine has the settings of PolicyAlgoConfig, and this stage reads those of GRPOConfig; set "
        "its config_class to GRPOConfig or a subclass of it"
    )
    with pytest.raises(JobError) as raised:
        context(PolicyAlgoConfig()).settings(GRPOConfig)
    assert str(raised.value) == said
