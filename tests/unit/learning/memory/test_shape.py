"""The shape of a model from its configuration."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from pipeline.errors import ConfigError
from pipeline.learning.memory.shape import read_shape, shape_of_config

SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}


def test_a_model_that_was_built_has_as_many_parameters(tmp_path: Path) -> None:
    config = LlamaConfig(**SMALL, num_key_value_heads=2, intermediate_size=96, tie_word_embeddings=True)
    config.save_pretrained(tmp_path)
    shape = read_shape(str(tmp_path))
    model = AutoModelForCausalLM.from_config(config)
    assert shape.parameters == model.num_parameters()
    assert (shape.layers, shape.hidden, shape.vocabulary) == (2, 64, 100)
    assert shape.cached == 2 * 2 * 2 * 16  # keys and values of 2 layers with 2 heads for them
    block = sum(parameter.numel() for parameter in model.model.layers[0].parameters())
    assert shape.largest_unit == block
    # q, k, v, o, gate, up, down
    assert shape.lora_width == 2 * (128 + 96 + 96 + 128 + 160 + 160 + 160)


def test_gpt2_has_linear_layers_of_a_class_of_its_own() -> None:
    config = GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=5000, n_positions=32)
    shape = shape_of_config(config, "gpt2")
    assert shape.parameters == AutoModelForCausalLM.from_config(config).num_parameters()
    assert shape.lora_width == 2 * ((64 + 192) + (64 + 64) + (64 + 256) + (256 + 64))
    # The embeddings, which are in no block, are the largest part here.
    assert shape.largest_unit == 5000 * 64 + 32 * 64 + 2 * 64


def test_llama_2_7b_is_known_to_have_6_74_billion() -> None:
    """Llama 2 (arXiv 2307.09288): 6,738,415,616 parameters. Built without any memory for them."""
    config = LlamaConfig(
        num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, intermediate_size=11008, vocab_size=32000
    )
    before = torch.get_default_device()
    shape = shape_of_config(config, "llama-2-7b")
    assert shape.parameters == 6_738_415_616
    assert shape.largest_unit == 2 * 32000 * 4096 + 4096
    assert torch.get_default_device() == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no such file or folder"),
        ({"model_type": "no-such-model"}, "cannot read the configuration"),
        ({"model_type": "vit"}, "is no causal language model"),
        ({"model_type": "bert"}, "bert is an encoder, which writes no texts"),
        (
            {"model_type": "t5"},
            "t5 is an encoder with a decoder, and prompts are continued here by decoders alone",
        ),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, content: dict[str, str] | None, said: str) -> None:
    folder = tmp_path / "model"
    if content is not None:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=said) as raised:
        read_shape(str(folder))
    assert "\n" not in str(raised.value)
