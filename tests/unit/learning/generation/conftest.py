"""Small random models with opinions: guidance by them changes what is drawn."""

from collections.abc import Callable

import pytest
import torch
import transformers as hf

from pipeline.learning.choices import HeadType
from pipeline.learning.models.value import ValueModel, value_model_from

VOCABULARY = 17


def language_model(kind: str, seed: int = 0) -> hf.PreTrainedModel:
    """A random model of a family.

    gpt2 has learnt positions and llama rotary ones; llama and qwen2 share keys among heads; neox rotates a part of
    each head. The attention of gpt_neo cannot be replaced, nor that of gptj before transformers 5.24;
    gpt_neo has a causal mask of its own, and the attention of gemma2 caps its scores.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _MAKE[kind]().eval().requires_grad_(False)


_IDS = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0, "vocab_size": VOCABULARY}
_GPT = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_inner": 48,
    "n_positions": 64,
    "initializer_range": 0.4,
    **_IDS,
}
_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.4,
    **_IDS,
}
_CAPPED = {"layer_types": ["full_attention"] * 2, "attn_logit_softcapping": 2.0, "attn_implementation": "eager"}
_MAKE: dict[str, Callable[[], hf.PreTrainedModel]] = {
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**_GPT)),
    "gptj": lambda: hf.GPTJForCausalLM(hf.GPTJConfig(rotary_dim=4, **_GPT)),
    "gpt_neo": lambda: hf.GPTNeoForCausalLM(
        hf.GPTNeoConfig(
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            max_position_embeddings=64,
            **_IDS,
        )
    ),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(num_key_value_heads=2, **_SIZES)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(num_key_value_heads=1, **_SIZES)),
    "neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(max_position_embeddings=64, **_SIZES)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(num_key_value_heads=2, head_dim=8, **_CAPPED, **_SIZES)
    ),
}


def opinionated(model: hf.PreTrainedModel, head: HeadType) -> ValueModel:
    """A value model whose head is not zero."""
    kind = {"gpt_neox": "neox"}.get(model.config.model_type, model.config.model_type)
    value = value_model_from(language_model(kind, seed=1), head)
    generator = torch.Generator().manual_seed(2)
    value.head.weight.data = torch.randn(value.head.weight.shape, generator=generator)
    return value.eval().requires_grad_(False)


@pytest.fixture(params=["gpt2", "llama"])
def model(request: pytest.FixtureRequest) -> hf.PreTrainedModel:
    """One model of each family."""
    return language_model(request.param)


@pytest.fixture
def make_value() -> Callable[[hf.PreTrainedModel, HeadType], ValueModel]:
    """Makes value models for a language model."""
    return opinionated
