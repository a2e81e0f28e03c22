"""Loading models and tokenizers from folders: safetensors only, and no code from the folder unless told to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from pipeline.config.schema import SystemConfig
from pipeline.learning.models.value import ValueModel

Model = TypeVar("Model", bound=PreTrainedModel)


def load_policy(
    folder: str | Path, system: SystemConfig, device: str, *, trust_remote_code: bool = False
) -> PreTrainedModel:
    """Load a causal language model for inference.

    Args:
        folder: Folder saved by `save_pretrained`, or a hub id.
        system: Its dtype and attention implementation.
        device: ``cpu`` or ``cuda``.
        trust_remote_code: Run Python code that comes with the model.
    """
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        str(folder), trust_remote_code=trust_remote_code, **_options(system)
    )
    return frozen(model, device)


def load_value(folder: Path, system: SystemConfig, device: str) -> ValueModel:
    """Load a value model for inference."""
    model = ValueModel.from_pretrained(str(folder), **_options(system))
    return frozen(model, device)


def load_tokenizer(folder: str | Path, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Load the tokenizer that was saved with a model."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        str(folder), trust_remote_code=trust_remote_code
    )
    return tokenizer


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Have transformers draw none meanwhile, in a program that is not ours: its settings stay as they are."""
    shown, of_hub = logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # which switches on those of the hub as well
        if shown and not of_hub:
            disable_progress_bars()


def frozen(model: Model, device: str) -> Model:
    """Put a model on its device, in evaluation mode and without gradients."""
    model.to(device)  # type: ignore[arg-type]
    model.eval()
    model.requires_grad_(False)
    return model


def end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Tokens that end a completion: the tokenizer's end of text first, then those of the generation settings.

    Chat models often have several; their tokenizer names one of them.
    """
    named = getattr(model.generation_config, "eos_token_id", None)
    further = named if isinstance(named, list) else [named]
    return tuple(dict.fromkeys(token for token in (tokenizer.eos_token_id, *further) if token is not None))


def context_length(model: PreTrainedModel) -> int | None:
    """Tokens that fit into the context of a model, or None where its configuration sets no limit."""
    return config_context(model.config)


def config_context(config: PreTrainedConfig) -> int | None:
    """As `context_length`, of a model that is not loaded."""
    length = getattr(config.get_text_config(), "max_position_embeddings", None)
    return length if isinstance(length, int) and length > 0 else None


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Have a model that is trained compute layers again in the backward pass instead of keeping their outputs."""
    # Renamed within transformers 5, where the old name warns.
    new = getattr(model, "activation_checkpointing_enable", None)
    (new or model.gradient_checkpointing_enable)({"use_reentrant": False})


def _options(system: SystemConfig) -> dict[str, Any]:
    return {
        "dtype": getattr(torch, system.dtype.name),
        "attn_implementation": system.attn_impl.name,
        "use_safetensors": True,
    }
