"""How much memory writing texts takes on each GPU, by arithmetic alone, and on how few GPUs it fits.

    per GPU:  what is split: weights, keys and values of the policies   (divided by the GPUs that share them)
              what each has whole: a value model with its keys and values, logits
    usable:   as in trainings (`memory.training`)

An estimate for rows of one length; rows that do not fit are halved by themselves, weights are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_BYTES_OF_A_LOGIT = 16
"""As computed, in float32, as log-probabilities, and as what a nucleus or candidates make of them."""
PROMPT_TOKENS = 512
"""Of a prompt, where nothing is known of prompts."""


@dataclass(frozen=True, kw_only=True)
class DecodingShape:
    """What of a model decides its memory while it writes.

    Attributes:
        parameters: Shared ones once.
        cached: Numbers that are kept of each token of a text: keys and values of all layers.
        vocabulary: Entries of the output layer.
        hidden: Width of the residual stream.
    """

    parameters: int
    cached: int = 0
    vocabulary: int = 0
    hidden: int = 0


@dataclass(frozen=True, kw_only=True)
class DecodingLoad:
    """What writes.

    Attributes:
        policy: The model that texts are drawn from.
        policies: How many such models are held at once: with a trained policy its reference is, too.
        exact: Whether one more is held in float32, to score with.
        value: A value model that guides it, without its head; None where nothing does.
        outputs: Numbers that the head of the value model gives for a token.
        rows: Texts at once.
        tokens: Of a text, with its prompt.
        number_bytes: Of a number.
    """

    policy: DecodingShape
    policies: int = 1
    exact: bool = False
    value: DecodingShape | None = None
    outputs: int = 1
    rows: int
    tokens: int
    number_bytes: int


@dataclass(frozen=True, kw_only=True)
class DecodingFootprint:
    """Bytes on each GPU, by what they are for."""

    weights: int
    cache: int
    value: int
    logits: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.value + self.logits


def shape_of_texts(config: Mapping[str, Any], parameters: int) -> DecodingShape:
    """The shape of a model by its `config.json`; what that does not say counts as in the widespread models.

    Args:
        config: Plain data.
        parameters: Of the model.
    """
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    hidden = _first(text, "hidden_size", "n_embd")
    heads = _first(text, "num_attention_heads", "n_head")
    size = _first(text, "head_dim") or (hidden // heads if heads else 0)
    keys = (_first(text, "num_key_value_heads") or heads) * size
    return DecodingShape(
        parameters=parameters,
        cached=2 * keys * _first(text, "num_hidden_layers", "n_layer"),
        vocabulary=_first(text, "vocab_size"),
        hidden=hidden,
    )


def _first(config: Mapping[str, Any], *names: str) -> int:
    found = next((config[name] for name in names if isinstance(config.get(name), int)), 0)
    return max(0, found)


def decoding_footprint(writing: DecodingLoad, width: int = 1) -> DecodingFootprint:
    """What writing takes on each GPU.

    Args:
        writing: What writes.
        width: GPUs that share its policies.
    """
    policy, value, size = writing.policy, writing.value, writing.number_bytes
    texts = writing.rows * writing.tokens
    held = policy.parameters * (writing.policies * size + 4 * writing.exact)
    guide = 0
    if value is not None:
        guide = (value.parameters + value.hidden * writing.outputs + value.cached * texts) * size
    return DecodingFootprint(
        weights=held // width,
        cache=policy.cached * texts * size // width,
        value=guide,
        logits=writing.rows * policy.vocabulary * _BYTES_OF_A_LOGIT,
    )


def least_width(writing: DecodingLoad, usable: int, widths: Sequence[int]) -> int | None:
    """The fewest GPUs that writing fits on; None where it fits on none.

    Args:
        writing: What writes.
        usable: Bytes that can be filled of each.
        widths: How many may share it, the fewest first.
    """
    return next((width for width in widths if decoding_footprint(writing, width).total <= usable), None)
