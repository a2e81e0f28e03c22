"""Small random models with opinions: guidance by them changes what is drawn."""

from collections.abc import Callable

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from pipeline.config.schema import HeadType
from pipeline.models.value import ValueModel, value_model_from

VOCABULARY = 17


def language_model(kind: str, seed: int = 0) -> PreTrainedModel:
    """A random model of a family, with learnt (gpt2) or rotary (llama) positions."""
    ids = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0, "vocab_size": VOCABULARY}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == "gpt2":
            model: PreTrainedModel = GPT2LMHeadModel(
                GPT2Config(
                    n_embd=32, n_layer=2, n_head=4, n_inner=48, n_positions=64, initializer_range=0.4, **ids
                )
            )
        else:
            sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
            model = LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, initializer_range=0.4, **sizes, **ids))
    return model.eval().requires_grad_(False)


def opinionated(model: PreTrainedModel, head: HeadType) -> ValueModel:
    """A value model whose head is not zero."""
    value = value_model_from(language_model(model.config.model_type, seed=1), head)
    generator = torch.Generator().manual_seed(2)
    value.head.weight.data = torch.randn(value.head.weight.shape, generator=generator)
    return value.eval().requires_grad_(False)


@pytest.fixture(params=["gpt2", "llama"])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    """One model of each family."""
    return language_model(request.param)


@pytest.fixture
def make_value() -> Callable[[PreTrainedModel, HeadType], ValueModel]:
    """Makes value models for a language model."""
    return opinionated
