"""Read the shape of a model from its configuration: the model is built on torch's meta device, without numbers.

This imports torch and transformers, so it is for stages and for commands that plan memory, never for the engine.
"""

from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.learning.datasets.files import is_hub_id, reaching, why_not
from pipeline.learning.memory.fit import ModelShape
from pipeline.learning.models.kinds import split_widths, why_not_usable


def read_shape(model: str) -> ModelShape:
    """Read the shape of a causal language model.

    Args:
        model: A folder with a `config.json`, or the id of a model on the hub.

    Raises:
        ConfigError: There is no such model, it generates no text, or the hub cannot be reached and the cache lacks
            it.
    """
    return shape_of_config(_read_config(model), model)


def _read_config(model: str) -> Any:
    folder = model if Path(model).exists() else _fetched(model)
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(f"cannot read the configuration of model '{model}': {first}") from error
    # The head does not matter here: a backbone of value models is trained as well.
    if why := why_not_usable(config.to_dict(), for_values=True):
        raise ConfigError(f"model '{model}': {why}")
    return config


def _fetched(model: str) -> str:
    """Fetch the configuration of a model on the hub; return its folder."""
    if not is_hub_id(model):
        raise ConfigError(f"model '{model}': there is no such file or folder")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    with reaching("models", model) as trouble:
        try:
            return str(Path(hf_hub_download(model, "config.json")).parent)
        except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
            why, cause = why_not(error, trouble)
            raise ConfigError(
                f"cannot get the configuration of model '{model}' from the hub: {why}. Give a folder with its "
                f"config.json: on a machine with network run `hf download {model} config.json --local-dir DIR`, "
                "then copy DIR here."
            ) from cause


def shape_of_config(config: Any, name: str) -> ModelShape:
    """Return the shape of a model with a loaded configuration.

    Raises:
        ConfigError: The configuration is not of a model that generates text.
    """
    model = _without_numbers(config, name)
    text = config.get_text_config()
    return ModelShape(
        name=name,
        parameters=_count(model),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        vocabulary=text.vocab_size,
        largest_unit=_largest_unit(model),
        cached=cached_numbers(text),
        widths=tuple(split_widths(config.to_dict())),
        lora_width=_lora_width(model),  # the last, as it changes the model
    )


def cached_numbers(text: Any) -> int:
    """Return how many numbers a model caches for each token, from its text configuration."""
    heads = getattr(text, "num_key_value_heads", None) or getattr(text, "num_attention_heads", None) or 0
    return int(2 * text.num_hidden_layers * heads * head_size(text))


def head_size(text: Any) -> int:
    """Return how many numbers a head of attention has; 0 for a model with only state-space layers."""
    heads = getattr(text, "num_attention_heads", None) or 0
    return int(getattr(text, "head_dim", None) or (text.hidden_size // heads if heads else 0))


def _without_numbers(config: Any, name: str) -> Any:
    import torch

    from pipeline.learning.models.load import kind_of_policies

    try:
        with torch.device("meta"):
            return kind_of_policies(config).from_config(config, trust_remote_code=False)
    except ValueError as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(f"model '{name}' is no causal language model: {first}") from error


def _count(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())  # shared parameters are listed once


def _largest_unit(model: Any) -> int:
    """Count the parameters of the largest FSDP unit: a block, or everything outside blocks, such as embeddings."""
    from pipeline.learning.training.distributed import blocks_of

    blocks = [_count(block) for block in blocks_of(model)]
    return max(*blocks, _count(model) - sum(blocks)) if blocks else _count(model)


def _lora_width(model: Any) -> int:
    """Count the parameters of rank-1 adapters by adding them: peft chooses the layers and experts."""
    import torch

    from pipeline.learning.algos.policy_config import LoraSettings
    from pipeline.learning.training.lora import with_adapters

    try:
        with torch.device("meta"):
            adapted = with_adapters(model, LoraSettings(rank=1), seed=0)
        return sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
    except ConfigError:
        return 0  # the model takes no adapters
