"""Switching dropout off: its noise would come from the global generator, and depend on earlier jobs."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedConfig


def without_dropout(model: nn.Module) -> None:
    """Switch it off in a model that is made."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            # Attention modules keep rates as plain numbers.
            if isinstance(value, float) and "dropout" in name:
                setattr(module, name, 0.0)


def configured_without_dropout(config: PreTrainedConfig) -> None:
    """Set every rate to 0 of models that will be made."""
    for name, value in vars(config).items():
        if isinstance(value, float) and (name.endswith(("dropout", "pdrop")) or "dropout" in name):
            setattr(config, name, 0.0)
