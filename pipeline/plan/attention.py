"""FlashAttention asked for where there is none: one warning, and the attention that torch brings along."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

from pipeline.config.schema import Attention, Config

PACKAGE = "flash_attn"


def usable_attention(config: Config, gpu: bool) -> tuple[Config, str | None]:
    """The request with an attention implementation that there is, so that keys name what is computed with.

    Args:
        config: The request.
        gpu: Whether it runs on GPUs.

    Returns:
        The request, and a warning where it was changed.
    """
    if config.system.attn_impl is not Attention.flash_attention_2:
        return config, None
    if not gpu:
        lacking = "it needs an NVIDIA GPU, and this run uses none"
    elif importlib.util.find_spec(PACKAGE) is None:
        lacking = "the package is not installed (pip install flash-attn)"
    else:
        return config, None
    changed = replace(config, system=replace(config.system, attn_impl=Attention.sdpa))
    return changed, f"system.attn_impl=flash_attention_2: {lacking}; using sdpa, torch's own attention"
