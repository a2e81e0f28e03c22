"""Attention to a prefix by one kernel, and to a token of its own merged with it: no scores lie in memory.

A candidate sees the prefix of its row, which a kernel attends to as it would by itself, and itself. The kernel
also tells the logarithm of what its softmax has divided by (its log-sum-exp, l). With s, the score of the
candidate with itself, its weight is exp(s) / (exp(l) + exp(s)) = sigmoid(s - l), and the prefix has the rest.

Only on GPUs. Shapes: B rows, G heads of keys and values, Q queries that share one of them,
S slots, D size of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.learning.generation.row_cache import ALIGNED

_SIZES = 8
"""What sizes of heads are a multiple of for such kernels."""


def is_merged(query: Tensor, value: Tensor) -> bool:
    """Whether attention of these is computed so; both of shape [..., D]."""
    fits = not (query.shape[-1] % _SIZES or value.shape[-1] % _SIZES)
    return query.is_cuda and fits


def attend_prefix(query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attend to a prefix.

    Args:
        query: Scaled, shape [B, G, Q, D].
        keys: Shape [B, G, S, D].
        values: Likewise, with a size of their own.
        hidden: To be added to scores, of shape [B, 1, 1 or Q, S]; None hides nothing.

    Returns:
        What is seen, shape [B, G, Q, D of the values], and the log-sum-exp of scores, float32, shape [B, G, Q].
    """
    if hidden is not None:
        hidden = _aligned(hidden).expand(*query.shape[:3], -1)
    if query.is_cuda:
        found = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, keys, values, hidden, True, scale=1.0
        )
        return found[0], found[1][..., : query.shape[2]]  # which is padded
    seen, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, attn_mask=hidden, scale=1.0
    )
    return seen, total


def merge(seen: Tensor, total: Tensor, own: Tensor, value: Tensor) -> Tensor:
    """What is seen of a prefix and of a token of one's own.

    Args:
        seen: Of the prefix, shape [..., D].
        total: Its log-sum-exp, shape [...].
        own: Score of the token, shape [...].
        value: Of the token, shape [..., D].

    Returns:
        Shape [..., D].
    """
    weight = torch.sigmoid(own.float() - total)[..., None]
    return torch.lerp(seen.float(), value.float(), weight).to(value.dtype)


def _aligned(hidden: Tensor) -> Tensor:
    if not any(stride % ALIGNED for stride in hidden.stride()[:-1]):  # as the cache makes them
        return hidden
    slots = hidden.shape[-1]
    return F.pad(hidden, (0, -slots % ALIGNED))[..., :slots]
