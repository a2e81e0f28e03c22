"""What a model's configuration tells of its family: whether texts are continued with it, by which attention.

Imports neither torch nor transformers, so that a request is refused before anything starts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def _kinds(names: str) -> frozenset[str]:
    """Kinds of models, as configurations call them (`model_type`)."""
    return frozenset(names.split())


WITHOUT_SDPA = _kinds(
    """
    bloom codegen cpmant deepseek_v4 falcon_mamba flint gemma2 got_ocr2 gpt_neo gpt_neox_japanese gpt_oss
    gptj granite_swa granitemoe_swa hy_v4 inkling2_text mamba mamba2 mimo_v2_flash mpt openai-gpt rwkv
    vaultgemma xglm xlstm
    """
)
"""Kinds of models that transformers has in plain products alone. Part of keys, so it is the same on all machines,
whichever transformers they have."""

PAGED = _kinds(
    """
    biogpt cohere cohere2 ctrl dbrx dots1 exaone4 gemma gemma2 gemma3 gemma3_text gemma3n_text glm4 gpt2
    gpt_bigcode gpt_neox gpt_oss granite granitemoe helium llama llava mistral mixtral olmo2 olmo3 olmoe opt
    persimmon phi phi3 phimoe qwen2 qwen2_5_vl qwen2_moe qwen3 qwen3_moe smollm3 starcoder2
    """
)
"""Kinds of models whose tokens were the same by continuous batching of transformers as by our own decoder. All of
them were tried: some others are decoded wrongly there without a word."""
_OWN_ATTENTION = _kinds("bloom codegen diffllama falcon gpt_neo gptj mpt nemotron stablelm xglm")
"""Kinds of models that compute attention past the interface that gives it pages; found likewise."""
SPLIT = _kinds(
    """
    cohere cohere2 deepseek_v2 deepseek_v3 deepseek_v32 dots1 exaone4 gemma gemma2 gemma3 gemma3_text
    gemma3n_text glm4 gpt_neox granite granitemoe granitemoehybrid helium llama llama4_text llava minicpm3
    minimax mistral mixtral nemotron olmo2 olmo3 olmo_hybrid olmoe phi phi3 phimoe qwen2 qwen2_5_vl
    qwen2_moe qwen3 qwen3_5_text qwen3_moe qwen3_next smollm3 starcoder2
    """
)
"""Kinds of models by which two processes, each with half of nearly all weights, wrote the tokens of one, by the
tensor-parallel plan of transformers. All families of docs/models.md were tried: others have no plan, one for the
embedding alone, or one that fails."""
_SHARED_HEADS = ("num_attention_heads", "num_key_value_heads", "linear_num_value_heads", "linear_num_key_heads")
_SHARED_WIDTHS = (
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
)
_PAGED_LAYERS = ("full_attention", "sliding_attention")

_ENCODERS = _kinds(
    """
    albert bert bert-generation big_bird camembert data2vec-text deberta deberta-v2 distilbert electra ernie
    longformer megatron-bert modernbert mpnet rembert roberta roberta-prelayernorm roc_bert roformer
    xlm-roberta xlm-roberta-xl xmod
    """
)
_COUNT_BESIDE_OTHERS = _kinds(
    """
    bart bigbird_pegasus blenderbot blenderbot-small marian mbart musicgen musicgen_melody mvp pegasus
    plbart prophetnet trocr whisper
    """
)
"""Decoders of which none takes the places of its tokens: it counts them from the first column of a batch."""
_COUNT_FROM_PADDING = _kinds(
    "camembert data2vec-text roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl xmod"
)
"""Kinds of models whose first place is the one behind the id of their padding token."""
_OTHERS = {
    "cpmant": "it reads a prompt of a task of its own before each text",
    "diffusion_gemma": "it writes texts by diffusion",
    "dream": "it writes texts by diffusion",
    "llada": "it writes texts by diffusion",
    "reformer": "it reads texts of certain lengths only",
    "sdar": "it writes texts by diffusion",
    "xlm": "it reads texts in both directions",
    "xlnet": "it reads texts in an order of its own",
}
_GENERATING = ("ForCausalLM", "LMHeadModel", "LMHead", "ForConditionalGeneration", "GenerationDecoder")
MOST_RANKS = 64
"""Devices that share one model at most, where nobody names a number."""
_INSTEAD = "Choose a causal language model, such as Qwen, Llama, Gemma or Mamba."


def why_not_usable(config: Mapping[str, Any], *, for_values: bool = False) -> str | None:
    """Why texts cannot be continued token by token with a model, or None.

    Args:
        config: Its `config.json`.
        for_values: It is only the backbone of value models, which have a head of their own.
    """
    kind = str(config.get("model_type"))
    if kind in _OTHERS:
        return f"{kind} is no causal language model: {_OTHERS[kind]}. {_INSTEAD}"
    if config.get("is_encoder_decoder"):
        return f"{kind} is an encoder with a decoder, and prompts are continued here by decoders alone. {_INSTEAD}"
    if kind in _ENCODERS and not config.get("is_decoder"):
        return f"{kind} is an encoder, which writes no texts. {_INSTEAD}"
    if kind in _COUNT_BESIDE_OTHERS:
        return (
            f"{kind} takes no positions of tokens and counts them from the longest text of a batch, so what it "
            f"writes would follow from what stands beside it. {_INSTEAD}"
        )
    if kind in _COUNT_FROM_PADDING:
        return f"{kind} counts positions from the id of its padding token, and here they begin at 0. {_INSTEAD}"
    saved = config.get("architectures")
    built = [name for name in saved if isinstance(name, str)] if isinstance(saved, list) else []
    # Code that comes with a model may call its classes anything.
    if for_values or not built or "auto_map" in config or any(name.endswith(_GENERATING) for name in built):
        return None
    return (
        f"it was saved as {', '.join(built)}, without the head that gives probabilities of tokens, so nothing can "
        "be drawn from it. Choose the language model that it was made from. (As a reward: docs/rewards.md)"
    )


def why_not_paged(config: Mapping[str, Any]) -> str | None:
    """Why transformers does not decode a model by continuous batching, whose cache is made of pages; or None.

    Args:
        config: Its `config.json`.
    """
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    kind = config.get("model_type")
    if text.get("attn_logit_softcapping"):
        why = "caps the scores of its attention, which transformers' continuous batching leaves out"
        return f"{kind} {why}. Use generation.backend=own"
    if kind in PAGED:
        return None
    layers = text.get("layer_types")
    others = sorted({str(one) for one in layers} - set(_PAGED_LAYERS)) if isinstance(layers, list) else []
    if others:
        why = f"has layers of {', '.join(others)}, for which transformers' continuous batching has no cache"
    elif text.get("kv_lora_rank"):
        why = "has latent attention, for which transformers' continuous batching has no cache"
    elif kind in _OWN_ATTENTION:
        why = "computes attention by code of its own, which reads no pages of transformers' continuous batching"
    else:
        why = "is of no kind that was found right by transformers' continuous batching"
    return f"{kind} {why}. Use generation.backend=own"


def why_not_split(config: Mapping[str, Any], width: int) -> str | None:
    """Why a model cannot be split over several devices, each of which has a part of every layer; or None.

    Args:
        config: Its `config.json`.
        width: Devices.
    """
    kind = config.get("model_type")
    if kind not in SPLIT:
        return (
            f"{kind} cannot be split over devices: it is of no kind that was found right by a tensor-parallel "
            "plan of transformers. Use generation.gpus_per_job=1"
        )
    parts = _split_parts(config)
    if odd := {name: size for name, size in parts.items() if size % width}:
        told = ", ".join(f"{name}={size}" for name, size in odd.items())
        fitting = [str(one) for one in split_widths(config) if one <= MOST_RANKS]
        return f"{width} devices cannot share {told} evenly. Use generation.gpus_per_job={' or '.join(fitting)}"
    return None


def split_widths(config: Mapping[str, Any]) -> list[int]:
    """Over how many devices a model can be split, 1 among them, the fewest first."""
    if config.get("model_type") not in SPLIT:
        return [1]
    common = math.gcd(*_split_parts(config).values())
    return [width for width in range(1, common + 1) if common % width == 0] or [1]


def _split_parts(config: Mapping[str, Any]) -> dict[str, int]:
    """Sizes of a model of which each device has to have as much as every other."""
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    found = {name: text.get(name) for name in (*_SHARED_HEADS, *_SHARED_WIDTHS)}
    return {name: size for name, size in found.items() if isinstance(size, int) and size > 0}


def unknown_kind(config: Mapping[str, Any]) -> str | None:
    """That the installed transformers has no code for a kind of models, as far as its files tell; or None."""
    kind, found = config.get("model_type"), find_spec("transformers")
    if not isinstance(kind, str):
        return "its config.json has no model_type, by which transformers knows what it is. Get the model again"
    if found is None or found.origin is None:
        return None
    tables = list((Path(found.origin).parent / "models" / "auto").glob("*.py"))
    # In those tables a kind comes first, and classes follow.
    entry = re.compile(rf'\(\s*"{re.escape(kind)}"\s*,|"{re.escape(kind)}"\s*:')
    if not tables or any(entry.search(table.read_text(encoding="utf-8")) for table in tables):
        return None
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and seldom asked

    try:
        release = version("transformers")
    except PackageNotFoundError:
        release = ""
    return (
        f"transformers {release} knows no models of the type '{kind}'. A newer one may: "
        "pip install -U transformers"
    )
