"""Tiny models with weights of their own, the same every time."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import Cache, GPT2Config, GPT2LMHeadModel

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
