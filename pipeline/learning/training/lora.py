"""Low-rank adapters through peft: put around a model for training, merged into it afterwards."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.learning.algos.post_training import LoraSettings


def with_adapters(model: PreTrainedModel, settings: LoraSettings, seed: int) -> PreTrainedModel | PeftModel:
    """Freeze a model and give it adapters that are trained in its place; without a rank, leave it as it is.

    Args:
        model: Changed in place.
        settings: Rank, scale and layers.
        seed: Of the adapters' initialisation.

    Raises:
        ConfigError: The model has no layers of the names given.
    """
    if settings.rank == 0:
        return model
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        target_modules=settings.target_modules or "all-linear",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # peft asks transformers by a name that transformers has since given up.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        torch.manual_seed(seed)
        try:
            return get_peft_model(model, config)
        except ValueError as error:
            raise ConfigError(f"lora.target_modules={settings.target_modules}: {error}") from error


def merged(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """The model as any other: adapters added into the weights they belong to."""
    if not isinstance(model, PeftModel):
        return model
    whole = model.merge_and_unload()
    assert isinstance(whole, PreTrainedModel)
    return whole
