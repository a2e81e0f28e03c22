"""Tiny random models of families of language models, for tests and for the table of `docs/models.md`.

Each is made of its configuration alone, so nothing is fetched. Windows and chunks are smaller than texts, so that
what lies outside of them matters.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import transformers as hf

VOCABULARY = 320
_ENDS: dict[str, Any] = {"eos_token_id": 0, "bos_token_id": 0, "pad_token_id": 1}
_WIDTHS: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": VOCABULARY,
    **_ENDS,
}
_OWN_KEYS: dict[str, Any] = {key: value for key, value in _WIDTHS.items() if key != "num_key_value_heads"}
_OLD: dict[str, Any] = {"vocab_size": VOCABULARY, **_ENDS}
_HEADS: dict[str, Any] = {"head_dim": 16}
_WINDOW: dict[str, Any] = {"sliding_window": 8}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LOCAL: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_LATENT: dict[str, Any] = {
    "kv_lora_rank": 16,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "qk_nope_head_dim": 16,
    "num_key_value_heads": 4,
}
_DEEP: dict[str, Any] = {
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
_LINEAR: dict[str, Any] = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}


def _wide(**changes: Any) -> dict[str, Any]:
    return {**_WIDTHS, **changes}


def _old(**changes: Any) -> dict[str, Any]:
    return {**_OLD, **changes}


def _alike(names: str, settings: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return dict.fromkeys(names.split(), settings)


def _alternating(first: str, second: str, count: int = 4) -> list[str]:
    return [first, second] * (count // 2)


Settings = Mapping[str, Any]

_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
GROUPS: Mapping[str, Mapping[str, Settings]] = {
    "full attention": {
        **_alike("gpt2 gpt_bigcode", _old(n_embd=64, n_layer=3, n_head=4, n_positions=256)),
        **_alike(
            "llama qwen2 phi phi3 olmo2 granite smollm3 stablelm starcoder2 nemotron cohere diffllama", _WIDTHS
        ),
        **_alike("qwen3 glm4 gemma helium", _wide(**_HEADS)),
        **_alike("persimmon gpt_neox biogpt", _OWN_KEYS),
        "opt": _old(
            hidden_size=64,
            ffn_dim=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=256,
            word_embed_proj_dim=64,
        ),
        "xglm": _old(d_model=64, ffn_dim=128, num_layers=3, attention_heads=4, max_position_embeddings=256),
        "ctrl": _old(n_embd=64, dff=128, n_layer=3, n_head=4, n_positions=256),
        **_alike("gptj codegen", _old(n_embd=64, n_layer=3, n_head=4, rotary_dim=8, n_positions=256)),
        "gpt_neo": _old(
            hidden_size=64,
            num_layers=4,
            num_heads=4,
            attention_types=[[["global", "local"], 2]],
            window_size=8,
            max_position_embeddings=256,
        ),
    },
    "full attention, mixture of experts": {
        **_alike("mixtral phimoe", _wide(**_LOCAL, sliding_window=None)),
        "olmoe": _wide(num_experts=4, num_experts_per_tok=2),
        "qwen2_moe": _wide(**_EXPERTS, shared_expert_intermediate_size=32),
        "qwen3_moe": _wide(**_HEADS, **_EXPERTS),
        "granitemoe": _wide(**_LOCAL),
        "dots1": _wide(**_DEEP, sliding_window=None),
        "dbrx": _old(
            d_model=64,
            n_heads=4,
            n_layers=3,
            max_seq_len=256,
            attn_config={"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
            ffn_config={"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
        ),
    },
    "latent attention": {
        "deepseek_v2": _wide(**_LATENT, **{**_DEEP, "n_group": 1}),
        "deepseek_v3": _wide(**_LATENT, **_DEEP),
        "minicpm3": _wide(**_LATENT),
        "deepseek_v32": _wide(**_LATENT, **_DEEP, index_topk=8, index_n_heads=16, index_head_dim=16),
    },
    "sliding window": {
        **_alike("mistral cohere2 olmo3", _wide(**_WINDOW)),
        "gemma2": _wide(**_HEADS, **_WINDOW),
        "gemma3_text": _wide(**_HEADS, **_WINDOW, layer_types=_alternating("sliding_attention", "full_attention")),
        "gemma3n_text": _wide(
            **_HEADS,
            **_WINDOW,
            layer_types=_alternating("sliding_attention", "full_attention"),
            num_kv_shared_layers=2,
            vocab_size_per_layer_input=VOCABULARY,
            hidden_size_per_layer_input=16,
            laurel_rank=8,
            activation_sparsity_pattern=[0.0] * 4,
        ),
        "gemma4_text": _wide(
            **_HEADS,
            **_WINDOW,
            layer_types=_alternating("sliding_attention", "full_attention"),
            global_head_dim=64,
            num_kv_shared_layers=2,
            vocab_size_per_layer_input=VOCABULARY,
            hidden_size_per_layer_input=16,
        ),
        "exaone4": _wide(**_WINDOW, sliding_window_pattern=4),
        "gpt_oss": _wide(**_HEADS, **_WINDOW, **_LOCAL),
    },
    "chunked attention": {
        "llama4_text": _wide(
            **_HEADS,
            **_LOCAL,
            attention_chunk_size=8,
            intermediate_size_mlp=128,
            no_rope_layers=[1, 1, 1, 0],
            layer_types=["chunked_attention"] * 3 + ["full_attention"],
        ),
    },
    "full attention with ALiBi": {
        "bloom": _old(hidden_size=64, n_layer=3, n_head=4),
        "mpt": _old(d_model=64, n_heads=4, n_layers=3, max_seq_len=256),
        "falcon": _old(
            hidden_size=64, num_hidden_layers=3, num_attention_heads=4, alibi=True, new_decoder_architecture=False
        ),
    },
    "state space or recurrent": {
        **_alike("mamba falcon_mamba", _old(hidden_size=64, num_hidden_layers=3, state_size=8)),
        "mamba2": _old(
            hidden_size=64, num_hidden_layers=3, state_size=16, num_heads=8, head_dim=16, n_groups=2, chunk_size=8
        ),
        "rwkv": _old(hidden_size=64, attention_hidden_size=64, num_hidden_layers=3, context_length=256),
        "xlstm": _old(hidden_size=64, num_hidden_layers=3, num_heads=4, chunk_size=8),
        "recurrent_gemma": _old(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            lru_width=64,
            attention_window_size=8,
            block_types=["recurrent", "recurrent", "attention", "recurrent"],
        ),
    },
    "hybrid": {
        "jamba": _wide(
            num_experts=4,
            num_experts_per_tok=2,
            attn_layer_period=2,
            attn_layer_offset=1,
            mamba_d_state=8,
            use_mamba_kernels=False,
        ),
        "bamba": _wide(
            attn_layer_indices=[1, 3], mamba_n_heads=8, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=16
        ),
        "zamba2": _wide(
            num_key_value_heads=4,
            mamba_d_state=16,
            mamba_ngroups=1,
            n_mamba_heads=8,
            num_mem_blocks=1,
            layers_block_type=["mamba", "hybrid", "mamba", "hybrid"],
            use_mem_eff_path=False,
            adapter_rank=8,
        ),
        "granitemoehybrid": _wide(
            **_LOCAL,
            shared_intermediate_size=64,
            layer_types=_alternating("mamba", "attention"),
            mamba_n_heads=8,
            mamba_d_head=16,
            mamba_n_groups=1,
            mamba_d_state=16,
        ),
        "nemotron_h": _wide(
            layers_block_type=["mamba", "attention", "mlp", "mamba"],
            mamba_num_heads=8,
            mamba_head_dim=16,
            n_groups=1,
            ssm_state_size=16,
            head_dim=16,
        ),
        "falcon_h1": _wide(
            mamba_d_ssm=64,
            mamba_n_heads=4,
            mamba_d_head=16,
            mamba_n_groups=1,
            mamba_d_state=16,
            mamba_chunk_size=8,
        ),
        "lfm2": _wide(layer_types=_alternating("conv", "full_attention")),
        "qwen3_next": _wide(**_HEADS, **_EXPERTS, **_LINEAR, shared_expert_intermediate_size=32),
        "qwen3_5_text": _wide(**_HEADS, **_LINEAR),
        "olmo_hybrid": _wide(**_LINEAR, layer_types=_alternating("linear_attention", "full_attention")),
        "minimax": _wide(
            **_HEADS, **_LOCAL, block_size=8, layer_types=_alternating("linear_attention", "full_attention")
        ),
    },
    "sees images, given text": {
        "gemma3": {
            "text_config": {
                **_wide(**_HEADS, **_WINDOW),
                "layer_types": _alternating("sliding_attention", "full_attention"),
            },
            "vision_config": _VISION,
            "mm_tokens_per_image": 4,
            "image_token_index": 317,
            "boi_token_index": 318,
            "eoi_token_index": 319,
        },
        "llava": {
            "text_config": {"model_type": "llama", **_WIDTHS},
            "vision_config": {"model_type": "clip_vision_model", "projection_dim": 32, **_VISION},
            "image_token_index": 319,
        },
        "qwen2_5_vl": {
            "text_config": _wide(rope_parameters={**_ROPE, "mrope_section": [2, 2, 4]}),
            "vision_config": {
                "depth": 1,
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_heads": 2,
                "out_hidden_size": 64,
                "fullatt_block_indexes": [0],
            },
            "image_token_id": 319,
            "video_token_id": 318,
            "vision_start_token_id": 317,
            "vision_end_token_id": 316,
        },
    },
}
FAMILIES: Mapping[str, Callable[[], hf.PreTrainedConfig]] = {
    name: partial(hf.AutoConfig.for_model, name, **settings)
    for group in GROUPS.values()
    for name, settings in group.items()
}


def tiny_model(family: str, seed: int = 0, spread: float = 0.15) -> hf.PreTrainedModel:
    """A random model of a family, whose logits differ enough for its likeliest token to be certain.

    Args:
        family: Name in `FAMILIES`.
        seed: Of its weights.
        spread: Standard deviation of its weights where the family has a setting for it.
    """
    config = FAMILIES[family]()
    for part in (config, config.get_text_config()):
        if hasattr(part, "initializer_range"):
            part.initializer_range = spread
    kind: Any = hf.AutoModelForCausalLM
    if type(config) not in kind._model_mapping:
        kind = hf.AutoModelForImageTextToText
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made: hf.PreTrainedModel = kind.from_config(config).eval().requires_grad_(False)
        return made
