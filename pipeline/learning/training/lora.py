"""Low-rank adapters with peft: added around a model for training, and merged into it to use the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.pytorch_utils import Conv1D

from pipeline.errors import ConfigError, JobError
from pipeline.learning.models import kinds, load
from pipeline.learning.training.scoring import inner_model

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel

    from pipeline.learning.algos.policy_config import LoraSettings


_NAME = "default"
_BELOW = ".base_layer"
"""Name of the original layer below its adapter in peft."""


def with_adapters(model: PreTrainedModel, settings: LoraSettings, seed: int) -> PreTrainedModel | PeftModel:
    """Freeze a model and add trainable adapters; without a rank, return it unchanged.

    Args:
        model: Changed in place.
        settings: Rank, scale and layers.
        seed: Seed of the adapters' initialisation.

    Raises:
        ConfigError: The model has no layers of the names given.
    """
    if settings.rank == 0:
        return model
    from peft import get_peft_model  # slow to import, and few jobs need it

    with _adding(settings, seed):
        adapted = get_peft_model(model, _config_of(model, settings, task_type="CAUSAL_LM"))
    _check_apart(adapted, settings)
    return adapted


def add_adapters(backbone: PreTrainedModel, settings: LoraSettings, seed: int) -> Callable[[], object]:
    """Freeze the backbone of a value model and add trainable adapters inside; nothing without a rank.

    Returns:
        Merges the adapters into the weights, in place.

    Raises:
        ConfigError: The backbone has no layers of the names given.
    """
    if settings.rank == 0:
        return lambda: None
    from peft import LoraModel

    with _adding(settings, seed):
        adapted = LoraModel(backbone, {_NAME: _config_of(backbone, settings)}, _NAME)
    _check_apart(backbone, settings)
    return adapted.merge_and_unload


def _config_of(model: PreTrainedModel, settings: LoraSettings, **more: Any) -> LoraConfig:
    from peft import LoraConfig

    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        target_modules=settings.target_modules or "all-linear",
        exclude_modules=_beside_text(model) if settings.target_modules else unfit_layers(model),
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
        **more,
    )


@contextmanager
def _adding(settings: LoraSettings, seed: int) -> Iterator[None]:
    """Initialise adapters by a seed, and report layers that the model does not have."""
    from pipeline.learning.models.adapters import quietly

    with quietly():
        torch.manual_seed(seed)
        try:
            yield
        except ValueError as error:
            raise ConfigError(f"lora.target_modules={settings.target_modules}: {error}") from error


@torch.no_grad()
def with_weights_of(model: PreTrainedModel | PeftModel, folder: Path) -> PreTrainedModel | PeftModel:
    """Load stored adapter weights of the same shape into a model with adapters, in place.

    Raises:
        JobError: They have other layers or ranks.
    """
    from peft import set_peft_model_state_dict

    stored = load_file(folder / kinds.WEIGHTS)
    loaded: Any = set_peft_model_state_dict(model, stored)
    if loaded.unexpected_keys:
        raise JobError(f"{folder}: adapters of other layers ({loaded.unexpected_keys[0]})")
    return model


@contextmanager
def without_adapters(model: PreTrainedModel | PeftModel) -> Iterator[None]:
    """Let a model with adapters compute what the frozen weights below them do, bit for bit."""
    from peft import PeftModel

    assert isinstance(model, PeftModel)
    training = model.training
    model.eval()
    try:
        with model.disable_adapter():
            yield
    finally:
        model.train(training)


def _check_apart(adapted: nn.Module, settings: LoraSettings) -> None:
    """Refuse layers that share weights with others: an adapter of one would also change the others.

    Raises:
        ConfigError: There are some, as in Zamba2, or where the output layer is the embedding.
    """
    seen: dict[int, list[str]] = {}
    for name, module in adapted.named_modules():
        if (weight := module._parameters.get("weight")) is not None:
            seen.setdefault(id(weight), []).append(name)
    for sharing in seen.values():
        if len(sharing) > 1 and any(name.endswith(_BELOW) for name in sharing):
            name, other = (below.removesuffix(_BELOW) for below in sharing[:2])
            raise ConfigError(
                f"lora.target_modules={settings.target_modules}: the layers {other} and {name} share weights, so "
                "adapters cannot be merged into them. Train all weights (lora.rank=0), or name other layers"
            )


def unfit_layers(model: PreTrainedModel) -> list[str] | None:
    """Return names of linear layers on which an adapter has no effect or fails, or that read no text."""
    names = set(_beside_text(model) or ())
    for name, module in model.named_modules():
        if hasattr(module, "conv1d") and hasattr(module, "D"):
            # State-space layers read these weights themselves, bypassing any adapter.
            names |= {"conv1d", "dt_proj", "out_proj", "x_proj"}
        if isinstance(module, nn.Linear) and type(module).__name__.endswith("Router"):
            names.add(name.rpartition(".")[2])  # it returns more than a product
    return sorted(names) or None


def _beside_text(model: PreTrainedModel) -> list[str] | None:
    """Return names of vision and audio layers; modules in them may be named like those of text layers."""
    if model.config.get_text_config() is model.config:
        return None
    read = {id(module) for part in load.text_parts(model) for module in part.modules()}
    leaves = {name for name, module in model.named_modules() if not any(module.children())}
    return sorted(name for name in leaves if id(model.get_submodule(name)) not in read)


def merged(
    model: PreTrainedModel | PeftModel, exact: Callable[[], PreTrainedModel | PeftModel] | None = None
) -> PreTrainedModel:
    """Return the plain model, with adapters added into its weights.

    Args:
        model: The model, as trained.
        exact: Loads the start of the training again, with adapters and in float32, if the weights below the
            adapters were rounded: added to rounded weights, most of an update would be lost. None merges in place.
    """
    if inner_model(model) is not model:
        adapted: Any = model if exact is None else _with_adapters_of(model, exact())
        model = adapted.merge_and_unload()
    assert isinstance(model, PreTrainedModel)
    return model


@torch.no_grad()
def whole_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield weights by their names in the checkpoint that they come from, adapters added; changes nothing.

    Sums are in float32, rounded once to the type of the weight.

    Args:
        model: A model on one device, possibly with adapters inside (`inner_model`).
    """
    layers: dict[str, Any] = {name: one for name, one in model.named_modules() if hasattr(one, "get_delta_weight")}
    adapters, seen = tuple(f"{name}.lora_" for name in layers), set[int]()
    above = {
        id(getattr(layer.get_base_layer(), getattr(layer, "parameter_name", "weight"))): layer
        for layer in layers.values()
    }
    state: dict[str, Tensor] = {}
    for name, weight in model.state_dict(keep_vars=True).items():
        if not name.startswith(adapters) and id(weight) not in seen:  # a checkpoint has tied weights once
            seen.add(id(weight))
            state[name.replace(_BELOW, "")] = _with_adapters(weight.detach(), above.get(id(weight)))
    named: dict[str, Tensor] = revert_weight_conversion(model, state)
    del state
    while named:  # each is freed when it was used
        yield named.popitem()


def _with_adapters(weight: Tensor, layer: Any) -> Tensor:
    if layer is None:
        return weight
    with torch.autocast(weight.device.type, enabled=False):
        parts = (layer.get_delta_weight(name).float() for name in layer.active_adapters)
        return sum(parts, start=weight.float()).to(weight.dtype)


@torch.no_grad()
def _with_adapters_of(trained: nn.Module, exact: nn.Module) -> nn.Module:
    adapters = {name: weight for name, weight in trained.named_parameters() if weight.requires_grad}
    for name, weight in exact.named_parameters():
        if weight.requires_grad:
            weight.copy_(adapters[name])
    return exact
