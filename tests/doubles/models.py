"""Tiny models with weights of their own, the same every time."""

import copy
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Cache, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from pipeline.config.schema import TrainingConfig
from pipeline.learning.algos.groups import Groups
from pipeline.learning.algos.grpo import GRPOConfig
from pipeline.learning.algos.policy_config import LoraSettings, Sampling
from pipeline.learning.choices import GRPOLoss
from pipeline.learning.generation.sampling import sample_keys
from pipeline.learning.rewards.scoring import Scored
from pipeline.learning.training.grpo import Samples, padded
from pipeline.learning.training.loop import Fitting
from pipeline.learning.training.lora import merged, with_adapters
from pipeline.learning.training.sequences import Sequences
from pipeline.outputs.formats import ADAPTERS, FOLDER

PLAINLY: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "learning_rate": 1e-2,
    "lr_scheduler_type": "constant",
    "weight_decay": 0.0,
    "report_to": "none",
    "save_strategy": "no",
    "logging_strategy": "no",
    "disable_tqdm": True,
}
"""Arguments of TRL's trainers with which one trains such a model as the tests do, and writes nothing."""


def tiny_policy(seed: int = 0, dropout: float = 0.0, width: int = 16) -> GPT2LMHeadModel:
    """A GPT-2 over 13 tokens, in evaluation mode."""
    rates = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), dropout)
    size = {"vocab_size": 13, "n_embd": width, "n_layer": 1, "n_head": 2, "n_positions": 32}
    config = GPT2Config(**size, bos_token_id=10, eos_token_id=None, **rates)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(config)
        # As initialised, all tokens are nearly equally likely and nothing can be told apart.
        model.lm_head.weight.data.mul_(20)
    return model.eval()


def cache_in(options: Mapping[str, Any]) -> Cache:
    """What a forward pass was given as the cache, whose argument has another name since transformers 5.24."""
    return next(value for value in options.values() if isinstance(value, Cache))


# -- fitting -----------------------------------------------------------------------------------------------------
# How small models are trained, and settings of losses.


_OF_TRAINING = {each.name for each in fields(TrainingConfig)}


def fitting(micro_batch_size: int = 8, **given: Any) -> Fitting:
    """Batches of 8 at a rate of 0.01 without warm-up, but for what is given: of a fitting or of `training`."""
    training = {name: given.pop(name) for name in [*given] if name in _OF_TRAINING}
    how = TrainingConfig(**{"micro_batch_size": micro_batch_size, "warmup_steps": 0, **training})
    return Fitting(**{"batch_size": 8, "learning_rate": 1e-2, "training": how, **given})


def of_grpo(**given: Any) -> GRPOConfig:
    """The loss of GRPO on groups of 4 that were drawn beforehand, but for what is given."""
    fixed = {"sampling": Sampling.round, "loss_type": GRPOLoss.grpo, "use_bias_correction_kl": False}
    return GRPOConfig(**{**fixed, **given})


# -- groups ------------------------------------------------------------------------------------------------------
# Groups of completions that nobody has drawn.


def groups_of(
    size: int, prompts: list[list[int]], tokens: list[list[int]], scored: Scored, **others: Any
) -> Groups:
    """Groups of these completions; what is not said is none or the first of its kind."""
    count = len(tokens) // size
    given: dict[str, Any] = {
        "texts": [str(one) for one in tokens],
        "ids": np.arange(count),
        "cuts": np.zeros(count, np.int64),
        "truncated": np.zeros(len(tokens), np.bool_),
        "generated": sum(map(len, tokens)),
        "keys": sample_keys(0, "test", np.arange(count), 1)[:, 0],
    }
    return Groups(size=size, prompts=prompts, tokens=tokens, scored=scored, **(given | others))


def samples_of(prompts: Any, completions: Any, rewards: Any, logprobs: Any = None) -> Samples:
    """Prompts and completions as token ids, with rewards; log-probabilities are 0 where they are not given."""
    ids = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
    taken = [np.zeros(len(one), np.float32) for one in completions] if logprobs is None else logprobs
    return Samples(Sequences.of(ids, [*map(len, prompts)], list(rewards)), padded(taken))


# -- adapters ----------------------------------------------------------------------------------------------------
# The output of a training with adapters, without one: these are drawn.


def write_rounds(
    start: PreTrainedModel, output: Path, *, rounds: int = 2, rank: int = 2, spread: float = 0.02
) -> PreTrainedModel:
    """Write adapters of rounds that each go on from the policy of the one before.

    Returns:
        That policy, merged round by round.
    """
    from peft import PeftModel

    from pipeline.learning.models.adapters import save_adapters  # slow to import, as peft is

    whole = copy.deepcopy(start)
    for number in range(1, rounds + 1):
        adapted = with_adapters(whole, LoraSettings(rank=rank), seed=number)
        assert isinstance(adapted, PeftModel)
        draw = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for weight in (one for one in adapted.parameters() if one.requires_grad):
                weight.add_(spread * torch.randn(weight.shape, generator=draw))
        save_adapters(adapted, output / FOLDER / str(number))
        whole = merged(adapted)
    (output / ADAPTERS).write_text(f'{{"rounds": {list(range(1, rounds + 1))}}}')
    return whole.eval().requires_grad_(False)
