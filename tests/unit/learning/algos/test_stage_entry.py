"""What a stage is given before its method is called."""

from dataclasses import fields, replace

import pytest

from pipeline.config.bases import AlgoConfig
from pipeline.config.schema import StageConfig, Strategy
from pipeline.learning.algos.base import JobContext, Stage
from pipeline.learning.algos.registry import known_algorithms, load_algorithm
from pipeline.learning.algos.stage_entry import _settle
from pipeline.learning.training.distributed import Ranks, Spread
from tests.doubles.contexts import context

SHARED = [
    (name, stage)
    for name in [*known_algorithms(), "reference"]
    for stage in load_algorithm(name).stages
    if stage.scales
]


def given(stage: Stage, device: str) -> JobContext:
    """The context of a stage that two devices share, with the sections that it has declared and no others."""
    config = StageConfig()
    for section in fields(StageConfig):
        if section.name not in stage.config:
            delattr(config, section.name)
    return replace(
        context(AlgoConfig()), config=config, joined=Ranks(0, 2, device, Spread(strategy=Strategy.auto))
    )


@pytest.mark.parametrize(("name", "stage"), SHARED, ids=lambda value: getattr(value, "name", value))
def test_a_training_that_devices_share_needs_no_section_that_it_has_not_declared(name: str, stage: Stage) -> None:
    ctx = given(stage, "cpu")
    _settle(ctx, stage)
    assert ctx.ranks.spread == Spread(strategy=Strategy.ddp)


def test_the_tiny_reference_is_shared_out_before_there_is_one_to_look_at() -> None:
    stage = load_algorithm("reference").stages[0]
    ctx = given(stage, "cuda:0")
    _settle(ctx, stage)
    assert ctx.ranks.spread == Spread(strategy=Strategy.ddp)
