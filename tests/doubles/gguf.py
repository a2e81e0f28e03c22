"""A GGUF file of a few kilobytes: one layer of a Llama with random weights and a tokenizer of single bytes."""

from importlib.metadata import version
from pathlib import Path

import gguf
import numpy as np
import pytest
from packaging.version import Version

from pipeline.plan.models import OLDEST_FOR_GGUF

TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefgh", "Ġ", "ab"]
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
WIDTH, HEADS, INNER = 32, 2, 64


def write_gguf(path: Path, tokens: list[str] = TOKENS, template: str | None = TEMPLATE) -> Path:
    if Version(version("transformers")) < Version(OLDEST_FOR_GGUF):
        pytest.skip(f"GGUF files are refused before transformers {OLDEST_FOR_GGUF}")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (len(tokens) - 3)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    if template is not None:
        writer.add_chat_template(template)
    draw = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        values = draw.normal(0, 0.3, shape).astype(np.float32)
        # Rows of 32 values each share a scale, as in any quantised model.
        kind = gguf.GGMLQuantizationType.Q8_0 if len(shape) == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", len(tokens), WIDTH)
    add("output_norm.weight", WIDTH)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        add(f"blk.0.{name}.weight", WIDTH, WIDTH)
    add("blk.0.ffn_gate.weight", INNER, WIDTH)
    add("blk.0.ffn_up.weight", INNER, WIDTH)
    add("blk.0.ffn_down.weight", WIDTH, INNER)
    add("blk.0.attn_norm.weight", WIDTH)
    add("blk.0.ffn_norm.weight", WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
