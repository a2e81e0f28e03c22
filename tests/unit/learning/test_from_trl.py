"""Configurations of TRL, its own objects among them, as settings of a run."""

import warnings
from importlib import import_module
from operator import attrgetter
from typing import Any

import pytest

from pipeline import errors, from_trl
from pipeline.config.schema import Config, TextBackend
from pipeline.learning.from_trl import FromTRL
from tests.doubles.composing import quick_config


def of_trl(kind: str, home: str = "trl", **given: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(import_module(home), kind)("out", **{"bf16": False, **given})


def composed(found: FromTRL, algo: str) -> tuple[Config, Any]:
    config = quick_config(["experiment.name=t", *found.overrides])
    return config, config.algos[algo]


GRPO = """
    sampling=online steps_per_generation=1 horizon=3 num_generations=8 batch_size=8 epochs=1 learning_rate=1e-06
    beta=0.0 epsilon=0.2 epsilon_high=None loss_type=dapo scale_rewards=group importance_sampling_level=token
    use_bias_correction_kl=True training.schedule=linear training.warmup_steps=0 training.optimizer=adamw
    training.adam_beta1=0.9 training.adam_beta2=0.999 training.adam_epsilon=1e-08 training.weight_decay=0.0
    training.grad_clip=1.0 training.micro_batch_size=8 training.gradient_checkpointing=True system.dtype=float32
    generation.max_new_tokens=512 generation.temperature=1.0 rounds_of_training=3 experiment.seeds=[42]
    output_dir=out
"""
RLOO = """
    sampling=online horizon=1 rounds_of_training=1 num_generations=2 batch_size=8 beta=0.05
    normalize_advantages=True importance_sampling_level=product
"""
DPO = """
    loss_type=ipo beta=0.1 epochs=3 batch_size=64 pairs=existing training.micro_batch_size=16
"""
SFT = """
    batch_size=32 epochs=3 learning_rate=2e-05 max_length=1024 assistant_only_loss=True completion_only_loss=None
    rounds_of_training=1 training.padding_free=False
"""


@pytest.mark.parametrize(
    ("algo", "given", "expected"),
    [
        ("GRPO", ("GRPOConfig", "trl", {}), GRPO),
        ("RLOO", ("RLOOConfig", "trl", {"normalize_advantages": True, "num_train_epochs": 1}), RLOO),
        # Pairs count as two.
        ("DPO", ("DPOConfig", "trl", {"loss_type": "ipo", "gradient_accumulation_steps": 4}), DPO),
        ("KTO", ("KTOConfig", "trl", {"undesirable_weight": 1.5}),
         "beta=0.1 desirable_weight=1.0 undesirable_weight=1.5 batch_size=8 pairs=existing"),
        ("ORPO", ("ORPOConfig", "trl.experimental.orpo", {"beta": 0.3}),
         "beta=0.3 batch_size=16 pairs=existing training.micro_batch_size=16"),
        ("SimPO", ("CPOConfig", "trl.experimental.cpo", {"loss_type": "simpo", "simpo_gamma": 1.6}),
         "beta=0.1 simpo_gamma=1.6 cpo_alpha=1.0 pairs=existing"),
        ("RM", ("RewardConfig", "trl", {}),
         "learning_rate=0.0001 epochs=3 batch_size=16 pairs=existing rounds_of_training=1"),
        ("Distilled", ("DistillationConfig", "trl", {"teacher_model_name_or_path": "org/large", "beta": 0.5}),
         "teacher=org/large beta=0.5 sampling=online horizon=3 rounds_of_training=3 batch_size=8 epochs=1"),
        ("SFT", ("SFTConfig", "trl", {"assistant_only_loss": True, "gradient_accumulation_steps": 4}), SFT),
    ],
)  # fmt: skip
def test_settings_are_those_of_the_object(algo: str, given: tuple[str, str, Any], expected: str) -> None:
    kind, home, settings = given
    found = from_trl(of_trl(kind, home, **settings))
    assert found.without == []
    config, made = composed(found, algo)
    assert [name for name, each in config.algos.items() if each.enabled] == [algo]
    for each in expected.split():
        path, _, value = each.partition("=")
        here = attrgetter(path)(config if path.partition(".")[0] in vars(config) else made)
        assert (path, str(getattr(here, "name", here))) == (path, value)


@pytest.mark.filterwarnings("ignore")  # of trl.experimental, in the process that imports it first
@pytest.mark.parametrize(
    ("algo", "given", "told"),
    [
        ("GRPO", {}, []),
        ("Distilled", {"disable_dropout": True}, []),
        ("DPO", {"disable_dropout": False}, ["disable_dropout=False"]),
        ("RLOO", {"reward_clip_range": (-1.0, 1.0)}, ["reward_clip_range=(-1.0, 1.0)"]),
        ("SimPO", {}, ["loss_type=sigmoid (see algos.SimPO.simpo_gamma)"]),
        ("Distilled", {"teacher_model_name_or_path": "gpt2"},
         ["teacher_model_name_or_path=gpt2 (see algos.Distilled.teacher)"]),
        ("RM", {"center_rewards_coefficient": 0.01}, ["center_rewards_coefficient=0.01"]),
        ("SFT", {"packing": True}, ["gradient_accumulation_steps=1 (see algos.SFT.batch_size)"]),
        ("SFT", {"packing": True, "packing_strategy": "wrapped"},
         ["gradient_accumulation_steps=1 (see algos.SFT.batch_size)", "packing=True (see training.padding_free)"]),
        # A step on part of a group.
        ("GRPO", {"per_device_train_batch_size": 2, "steps_per_generation": 4},
         ["gradient_accumulation_steps=1 (see algos.GRPO.batch_size)"]),
        ("GRPO", {"max_steps": 7, "use_vllm": True, "top_k": 50, "optim": "lomo"},
         ["optim=lomo (see training.optimizer)", "max_steps=7 (see data_collection.prompts_per_round)",
          "top_k=50"]),
        ("GRPO", {"use_vllm": True, "vllm_gpu_memory_utilization": 0.5},
         ["vllm_gpu_memory_utilization=0.5 (see generation.memory_mb)"]),
        ("GRPO", {"gradient_accumulation_steps": 4, "steps_per_generation": 6},
         ["steps_per_generation=6 (see algos.GRPO.steps_per_generation)"]),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_told_in_the_words_of_trl(algo: str, given: Any, told: list[str]) -> None:
    assert sorted(from_trl(given, algo).without) == sorted(told)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("sequence_mask", 3.0, None)),
        ({"vllm_importance_sampling_correction": False}, ("none", 3.0, None)),
        ({"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_cap": 2.0},
         ("token_truncate", 2.0, None)),
        ({"vllm_importance_sampling_clip_max": None, "vllm_importance_sampling_clip_min": 0.5},
         ("sequence_mask", None, 0.5)),
    ],
)  # fmt: skip
def test_what_vllm_draws_is_weighed_as_trl_does(given: Any, expected: tuple[str, float | None, float]) -> None:
    assert not [one for one in from_trl(given, "GRPO").overrides if "vllm" in one]
    config, algo = composed(from_trl({"use_vllm": True, **given}, "GRPO"), "GRPO")
    assert config.generation.backend is TextBackend.vllm
    found = [getattr(algo, f"vllm_importance_sampling_{name}") for name in ("mode", "clip_max", "clip_min")]
    assert (found[0].name, *found[1:]) == expected
    assert composed(from_trl({"use_vllm": True}, "RLOO"), "RLOO")[1].vllm_importance_sampling_mode.name == "none"


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
