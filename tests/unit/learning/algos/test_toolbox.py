"""What stages that work with text share: scoring leaves in the output what rewards failed at."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config.bases import AlgoConfig, DatasetConfig
from pipeline.config.schema import StageConfig
from pipeline.learning.algos.toolbox import score
from pipeline.learning.datasets.base import Row
from pipeline.learning.models.cache import ModelCache
from pipeline.learning.rewards.traits import RewardTraits, reward
from pipeline.outputs.reading import read_faults
from tests.doubles.contexts import context


@reward(RewardTraits(isolated=False))
def as_numbers(completions: Sequence[str], **_: Any) -> list[float]:
    return [float(text) for text in completions]


def test_scoring_leaves_in_the_output_what_a_reward_failed_at(tmp_path: Path) -> None:
    dataset = DatasetConfig(kind="x", reward=f"{__name__}.as_numbers")
    ctx = replace(
        context(AlgoConfig(), tmp_path),
        config=StageConfig(dataset=dataset),
        models=ModelCache(1),
        loading=nullcontext,
    )
    rows = [Row(number, "p") for number in range(2)]
    score(ctx, rows, ["1", "2"], [[0], [0]], 8)
    assert not (tmp_path / "faults.json").exists()
    score(ctx, rows, ["1", "inf"], [[0], [0]], 8)
    assert (faults := read_faults(tmp_path / "faults.json")).failed == 1
    assert (faults.completions, faults.first) == (4, f"reward '{__name__}.as_numbers': the reward is infinite")
