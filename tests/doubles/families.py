"""Tiny random models of families of language models, for tests and for the table of `docs/models.md`.

Each is made of its configuration alone, so nothing is fetched. Windows and chunks are smaller than texts, so that
what lies outside of them matters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers as hf
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedConfig, PreTrainedModel

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


def _alternating(first: str, second: str, count: int = 4) -> list[str]:
    return [first, second] * (count // 2)


Make = Callable[[], PreTrainedConfig]

FULL: Mapping[str, Make] = {
    "gpt2": lambda: hf.GPT2Config(n_embd=64, n_layer=3, n_head=4, n_positions=256, **_OLD),
    "llama": lambda: hf.LlamaConfig(**_WIDTHS),
    "qwen2": lambda: hf.Qwen2Config(**_WIDTHS),
    "qwen3": lambda: hf.Qwen3Config(**_wide(**_HEADS)),
    "phi": lambda: hf.PhiConfig(**_WIDTHS),
    "phi3": lambda: hf.Phi3Config(**_WIDTHS),
    "olmo2": lambda: hf.Olmo2Config(**_WIDTHS),
    "granite": lambda: hf.GraniteConfig(**_WIDTHS),
    "glm4": lambda: hf.Glm4Config(**_wide(**_HEADS)),
    "smollm3": lambda: hf.SmolLM3Config(**_WIDTHS),
    "stablelm": lambda: hf.StableLmConfig(**_WIDTHS),
    "starcoder2": lambda: hf.Starcoder2Config(**_WIDTHS),
    "nemotron": lambda: hf.NemotronConfig(**_WIDTHS),
    "gemma": lambda: hf.GemmaConfig(**_wide(**_HEADS)),
    "cohere": lambda: hf.CohereConfig(**_WIDTHS),
    "helium": lambda: hf.HeliumConfig(**_wide(**_HEADS)),
    "persimmon": lambda: hf.PersimmonConfig(**_OWN_KEYS),
    "diffllama": lambda: hf.DiffLlamaConfig(**_WIDTHS),
    "gpt_neox": lambda: hf.GPTNeoXConfig(**_OWN_KEYS),
    "gpt_bigcode": lambda: hf.GPTBigCodeConfig(n_embd=64, n_layer=3, n_head=4, n_positions=256, **_OLD),
    "opt": lambda: hf.OPTConfig(
        hidden_size=64,
        ffn_dim=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=256,
        word_embed_proj_dim=64,
        **_OLD,
    ),
    "xglm": lambda: hf.XGLMConfig(
        d_model=64, ffn_dim=128, num_layers=3, attention_heads=4, max_position_embeddings=256, **_OLD
    ),
    "biogpt": lambda: hf.BioGptConfig(**_OWN_KEYS),
    "ctrl": lambda: hf.CTRLConfig(n_embd=64, dff=128, n_layer=3, n_head=4, n_positions=256, **_OLD),
    "gptj": lambda: hf.GPTJConfig(n_embd=64, n_layer=3, n_head=4, rotary_dim=8, n_positions=256, **_OLD),
    "codegen": lambda: hf.CodeGenConfig(n_embd=64, n_layer=3, n_head=4, rotary_dim=8, n_positions=256, **_OLD),
    "gpt_neo": lambda: hf.GPTNeoConfig(
        hidden_size=64,
        num_layers=4,
        num_heads=4,
        attention_types=[[["global", "local"], 2]],
        window_size=8,
        max_position_embeddings=256,
        **_OLD,
    ),
}
EXPERTS: Mapping[str, Make] = {
    "mixtral": lambda: hf.MixtralConfig(**_wide(**_LOCAL, sliding_window=None)),
    "olmoe": lambda: hf.OlmoeConfig(**_wide(num_experts=4, num_experts_per_tok=2)),
    "qwen2_moe": lambda: hf.Qwen2MoeConfig(**_wide(**_EXPERTS, shared_expert_intermediate_size=32)),
    "qwen3_moe": lambda: hf.Qwen3MoeConfig(**_wide(**_HEADS, **_EXPERTS)),
    "phimoe": lambda: hf.PhimoeConfig(**_wide(**_LOCAL, sliding_window=None)),
    "granitemoe": lambda: hf.GraniteMoeConfig(**_wide(**_LOCAL)),
    "dots1": lambda: hf.Dots1Config(**_wide(**_DEEP, sliding_window=None)),
    "dbrx": lambda: hf.DbrxConfig(
        d_model=64,
        n_heads=4,
        n_layers=3,
        max_seq_len=256,
        attn_config={"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        ffn_config={"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
        **_OLD,
    ),
}
LATENT: Mapping[str, Make] = {
    "deepseek_v2": lambda: hf.DeepseekV2Config(**_wide(**_LATENT, **{**_DEEP, "n_group": 1})),
    "deepseek_v3": lambda: hf.DeepseekV3Config(**_wide(**_LATENT, **_DEEP)),
    "minicpm3": lambda: hf.MiniCPM3Config(**_wide(**_LATENT)),
    "deepseek_v32": lambda: hf.DeepseekV32Config(
        **_wide(**_LATENT, **_DEEP, index_topk=8, index_n_heads=16, index_head_dim=16)
    ),
}
SLIDING: Mapping[str, Make] = {
    "mistral": lambda: hf.MistralConfig(**_wide(**_WINDOW)),
    "gemma2": lambda: hf.Gemma2Config(**_wide(**_HEADS, **_WINDOW)),
    "gemma3_text": lambda: hf.Gemma3TextConfig(
        **_wide(**_HEADS, **_WINDOW), layer_types=_alternating("sliding_attention", "full_attention")
    ),
    "gemma3n_text": lambda: hf.Gemma3nTextConfig(
        **_wide(**_HEADS, **_WINDOW),
        layer_types=_alternating("sliding_attention", "full_attention"),
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=16,
        laurel_rank=8,
        activation_sparsity_pattern=[0.0] * 4,
    ),
    "gemma4_text": lambda: hf.Gemma4TextConfig(
        **_wide(**_HEADS, **_WINDOW),
        layer_types=_alternating("sliding_attention", "full_attention"),
        global_head_dim=64,
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=16,
    ),
    "cohere2": lambda: hf.Cohere2Config(**_wide(**_WINDOW)),
    "olmo3": lambda: hf.Olmo3Config(**_wide(**_WINDOW)),
    "exaone4": lambda: hf.Exaone4Config(**_wide(**_WINDOW), sliding_window_pattern=4),
    "gpt_oss": lambda: hf.GptOssConfig(**_wide(**_HEADS, **_WINDOW, **_LOCAL)),
}
CHUNKED: Mapping[str, Make] = {
    "llama4_text": lambda: hf.Llama4TextConfig(
        **_wide(**_HEADS, **_LOCAL),
        attention_chunk_size=8,
        intermediate_size_mlp=128,
        no_rope_layers=[1, 1, 1, 0],
        layer_types=["chunked_attention"] * 3 + ["full_attention"],
    ),
}
ALIBI: Mapping[str, Make] = {
    "bloom": lambda: hf.BloomConfig(hidden_size=64, n_layer=3, n_head=4, **_OLD),
    "mpt": lambda: hf.MptConfig(d_model=64, n_heads=4, n_layers=3, max_seq_len=256, **_OLD),
    "falcon": lambda: hf.FalconConfig(
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        alibi=True,
        new_decoder_architecture=False,
        **_OLD,
    ),
}
STATE: Mapping[str, Make] = {
    "mamba": lambda: hf.MambaConfig(hidden_size=64, num_hidden_layers=3, state_size=8, **_OLD),
    "mamba2": lambda: hf.Mamba2Config(
        hidden_size=64,
        num_hidden_layers=3,
        state_size=16,
        num_heads=8,
        head_dim=16,
        n_groups=2,
        chunk_size=8,
        **_OLD,
    ),
    "falcon_mamba": lambda: hf.FalconMambaConfig(hidden_size=64, num_hidden_layers=3, state_size=8, **_OLD),
    "rwkv": lambda: hf.RwkvConfig(
        hidden_size=64, attention_hidden_size=64, num_hidden_layers=3, context_length=256, **_OLD
    ),
    "xlstm": lambda: hf.xLSTMConfig(hidden_size=64, num_hidden_layers=3, num_heads=4, chunk_size=8, **_OLD),
    "recurrent_gemma": lambda: hf.RecurrentGemmaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        lru_width=64,
        attention_window_size=8,
        block_types=["recurrent", "recurrent", "attention", "recurrent"],
        **_OLD,
    ),
}
HYBRID: Mapping[str, Make] = {
    "jamba": lambda: hf.JambaConfig(
        **_wide(num_experts=4, num_experts_per_tok=2),
        attn_layer_period=2,
        attn_layer_offset=1,
        mamba_d_state=8,
        use_mamba_kernels=False,
    ),
    "bamba": lambda: hf.BambaConfig(
        **_WIDTHS, attn_layer_indices=[1, 3], mamba_n_heads=8, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=16
    ),
    "zamba2": lambda: hf.Zamba2Config(
        **_wide(num_key_value_heads=4),
        mamba_d_state=16,
        mamba_ngroups=1,
        n_mamba_heads=8,
        num_mem_blocks=1,
        layers_block_type=["mamba", "hybrid", "mamba", "hybrid"],
        use_mem_eff_path=False,
        adapter_rank=8,
    ),
    "granitemoehybrid": lambda: hf.GraniteMoeHybridConfig(
        **_wide(**_LOCAL),
        shared_intermediate_size=64,
        layer_types=_alternating("mamba", "attention"),
        mamba_n_heads=8,
        mamba_d_head=16,
        mamba_n_groups=1,
        mamba_d_state=16,
    ),
    "nemotron_h": lambda: hf.NemotronHConfig(
        **_wide(),
        layers_block_type=["mamba", "attention", "mlp", "mamba"],
        mamba_num_heads=8,
        mamba_head_dim=16,
        n_groups=1,
        ssm_state_size=16,
        head_dim=16,
    ),
    "falcon_h1": lambda: hf.FalconH1Config(
        **_WIDTHS,
        mamba_d_ssm=64,
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_n_groups=1,
        mamba_d_state=16,
        mamba_chunk_size=8,
    ),
    "lfm2": lambda: hf.Lfm2Config(**_WIDTHS, layer_types=_alternating("conv", "full_attention")),
    "qwen3_next": lambda: hf.Qwen3NextConfig(
        **_wide(**_HEADS, **_EXPERTS), **_LINEAR, shared_expert_intermediate_size=32
    ),
    "qwen3_5_text": lambda: hf.Qwen3_5TextConfig(**_wide(**_HEADS), **_LINEAR),
    "olmo_hybrid": lambda: hf.OlmoHybridConfig(
        **_WIDTHS, **_LINEAR, layer_types=_alternating("linear_attention", "full_attention")
    ),
    "minimax": lambda: hf.MiniMaxConfig(
        **_wide(**_HEADS, **_LOCAL), block_size=8, layer_types=_alternating("linear_attention", "full_attention")
    ),
}
_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
SEEING: Mapping[str, Make] = {
    "gemma3": lambda: hf.Gemma3Config(
        text_config={
            **_wide(**_HEADS, **_WINDOW),
            "layer_types": _alternating("sliding_attention", "full_attention"),
        },
        vision_config=_VISION,
        mm_tokens_per_image=4,
        image_token_index=317,
        boi_token_index=318,
        eoi_token_index=319,
    ),
    "llava": lambda: hf.LlavaConfig(
        text_config={"model_type": "llama", **_WIDTHS},
        vision_config={"model_type": "clip_vision_model", "projection_dim": 32, **_VISION},
        image_token_index=319,
    ),
    "qwen2_5_vl": lambda: hf.Qwen2_5_VLConfig(
        text_config=_wide(
            rope_parameters={**_ROPE, "mrope_section": [2, 2, 4]},
        ),
        vision_config={
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_heads": 2,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [0],
        },
        image_token_id=319,
        video_token_id=318,
        vision_start_token_id=317,
        vision_end_token_id=316,
    ),
}
GROUPS: Mapping[str, Mapping[str, Make]] = {
    "full attention": FULL,
    "full attention, mixture of experts": EXPERTS,
    "latent attention": LATENT,
    "sliding window": SLIDING,
    "chunked attention": CHUNKED,
    "full attention with ALiBi": ALIBI,
    "state space or recurrent": STATE,
    "hybrid": HYBRID,
    "sees images, given text": SEEING,
}
FAMILIES: Mapping[str, Make] = {name: make for group in GROUPS.values() for name, make in group.items()}


def tiny_model(family: str, seed: int = 0, spread: float = 0.15) -> PreTrainedModel:
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
    kind: Any = AutoModelForCausalLM
    if type(config) not in kind._model_mapping:
        kind = AutoModelForImageTextToText
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind.from_config(config).eval().requires_grad_(False)
