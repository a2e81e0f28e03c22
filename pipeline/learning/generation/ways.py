"""In which way a model is read token by token, which its configuration alone tells.

slots     keys and values in fixed slots (`row_cache`), where every layer attends to all that precedes
own       the cache that transformers makes for the model: sliding windows, chunks, states
anew      no cache: the whole text is read again for each token, where what a model remembers is its own affair
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from transformers import DynamicCache


class Way(Enum):
    """How a model reads what its rows grow by."""

    slots = "slots"
    own = "own"
    anew = "anew"


@dataclass(frozen=True)
class Reading:
    """The way of a model.

    Attributes:
        way: Which.
        reason: Why no simpler one, in a few words; "" of the simplest.
        has_state: Whether layers carry a state along, which padding before a text would change.
    """

    way: Way
    reason: str = ""
    has_state: bool = False


NO_CACHE = {
    "minimax": "its cache is of a class of its own",
    "openai-gpt": "it has no cache",
    "recurrent_gemma": "its state is kept inside of its layers",
    "rwkv": "its state is of a form of its own",
    "xlstm": "its state is of a form of its own",
}
"""Kinds of models whose memory of a text is not in a cache of transformers, and why."""

ALIBI = ("bloom", "mpt")
"""Kinds of models that always weigh attention by distance; others say so by `alibi`."""

_STATES = {
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
}
_LAYERS = {
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "DynamicIndexedLayer",
    "DummyLayer",
    *_STATES,
}
"""Layers of transformers' caches whose rows can be chosen."""


def reading_of(config: Any) -> Reading:
    """The way in which models of a configuration are read.

    Args:
        config: Of a language model, or of the backbone of a value model.
    """
    text = config.get_text_config(decoder=True)
    if (why := NO_CACHE.get(text.model_type)) is not None:
        return Reading(Way.anew, why)
    try:
        layers = {type(layer).__name__ for layer in DynamicCache(config=text).layers}
    except (AttributeError, KeyError, TypeError, ValueError):
        return Reading(Way.anew, "transformers' caches do not fit it")
    if strange := sorted(layers - _LAYERS):
        return Reading(Way.anew, f"its cache has layers of its own ({', '.join(strange)})")
    if layers & _STATES:
        return Reading(Way.own, "layers with a state", has_state=True)
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or (getattr(text, "sliding_window", None) and not hasattr(text, "layer_types")):
        special = sorted(kinds - {"full_attention"}) or ["sliding_attention"]
        return Reading(Way.own, f"layers with {', '.join(special)}")
    if text.model_type == "gpt_neo" and _has_window(text):
        return Reading(Way.own, "layers with a window that counts candidates of a step as positions")
    if text.model_type == "xglm":
        return Reading(Way.own, "its attention takes no mask that all rows share")
    if text.model_type in ALIBI or getattr(text, "alibi", False):
        return Reading(Way.own, "attention is weighed by distance (ALiBi)")
    return Reading(Way.slots)


def _has_window(neo: Any) -> bool:
    """Whether texts of GPT-Neo can be longer than its local layers look back."""
    return "local" in neo.attention_layers and neo.window_size < neo.max_position_embeddings
