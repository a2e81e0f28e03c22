"""Weights of a frozen model in few bits, by bitsandbytes: each linear layer but the output layer, as it is read.

8 bits   LLM.int8() (arXiv 2208.07339): rows of weights and of activations with a scale each; columns of large
         activations stay in 16 bits, which are chosen over all rows that are computed together
4 bits   NF4 (arXiv 2305.14314): blocks of 64 weights with a scale each, computed in `system.dtype`
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from pipeline.config.schema import SystemConfig

_TALKATIVE = "bitsandbytes.autograd._functions"
"""It tells of every product that activations are rounded for it."""


def quantization_options(bits: int | None, system: SystemConfig, device: str) -> dict[str, Any]:
    """Arguments of `from_pretrained` by which a model is read in few bits.

    Args:
        bits: 8 or 4; None for none of it.
        system: Its dtype is what is computed in.
        device: ``cpu`` or ``cuda``: such a model is read to where it stays.
    """
    if bits is None:
        return {}
    from transformers import BitsAndBytesConfig

    logging.getLogger(_TALKATIVE).setLevel(logging.ERROR)
    return {"quantization_config": BitsAndBytesConfig(**bits_settings(bits, system)), "device_map": {"": device}}


def bits_settings(bits: int, system: SystemConfig) -> dict[str, Any]:
    """How weights are rounded, in the words of bitsandbytes."""
    if bits == 8:
        return {"load_in_8bit": True}
    kind = getattr(torch, system.dtype.name)
    return {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": kind}
