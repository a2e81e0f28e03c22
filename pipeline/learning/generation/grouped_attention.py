"""Attention of one query a row by heads of keys, as transformers' `sdpa` has it since 5.23.

Before, a mask made it repeat keys and values for every head of queries, in each layer of each step of decoding:
for a model with four heads of queries to one of keys that is four times the cache, written and read again. The
queries that share a head of keys can as well be that many queries of one head.

Shapes: B rows, H heads of queries, G heads of keys and values, S slots, D size of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations import sdpa_attention

CHANGES = ("cache", "position_bias", "softcap")
"""Arguments of it that change what is attended to, and are left to it."""


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as `sdpa` does, without repeating heads where there is one query.

    Args:
        module: Whose attention it is.
        query: Shape [B, H, queries, D].
        key: Shape [B, G, S, D].
        value: Shape [B, G, S, D of the values].
        attention_mask: Shape [B or 1, 1 or H, queries, S].
        dropout: Of weights.
        scaling: Of the products of queries and keys.
        options: Others of the interface.

    Returns:
        Shape [B, queries, H, D of the values].
    """
    heads, shared = query.shape[1], key.shape[1]
    by_itself = attention_mask is None or attention_mask.shape[1] != 1 or query.shape[2] != 1 or heads == shared
    if by_itself or any(options.get(name) is not None for name in CHANGES):
        found: tuple[Tensor, None] = sdpa_attention.sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return found
    seen = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(len(query), shared, heads // shared, -1),
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=dropout,
        scale=scaling,
    )
    return seen.reshape(len(seen), 1, heads, -1), None


if not hasattr(sdpa_attention, "pack_gqa"):
    AttentionInterface.register("sdpa", attention)
