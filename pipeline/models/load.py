"""Loading models and tokenizers from folders: safetensors only, no code from the folder is ever run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from pipeline.config.schema import SystemConfig
from pipeline.models.value import ValueModel

Model = TypeVar("Model", bound=PreTrainedModel)


def load_policy(folder: str | Path, system: SystemConfig, device: str) -> PreTrainedModel:
    """Load a causal language model for inference.

    Args:
        folder: Folder saved by `save_pretrained`, or a hub id.
        system: Its dtype and attention implementation.
        device: ``cpu`` or ``cuda``.
    """
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(str(folder), **_options(system))
    return frozen(model, device)


def load_value(folder: Path, system: SystemConfig, device: str) -> ValueModel:
    """Load a value model for inference."""
    model: ValueModel = ValueModel.from_pretrained(str(folder), **_options(system))
    return frozen(model, device)


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer that was saved with a model."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(folder))
    return tokenizer


def frozen(model: Model, device: str) -> Model:
    """Put a model on its device, in evaluation mode and without gradients."""
    model.to(device)  # type: ignore[arg-type]
    model.eval()
    model.requires_grad_(False)
    return model


def _options(system: SystemConfig) -> dict[str, Any]:
    return {
        "dtype": getattr(torch, system.dtype.name),
        "attn_implementation": system.attn_impl.name,
        "use_safetensors": True,
    }
