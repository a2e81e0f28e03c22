"""Settings that were given and change nothing are named, and no others."""

import pytest

from pipeline.config.checks import idle_settings
from tests.doubles.composing import quick_config

NAME = "experiment.name=t"


def warned(*overrides: str, gpu: bool = False) -> list[str]:
    return list(idle_settings(quick_config([NAME, *overrides]), overrides, gpu=gpu))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["models.tiny.path=gpt2"], "models.tiny.path=gpt2 has no effect in this run: a model of kind tiny"),
        (["algos.DPO.beta=0.1"], "in this run: DPO is not part of it; 'algos=[PITA,QSharp,DPO]' adds it"),
        (["algos.PITA.num_workers=4"], "no processes load it"),
        (["distributed.num_gpus=2", "device=cpu"], "this run uses none"),
        (["distributed.fsdp_cpu_offload=true"], "each training has one device here"),
        (["training.memory_mb=100"], "this run uses none"),
        (["training.warmup_steps=5", "training.schedule=constant"], "training.schedule=constant has none"),
        (["algos=[PITA]", "algos.QSharp.top_k=3"], "adds it"),
        (["algos=[DPO]", "algos.GRPO.lora.rank=3"], "adds it"),
        (["algos=[DPO]", "data_collection.samples_per_example=2"], "it is for value-guided algorithms"),
        (["algos=[DPO]", "algos.DPO.lora.alpha=8"], "there are no adapters"),
        (
            ["algos=[BestOfN]", "algos.BestOfN.selection=majority", "model=hf", "training.grad_clip=1"],
            "nothing is trained",
        ),
        (
            ["datasets.addition.reward=length", "datasets.addition.rewards={exact_match: 1}"],
            "`rewards` of the same",
        ),
        (["algos.PITA.beta=2"], "with preference=hard the higher score wins"),
        (["algos=[DPO]", "algos.DPO.preferences.beta=2"], "with preference=hard the higher score wins"),
        (["algos=[DPO]", "algos.DPO.pairs=existing", "algos.DPO.num_generations=8"], "come from the dataset"),
        (["algos=[BestOfN]", "algos.BestOfN.selection=majority", "algos.BestOfN.epochs=3"], "no reward model"),
        (["tracking.project=p"], "no tracker is asked for; tracking.report_to=[tensorboard] does"),
        (["tracking.report_to=[trackio]", "tracking.mode=online"], "it is for wandb"),
        (["algos=[DPO]", "algos.DPO.front={beta: [1, 2]}", "algos.DPO.beta=3"], "a value of its own"),
        (["algos.PITA.front={preference: [hard], eta: [1, 2]}", "algos.PITA.beta=2"], "preference=hard"),
        (["algos.DPO.front={beta: [1, 2]}"], "algos.DPO.front={beta: [1, 2]} has no effect in this run: DPO is"),
        (["execution.backend=inline", "execution.workers=3"], "all jobs run in one process"),
        (["system.use_parallel_execution=false", "execution.workers=3"], "all jobs run in one process"),
        (["algos=[GRPO,DPO]", "training.schedule=cosine"], "on GRPO, which draws while it trains"),
        (
            ["algos.GRPO.front={beta: [0, 1]}", "training.schedule=linear", "algos=[GRPO]"],
            "algos.GRPO.horizon=2 lets",
        ),
        (["algos=[GRPO,DPO]", "generation.backend=vllm"], "on GRPO, which draws while it trains"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_setting_without_effect_is_named_with_the_reason(overrides: list[str], said: str) -> None:
    (warning,) = warned(*overrides)
    assert said in warning


@pytest.mark.parametrize(
    ("overrides", "gpu"),
    [
        (["algos.PITA.eta=0.5", "training.grad_clip=1", "evaluation.etas=[1]"], False),
        (["algos=[DPO]", "algos.DPO.beta=0.1", "algos.DPO.enabled=true"], False),
        (["algos.DPO.enabled=false"], False),
        (["profile=h200", "distributed.num_gpus=2", "training.memory_mb=100"], True),
        (["profile=cpu"], False),
        (["algos.PITA.beta=2", "algos.PITA.preference=bradley_terry"], False),
        (["algos=[DPO]", "algos.DPO.num_generations=8"], False),
        (["algos=[BestOfN]", "algos.BestOfN.epochs=3"], False),
        (["model=hf", "models.hf.path=gpt2"], False),
        (["algos.PITA.front={preference: [hard, bradley_terry]}", "algos.PITA.beta=2"], False),
        (["training.gpus_per_job=2", "distributed.fsdp_cpu_offload=true", "training.strategy=fsdp"], False),
        (["device=cpu", "distributed.num_gpus=null", "distributed.gpu_ids=null"], False),
    ],
)
def test_what_has_an_effect_is_not(overrides: list[str], gpu: bool) -> None:
    assert warned(*overrides, gpu=gpu) == []
