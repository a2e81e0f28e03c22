"""What stages that work with text share: scoring leaves in the output what rewards failed at."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.config.schema import AlgoConfig, DatasetConfig, DType, StageConfig
from pipeline.learning.algos import groups, opening
from pipeline.learning.algos.opening import reference_model, score
from pipeline.learning.datasets.base import Row
from pipeline.learning.models.cache import ModelCache
from pipeline.learning.models.kinds import HFModelConfig
from pipeline.learning.rewards.traits import RewardTraits, reward
from pipeline.learning.training.distributed import Ranks, Spread
from pipeline.outputs.formats import read_faults
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


@pytest.mark.parametrize("by_tensors", [True, False])
def test_of_ranks_that_do_a_job_together_the_first_asks_rewards(tmp_path: Path, by_tensors: bool) -> None:
    """They may cost money, or say something else the second time."""
    asked: list[object] = []

    class Told(Ranks):
        def made_by_first(self, make: Any) -> Any:
            asked.append(make)
            return make()

    ctx = replace(
        context(AlgoConfig(), tmp_path),
        config=StageConfig(dataset=DatasetConfig(kind="x", reward=f"{__name__}.as_numbers")),
        models=ModelCache(1),
        loading=nullcontext,
        joined=Told(1, 2, spread=Spread(by_tensors=by_tensors)),
    )
    assert score(ctx, [Row(0, "p")], ["1"], [[0]], 8).values.tolist() == [1.0]
    assert len(asked) == 1


def test_a_reference_that_is_read_in_few_bits_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int | None] = []
    monkeypatch.setattr(opening, "reference_source", lambda _: "folder")
    monkeypatch.setattr(opening, "load_policy", lambda *_, bits, **__: read.append(bits))
    monkeypatch.setattr(opening, "load_tokenizer", lambda *_, **__: None)
    cache = ModelCache(9)
    for quantization in ("4bit", None, "8bit", "4bit"):
        config = StageConfig(model=HFModelConfig(kind="hf", path="x", quantization=quantization))
        made = context(AlgoConfig(), tmp_path)
        reference_model(replace(made, config=config, models=cache, loading=nullcontext))
    assert read == [4, None, 8]


@pytest.mark.parametrize(
    ("dtype", "rank", "bits", "by"),
    [
        (DType.float32, 0, None, "those that drew"),
        (DType.float16, 0, None, "others"),
        (DType.float16, 8, None, "those that drew"),
        (DType.float16, 8, 4, "others"),
    ],
)
def test_a_model_is_loaded_again_only_where_training_is_more_precise(
    dtype: DType, rank: int, bits: int | None, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def logprobs(prompts: object, tokens: object, exact: str | None = None) -> list[str]:
        return [exact or "those that drew"]

    monkeypatch.setattr(groups, "loaded", lambda *_, **__: "others")
    config = SimpleNamespace(system=SimpleNamespace(dtype=dtype), model=SimpleNamespace(in_bits=bits))
    ctx: Any = SimpleNamespace(config=config, device="cpu")
    algo: Any = SimpleNamespace(lora=SimpleNamespace(rank=rank), wants_logprobs=True, draws_to_train=False)
    policy: Any = SimpleNamespace(logprobs=logprobs)
    drawn: Any = SimpleNamespace(prompts=[], tokens=[])
    assert groups.exact_logprobs(ctx, algo, policy, drawn) == [by]
