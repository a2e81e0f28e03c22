"""Estimates before anything was timed: within a factor of two of what runs took that were recorded.

The recorded seconds are of a core of the machine that docs/benchmarks.md names.
"""

import pytest

from pipeline.config.schema import AlgoConfig, DatasetConfig
from pipeline.learning.algos.base import Stage
from pipeline.learning.algos.dpo import DPO, DPOConfig
from pipeline.learning.algos.grpo import GRPO, GRPOConfig
from pipeline.learning.algos.qsharp import QSharp, QSharpConfig
from pipeline.learning.algos.value_guided import PITA, PITAConfig
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.models.kinds import HFModelConfig, TinyModelConfig
from pipeline.plan.build import build_plan
from pipeline.plan.durations import estimated_load, estimated_makespan
from pipeline.plan.estimates import (
    Scale,
    decided_pairs,
    guess_seconds,
    prompt_tokens,
)
from pipeline.plan.models import count_weights, weights_in_name
from tests.doubles.composing import quick_config

STAGES = {(kind, stage.name): stage for kind in (DPO, GRPO, PITA, QSharp) for stage in kind.stages}
SENTIMENT = Scale(weights=134_515_008, tokens=24, prompt=32, prompts=256, samples=2, decided=1.0)
"""As `experiment=sentiment` had it when it was recorded."""
GENERATE = Stage("generate", shards="train", config=("generation", "data_collection"), seconds=0.5)
METRICS = Stage("metrics", loads_models=False, seconds=0.5)


def test_the_embedded_model_takes_what_its_stages_say() -> None:
    assert guess_seconds(GENERATE, 2000, Scale()) == pytest.approx(1.0)
    assert guess_seconds(STAGES[DPO, "train"], 0, Scale(), DPOConfig()) == pytest.approx(22.0)
    assert guess_seconds(STAGES[DPO, "train"], 0, Scale(), DPOConfig(), rounds=2) == pytest.approx(44.0)
    assert guess_seconds(STAGES[DPO, "train"], 0, Scale(prompts=20), DPOConfig()) == pytest.approx(0.044)


@pytest.mark.parametrize(
    ("kind", "settings", "measured"),
    [
        (DPO, DPOConfig(epochs=1), (26.0, 259.0, 39.5)),
        (GRPO, GRPOConfig(beta=0.0), (55.1, 396.0, 46.9)),
        (PITA, PITAConfig(epochs=2), (134.6, 376.0, 35.1)),
        (QSharp, QSharpConfig(epochs=1), (47.0, 134.0, 20.5)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_model_of_135_million_weights_takes_what_was_recorded(
    kind: type, settings: AlgoConfig, measured: tuple[float, ...]
) -> None:
    if isinstance(settings, DPOConfig):
        settings.preferences.pairs_per_prompt = 1
    jobs = (("generate", 64, 8), ("train", 0, 1), ("evaluate", 64, 4))
    guess = sum(n * guess_seconds(STAGES[kind, stage], count, SENTIMENT, settings) for stage, count, n in jobs)
    took_s = sum(n * seconds for (*_, n), seconds in zip(jobs, measured, strict=True))
    assert took_s / 1.7 < guess < took_s * 1.7


def test_the_first_result_takes_some_80_seconds_on_two_cores() -> None:
    config = quick_config(["experiment.name=x"])
    plan = build_plan(config, weights={name: count_weights(model) for name, model in config.models.items()})
    whole_s = estimated_makespan(plan, list(plan.jobs), 2) + estimated_load(plan, list(plan.jobs), 2, {})
    assert 40 < whole_s < 160


def test_a_plan_counts_all_that_is_drawn_of_a_prompt() -> None:
    few = ["data_collection.prompts_per_round=10", "rounds_of_training=1", "algos.DPO.num_generations=3"]
    config = quick_config(["experiment.name=x", "algos=[PITA,DPO]", "data_collection.samples_per_example=2", *few])
    jobs = build_plan(config).jobs.values()
    drawn = {(job.algo, job.samples) for job in jobs if job.stage == "generate"}
    assert drawn == {("PITA", 20), ("DPO", 30)}


def test_the_size_of_a_model_on_the_hub_is_in_its_name() -> None:
    assert weights_in_name("HuggingFaceTB/SmolLM2-135M-Instruct") == 135_000_000
    assert weights_in_name("Qwen/Qwen2.5-1.5B") == 1_500_000_000
    assert weights_in_name("openai-community/gpt2") == 0
    assert count_weights(HFModelConfig(path="nobody/Model-7b-chat")) == 7_000_000_000
    assert 60_000 < count_weights(TinyModelConfig()) < 90_000


def test_prompts_and_decided_pairs_follow_from_the_dataset() -> None:
    config = quick_config(["experiment.name=x", "dataset=[addition,star_graph,movie_openings,gsm8k]"]).datasets
    tokens = {name: prompt_tokens(load_dataset(section)) for name, section in config.items()}
    assert tokens["addition"] == 9
    assert tokens["star_graph"] > 20
    assert decided_pairs(config["addition"]) == decided_pairs(config["gsm8k"]) == 0.5
    assert decided_pairs(config["movie_openings"]) == 1.0
    assert decided_pairs(DatasetConfig(kind="x", reward="somebodys.own")) == 1.0
