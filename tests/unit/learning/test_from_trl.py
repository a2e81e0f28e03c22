"""Configurations of TRL, its own objects among them, as settings of a run."""

import warnings
from importlib import import_module
from typing import Any

import pytest

from pipeline import errors, from_trl
from pipeline.config.schema import Config, DType, Optimizer, Schedule
from pipeline.learning import choices
from pipeline.learning.algos import dpo, grpo, policy_config, sft
from pipeline.learning.from_trl import FromTRL
from tests.doubles.composing import quick_config


def of_trl(kind: str, home: str = "trl", **given: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(import_module(home), kind)("out", **{"bf16": False, **given})


def composed(found: FromTRL, algo: str) -> tuple[Config, Any]:
    config = quick_config(["experiment.name=t", *found.overrides])
    return config, config.algos[algo]


def test_a_configuration_of_grpo_as_it_is_by_default() -> None:
    found = from_trl(of_trl("GRPOConfig"))
    assert found.without == []
    config, algo = composed(found, "GRPO")
    assert isinstance(algo, grpo.GRPOConfig)
    assert algo.enabled
    assert [name for name, each in config.algos.items() if each.enabled] == ["GRPO"]
    assert (algo.sampling, algo.steps_per_generation, algo.horizon) == (policy_config.Sampling.online, 1, 3)
    assert (algo.num_generations, algo.batch_size, algo.epochs, algo.learning_rate) == (8, 8, 1, 1e-6)
    assert (algo.beta, algo.epsilon, algo.epsilon_high) == (0, 0.2, None)
    assert (algo.loss_type, algo.scale_rewards) == (choices.GRPOLoss.dapo, choices.ScaleRewards.group)
    assert algo.importance_sampling_level is choices.ImportanceSampling.token
    assert algo.use_bias_correction_kl
    training = config.training
    assert (training.schedule, training.warmup_steps, training.optimizer) == (Schedule.linear, 0, Optimizer.adamw)
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon) == (0.9, 0.999, 1e-8)
    assert (training.weight_decay, training.grad_clip, training.micro_batch_size) == (0, 1, 8)
    assert training.gradient_checkpointing
    assert (config.generation.max_new_tokens, config.generation.temperature) == (512, 1)
    assert (config.rounds_of_training, config.experiment.seeds) == (3, [42])
    assert (config.system.dtype, config.output_dir) == (DType.float32, "out")
    assert from_trl({}, "GRPO").without == []


def test_a_configuration_of_rloo_has_what_it_does_not_share_with_grpo() -> None:
    given = {"normalize_advantages": True, "num_train_epochs": 1, "reward_clip_range": (-1.0, 1.0)}
    found = from_trl(of_trl("RLOOConfig", **given))
    assert found.without == ["reward_clip_range=(-1.0, 1.0)"]
    config, algo = composed(found, "RLOO")
    assert (algo.sampling, algo.horizon, config.rounds_of_training) == (policy_config.Sampling.online, 1, 1)
    assert (algo.num_generations, algo.batch_size, algo.beta, algo.normalize_advantages) == (2, 8, 0.05, True)
    assert algo.importance_sampling_level is choices.ImportanceSampling.product


def test_what_is_computed_by_default_is_what_trl_computes() -> None:
    """Rates, sizes and the weight of the KL term are for the embedded task."""
    tuned = {
        f"algos.GRPO.{name}" for name in ("learning_rate", "num_generations", "batch_size", "beta", "horizon")
    }
    of_trl = [
        one
        for one in from_trl({}, "GRPO").overrides
        if one.startswith("algos.") and one.split("=")[0] not in tuned
    ]
    assert len(of_trl) > 8
    ours, theirs = (quick_config(["experiment.name=t", "algos=[GRPO]", *given]) for given in ([], of_trl))
    assert ours.algos["GRPO"] == theirs.algos["GRPO"]


def test_a_configuration_of_dpo_counts_pairs_as_two() -> None:
    found = from_trl(of_trl("DPOConfig", loss_type="ipo", gradient_accumulation_steps=4, padding_free=True))
    assert found.without == []
    config, algo = composed(found, "DPO")
    assert isinstance(algo, dpo.DPOConfig)
    assert (algo.loss_type, algo.beta, algo.epochs, algo.batch_size) == (choices.DPOLoss.ipo, 0.1, 3, 64)
    assert algo.pairs is dpo.PairSource.existing
    assert (config.training.micro_batch_size, config.training.padding_free) == (16, True)


def test_configurations_of_kto_orpo_and_cpo_take_what_a_dataset_has() -> None:
    found = from_trl(of_trl("KTOConfig", undesirable_weight=1.5))
    assert found.without == []
    config, algo = composed(found, "KTO")
    assert (algo.beta, algo.desirable_weight, algo.undesirable_weight) == (0.1, 1, 1.5)
    assert (algo.batch_size, algo.pairs) == (8, dpo.PairSource.existing)
    found = from_trl(of_trl("ORPOConfig", "trl.experimental.orpo", beta=0.3))
    assert found.without == []
    config, algo = composed(found, "ORPO")
    assert (algo.beta, algo.batch_size, algo.pairs) == (0.3, 16, dpo.PairSource.existing)
    assert config.training.micro_batch_size == 16
    found = from_trl(of_trl("CPOConfig", "trl.experimental.cpo", loss_type="simpo", simpo_gamma=1.6))
    assert found.without == []
    _, algo = composed(found, "SimPO")
    assert (algo.beta, algo.simpo_gamma, algo.cpo_alpha, algo.pairs) == (0.1, 1.6, 1.0, dpo.PairSource.existing)
    assert from_trl({}, "SimPO").without == ["loss_type=sigmoid (see algos.SimPO.simpo_gamma)"]


def test_a_configuration_of_sft_has_its_batch_but_where_rows_are_packed() -> None:
    found = from_trl(of_trl("SFTConfig", assistant_only_loss=True, gradient_accumulation_steps=4))
    assert found.without == []
    config, algo = composed(found, "SFT")
    assert isinstance(algo, sft.SFTConfig)
    assert (algo.batch_size, algo.epochs, algo.learning_rate, algo.max_length) == (32, 3, 2e-5, 1024)
    assert (algo.assistant_only_loss, algo.completion_only_loss) == (True, None)
    assert (config.rounds_of_training, config.training.padding_free) == (1, False)
    packed = from_trl(of_trl("SFTConfig", packing=True))
    assert packed.without == ["gradient_accumulation_steps=1 (see algos.SFT.batch_size)"]
    assert composed(packed, "SFT")[0].training.padding_free
    wrapped = from_trl(of_trl("SFTConfig", packing=True, packing_strategy="wrapped"))
    assert "packing=True (see training.padding_free)" in wrapped.without


def test_what_is_other_than_by_default_and_has_no_counterpart_is_told() -> None:
    told = from_trl(
        of_trl("GRPOConfig", top_k=50, max_steps=7, mask_truncated_completions=True, use_vllm=True, delta=2.0)
    ).without
    assert {each.partition("=")[0] for each in told} >= {"top_k", "max_steps", "use_vllm"}
    assert "use_vllm=True (see generation.backend)" in told
    given = {"lr_scheduler_type": "cosine_with_min_lr", "optim": "lomo", "loss_type": "sapo", "warmup_steps": 0.1}
    found = from_trl(given, "GRPO")
    assert {each.partition("=")[0] for each in found.without} == set(given)
    assert not [each for each in found.overrides if each.startswith(("training.optimizer", "training.schedule"))]


@pytest.mark.parametrize(
    ("given", "devices", "batch", "steps", "micro"),
    [
        ({"gradient_accumulation_steps": 4}, 1, 32, 1, 8),
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 8}, 2, 64, 2, 8),
        ({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}, 1, 8, 1, 8),
        ({"per_device_train_batch_size": 20, "gradient_accumulation_steps": 2}, 1, 40, 1, 16),
        ({"generation_batch_size": 32}, 1, 8, 4, 8),
    ],
)
def test_batches_are_of_all_devices_and_groups_stay_whole(
    given: dict[str, Any], devices: int, batch: int, steps: int, micro: int
) -> None:
    found = from_trl(given, "GRPO", devices=devices)
    config, algo = composed(found, "GRPO")
    assert (algo.batch_size, algo.steps_per_generation) == (batch, steps)
    assert config.training.micro_batch_size == micro
    assert found.without == []


def test_a_step_on_part_of_a_group_is_told() -> None:
    found = from_trl({"per_device_train_batch_size": 2, "steps_per_generation": 4}, "GRPO")
    assert found.without == ["gradient_accumulation_steps=1 (see algos.GRPO.batch_size)"]
    found = from_trl({"gradient_accumulation_steps": 4, "steps_per_generation": 6}, "GRPO")
    assert found.without == ["steps_per_generation=6 (see algos.GRPO.steps_per_generation)"]


def test_texts_arrive_as_they_are() -> None:
    odd = r"a b's=[1], {c}: \$\\'\\"
    config, _ = composed(
        from_trl({"output_dir": odd, "report_to": ["wandb"], "scale_rewards": False}, "GRPO"), "GRPO"
    )
    assert config.output_dir == odd
    assert [each.name for each in config.tracking.report_to] == ["wandb"]


@pytest.mark.parametrize(
    ("config", "algo", "said"),
    [
        ({"betta": 1}, "GRPO", "unknown argument 'betta'.*Did you mean 'beta'"),
        ({"beta": 1}, "", "unknown algorithm ''"),
        (object(), "", "object has no counterpart here"),
    ],
)
def test_what_is_no_configuration_of_trl_is_refused(config: object, algo: str, said: str) -> None:
    with pytest.raises(errors.ConfigError, match=said):
        from_trl(config, algo)
