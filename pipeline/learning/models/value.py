"""Value models: a language-model backbone with a scalar head per candidate token.

Shapes: B sequences, T positions, V tokens of the vocabulary.

    head "v"    one output per position: the value of the token that stands there, given what precedes it
    head "q"    V outputs per position: the value of each token that could come next

An output is one logit, or with n atoms n of them: a distribution over n rewards.

A saved one is its backbone as transformers saves it, which any program loads with `AutoModel`, and the head:

    config.json, model.safetensors      the backbone
    value_head.json                     {"head": "v", "atoms": 1}
    value_head.safetensors              weight, shape [outputs, hidden size], and bias, shape [outputs]
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, Cache, PreTrainedConfig, PreTrainedModel

from pipeline import errors, files, foreign
from pipeline.learning.choices import HeadType
from pipeline.learning.models import kinds

# -- dropout -----------------------------------------------------------------------------------------------------
# Switches dropout off: its noise would come from the global generator, and depend on earlier jobs.


def without_dropout(model: nn.Module) -> None:
    """Switch off dropout in an existing model."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            # Attention modules keep rates as plain numbers.
            if isinstance(value, float) and "dropout" in name:
                setattr(module, name, 0.0)


def configured_without_dropout(config: PreTrainedConfig) -> None:
    """Set every dropout rate to 0 in the configuration of a future model."""
    for name, value in vars(config).items():
        if isinstance(value, float) and (name.endswith(("dropout", "pdrop")) or "dropout" in name):
            setattr(config, name, 0.0)


HEAD_SETTINGS = "value_head.json"
HEAD_WEIGHTS = "value_head.safetensors"

TEXT_LENGTHS = "text_lengths"
"""Argument that tells attention the lengths of concatenated texts; see `training.scoring`."""


class ValueConfig(PreTrainedConfig):
    """Configuration of a `ValueModel`: its backbone's own configuration and the type of its head."""

    model_type = "pipeline_value"
    sub_configs = {"backbone": AutoConfig}  # noqa: RUF012 - the name and type that transformers looks for

    def __init__(
        self,
        backbone: dict[str, Any] | PreTrainedConfig | None = None,
        head: str = "v",
        atoms: int = 1,
        **rest: Any,
    ) -> None:
        if isinstance(backbone, dict):
            kind = AutoConfig.for_model(backbone["model_type"])
            backbone = type(kind).from_dict(backbone)
        self.backbone = backbone
        self.head = head
        self.atoms = atoms
        super().__init__(**rest)


class ValueModel(PreTrainedModel):
    """Scores candidate tokens. Saved and loaded by the methods of any model of transformers."""

    config_class = ValueConfig
    config: ValueConfig
    base_model_prefix = "backbone"
    _supports_sdpa = True
    _supports_flash_attn = True

    def __init__(self, config: ValueConfig, backbone: PreTrainedModel | None = None) -> None:
        """Make a model.

        Args:
            config: Configuration of backbone and head.
            backbone: Used without a copy; None makes one with random weights.
        """
        super().__init__(config)
        shape = config.backbone
        assert isinstance(shape, PreTrainedConfig)
        made = AutoModel.from_config(shape) if backbone is None else backbone
        outputs = 1 if config.head == HeadType.v.name else shape.get_text_config().vocab_size
        self.head = nn.Linear(width_of(shape), outputs * config.atoms)
        if backbone is None:
            self.backbone = made
            self.post_init()
        else:
            # Only the head is initialised, since the backbone has its weights.
            self.post_init()
            self.backbone = made
            self.head.to(dtype=made.dtype, device=made.device)

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the model can read."""
        assert isinstance(self.config.backbone, PreTrainedConfig)
        size: int = self.config.backbone.get_text_config().vocab_size
        return size

    def save_pretrained(  # type: ignore[override]
        self, save_directory: str | os.PathLike[str], **options: Any
    ) -> None:
        """Save backbone and head; see the top of the module.

        Args:
            save_directory: Folder to write to.
            options: Options of transformers for the backbone.
        """
        folder = Path(save_directory)
        self.backbone.save_pretrained(folder, **options)
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.head.state_dict().items()}
        save_file(weights, folder / HEAD_WEIGHTS)
        self.save_settings(folder)

    def save_settings(self, folder: str | os.PathLike[str]) -> None:
        """Save what the head is, which is not in the backbone's configuration."""
        settings = {"head": self.config.head, "atoms": self.config.atoms}
        files.write_whole(Path(folder) / HEAD_SETTINGS, json.dumps(settings) + "\n")

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], **options: Any) -> ValueModel:  # type: ignore[override]
        """Load what `save_pretrained` saved.

        Args:
            folder: Folder of the saved model.
            options: Options of transformers: ``dtype``, ``attn_implementation``, ...

        Raises:
            JobError: Weights are missing, or there is no head, or it does not belong to this backbone.
        """
        backbone: PreTrainedModel
        backbone, info = AutoModel.from_pretrained(
            str(folder), output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
        kinds.check_complete(backbone, folder, info)
        try:
            head, atoms = head_settings(folder)
            # A copy: what a model does to its configuration is not for the backbone's, which is loaded already.
            shape = copy.deepcopy(backbone.config)
            attention = backbone.config._attn_implementation
            config = ValueConfig(backbone=shape, head=head.name, atoms=atoms, attn_implementation=attention)
            model = cls(config, backbone)
            model.head.load_state_dict(load_file(Path(folder) / HEAD_WEIGHTS))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise errors.JobError(
                f"{folder}: no value model: {HEAD_SETTINGS} and {HEAD_WEIGHTS} must hold a head that fits the "
                f"model beside them ({type(error).__name__}: {error})"
            ) from error
        model.eval()
        return model

    def forward(
        self,
        input_ids: Tensor,
        cache: Cache | None = None,
        use_cache: bool = False,
        following: Tensor | None = None,
        **inputs: Any,
    ) -> Tensor:
        """Compute values.

        Args:
            input_ids: Shape [B, T].
            cache: Keys and values of earlier text, extended in place.
            use_cache: Whether to extend the given cache.
            following: For head "q": the next token after each of the first positions, shape [B, T']. Only the
                values of these tokens are computed, not one for every token of the vocabulary.
            inputs: Arguments of the backbone: ``attention_mask`` (4-D additive masks included), ``position_ids``
                of shape [B, T]; and `TEXT_LENGTHS`. Arguments that the backbone does not have are dropped: some
                backbones have no positions.

        Returns:
            Logits z, float32, shape [B, T] for head "v" and [B, T, V] for head "q"; sigmoid(z) is a probability.
            With n atoms one more dimension at the end, along which softmax(z) is a distribution. Shape [B, T'] or
            [B, T', n] where the tokens that follow are given.
        """
        taken = inputs_of(type(self.backbone).forward)
        arguments = {name: value for name, value in inputs.items() if name in taken or name == TEXT_LENGTHS}
        if cache is not None:
            arguments[cache_argument(type(self.backbone).forward)] = cache
        hidden = self.backbone(input_ids=input_ids, use_cache=use_cache, **arguments).last_hidden_state
        if following is not None:
            return self._values_of(hidden[:, : following.shape[1]], following)
        return self.values_from(hidden)

    def values_from(self, hidden: Tensor) -> Tensor:
        """Return the values that `forward` computes of the backbone's last hidden states, shape [..., H]."""
        # Some state spaces return float32 whatever the type of their weights.
        values: Tensor = self.head(hidden.to(self.head.weight.dtype)).float()
        if self.config.atoms > 1:
            values = values.unflatten(-1, (-1, self.config.atoms))
            return values.squeeze(-2) if self.config.head == HeadType.v.name else values
        return values.squeeze(-1) if self.config.head == HeadType.v.name else values

    def _values_of(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Return the values of one token at each position, by the head's rows for these tokens."""
        atoms, size = self.config.atoms, hidden.shape[-1]
        rows = functional.embedding(tokens, self.head.weight.view(-1, atoms * size)).unflatten(-1, (atoms, size))
        values: Tensor = (rows * hidden.to(rows.dtype)[:, :, None]).sum(-1)
        values = (values + functional.embedding(tokens, self.head.bias.view(-1, atoms))).float()
        return values if atoms > 1 else values.squeeze(-1)


def head_settings(folder: str | os.PathLike[str]) -> tuple[HeadType, int]:
    """Return the type of a saved head and its atoms; errors are those of reading, and `KeyError` and the like."""
    settings = foreign.parse_json(foreign.read_plain(Path(folder) / HEAD_SETTINGS, follow=True))
    return HeadType[settings["head"]], int(settings["atoms"])


def width_of(config: PreTrainedConfig) -> int:
    """Return the size of the last hidden states of a backbone."""
    text = config.get_text_config()
    # Some OPT models project the outputs of their layers back to the size of their embeddings.
    width: int = getattr(text, "word_embed_proj_dim", None) or text.hidden_size
    return width


@functools.cache
def inputs_of(forward: Callable[..., Any]) -> Collection[str]:
    """Return the argument names of the forward pass of a model class."""
    return frozenset(inspect.signature(forward).parameters)


_CACHE_ARGUMENTS = ("past_key_values", "cache_params", "cache")


@functools.cache
def cache_argument(forward: Callable[..., Any]) -> str:
    """Return the name of the cache argument in the forward pass of a model class.

    Since 5.24 transformers calls it ``cache``; earlier versions, and code that comes with models, use two other
    names.

    Raises:
        JobError: There is no such argument, so the model cannot continue texts.
    """
    for name in _CACHE_ARGUMENTS:
        if name in inputs_of(forward):
            return name
    raise errors.JobError(
        f"{forward.__qualname__} takes no cache as {' or '.join(_CACHE_ARGUMENTS)}, so this model cannot be read "
        f"token by token with transformers {transformers.__version__}"
    )


def value_model_from(
    backbone: PreTrainedModel, head: HeadType, atoms: int = 1, *, take: bool = False
) -> ValueModel:
    """Make a value model that starts as a language model's backbone, in float32.

    The head starts at zero, so that before training every candidate has the same value and guidance changes
    nothing.

    Args:
        backbone: A causal language model, or the model inside it.
        head: Type of the head.
        atoms: Atoms of the head's distribution over rewards; 1 is a single probability.
        take: Use the backbone itself, keeping its type, instead of a copy; its language model cannot be used
            afterwards.

    Raises:
        JobError: The weights of the language model do not match the backbone that transformers builds from its
            configuration.
    """
    inner = _body(backbone)
    config = inner.config if take else copy.deepcopy(inner.config)
    configured_without_dropout(config)
    # The source of the backbone is no part of the result.
    config._name_or_path = ""
    settings = ValueConfig(backbone=copy.deepcopy(config), head=head.name, atoms=atoms)
    model = ValueModel(settings, inner if take else None)
    if take:
        without_dropout(inner)
    else:
        _copy_weights(inner, model.backbone)
        model.float()
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    return model


def _copy_weights(source: PreTrainedModel, target: PreTrainedModel) -> None:
    try:
        target.load_state_dict(source.state_dict())
    except RuntimeError as error:
        odd = sorted(set(source.state_dict()) ^ set(target.state_dict()))
        raise errors.JobError(
            f"a value model cannot start from the {type(source).__name__} of this language model: what "
            f"transformers makes of its configuration has other weights ({', '.join(odd[:3])}). Choose a causal "
            "language model, such as Qwen, Llama, Gemma or Mamba."
        ) from error


def _body(model: PreTrainedModel) -> PreTrainedModel:
    """Return a language model without its head; for a model that also sees or hears, the part that reads text."""
    inner = model.base_model
    if model.config.get_text_config() is not model.config:
        inner = model.get_decoder()
    elif inner is model and model.get_output_embeddings() is not None:
        # A text model of a family with vision models names its body by the body's place in those.
        inner = model.model
    assert isinstance(inner, PreTrainedModel)
    return inner
