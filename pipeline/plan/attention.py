"""Attention that was asked for where there is none of it: one warning, and the next best that there is."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

from pipeline.config.schema import Attention, Config, SystemConfig
from pipeline.plan.models import lacks_sdpa

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


def plain_attention(config: Config) -> frozenset[str]:
    """Models that compute attention as plain products, since transformers has no other for their kind.

    Args:
        config: The request, with an attention implementation that there is.
    """
    if config.system.attn_impl is not Attention.sdpa:
        return frozenset()
    return frozenset(name for name, model in config.models.items() if lacks_sdpa(model))


def said_of_attention(models: frozenset[str]) -> str | None:
    """A warning that names the models of `plain_attention`."""
    if not models:
        return None
    return (
        f"system.attn_impl=sdpa: transformers has no such attention for {', '.join(sorted(models))}; using eager, "
        "plain products, which take more memory"
    )


def with_attention(system: SystemConfig, *, plain: bool) -> SystemConfig:
    """The settings by which a model is computed with."""
    return replace(system, attn_impl=Attention.eager) if plain else system
