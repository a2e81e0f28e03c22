"""Others than our own decoder complete prompts as it does: with our draws the same tokens, else as likely ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedModel

from pipeline.config.schema import GenerationConfig, SystemConfig, TextBackend
from pipeline.errors import JobError, OutOfMemory
from pipeline.learning.algos import stage_entry
from pipeline.learning.choices import HeadType
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.datasets.shipped import AdditionConfig
from pipeline.learning.generation import vllm_engine
from pipeline.learning.generation.decode import Decoded, Guidance
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.generation.sampling import Tilt, preference_offset, sample_keys
from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.cache import ModelCache
from pipeline.learning.models.load import load_policy
from pipeline.learning.models.tiny import make_tokenizer
from tests.doubles import vllm_stand_in
from tests.doubles.adapters import write_rounds
from tests.unit.learning.generation.conftest import language_model, opinionated

DATASET = load_dataset(AdditionConfig(kind="addition"))
PROMPTS = [[1, 2, 3, 4][: 1 + row % 4] for row in range(10)]
STEPS = 4
ENDS = 9


def policy(
    model: PreTrainedModel,
    backend: TextBackend,
    *,
    hints: Path | None = None,
    kind: type[TextPolicy] = TextPolicy,
    **settings: Any,
) -> TextPolicy:
    generation = GenerationConfig(**{"batch_size": 6, "max_new_tokens": STEPS, **settings, "backend": backend})
    sizes = BatchSizes(hints, "cpu", model)
    return kind(model, make_tokenizer(DATASET), generation, DATASET, "cpu", sizes=sizes)


def ending(model: PreTrainedModel) -> PreTrainedModel:
    """The same, with a token that ends completions."""
    model.generation_config.eos_token_id = ENDS
    return model


def drawn(policy: TextPolicy, samples: int = 2) -> Decoded:
    return policy.complete(PROMPTS, sample_keys(0, "test", np.arange(len(PROMPTS)), samples), samples=samples)


def test_what_is_guided_is_decoded_by_us() -> None:
    model = language_model("gpt2")
    guidance = Guidance(opinionated(model, HeadType.q), Tilt(preference_offset(1.0), top_k=3))
    generation = GenerationConfig(backend=TextBackend.vllm, max_new_tokens=2)
    guided = TextPolicy(model, make_tokenizer(DATASET), generation, DATASET, "cpu", guidance)
    assert [len(tokens) for tokens in drawn(guided, samples=1).tokens] == [2] * len(PROMPTS)


# -- vLLM ------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path, vllm: None) -> PreTrainedModel:
    """A model in a folder."""
    model = ending(language_model("gpt2"))
    model.save_pretrained(tmp_path / "model")
    return ending(load_policy(tmp_path / "model", SystemConfig(), "cpu"))


def test_vllm_takes_the_likeliest_tokens_as_we_do(saved: PreTrainedModel) -> None:
    ours = policy(saved, TextBackend.own).complete(PROMPTS, None)
    told: list[tuple[int, int]] = []
    found = policy(saved, TextBackend.vllm).complete(PROMPTS, None, on_batch=lambda *now: told.append(now))
    assert found.tokens == ours.tokens
    assert told[-1] == (10, sum(map(len, found.tokens)))


def test_vllm_draws_by_the_seed_of_each_sample(saved: PreTrainedModel) -> None:
    first = drawn(policy(saved, TextBackend.vllm, batch_size=2))
    assert first.tokens == drawn(policy(saved, TextBackend.vllm, batch_size=2)).tokens
    keys = sample_keys(0, "test", np.arange(len(PROMPTS)), 2)
    backwards = policy(saved, TextBackend.vllm, batch_size=2).complete(PROMPTS[::-1], keys[::-1], samples=2)
    assert [backwards.tokens[2 * place : 2 * place + 2] for place in range(9, -1, -1)] == [
        first.tokens[2 * place : 2 * place + 2] for place in range(10)
    ]
    (engine,) = vllm_stand_in.ENGINES
    assert engine.calls == [16, 4] * 3  # eight batches at a time
    assert engine.settings == {
        "dtype": "float32",
        "max_num_seqs": 2,
        "max_model_len": 8,
        "gpu_memory_utilization": 0.4,
    }
    drawn(policy(saved, TextBackend.vllm, max_new_tokens=20, memory_mb=25 << 10, temperature=1.3, top_p=0.9))
    assert vllm_stand_in.ENGINES[1].settings["gpu_memory_utilization"] == 0.25
    assert {(asked.temperature, asked.top_p) for asked in vllm_stand_in.ENGINES[1].asked} == {(1.3, 0.9)}


def test_the_divergence_of_a_nucleus_is_read_from_the_texts(saved: PreTrainedModel) -> None:
    ours = policy(saved, TextBackend.own, top_p=0.7).complete(PROMPTS, None)
    found = policy(saved, TextBackend.vllm, top_p=0.7).complete(PROMPTS, None)
    assert found.kl == pytest.approx(ours.kl, abs=1e-5)
    assert found.kl.min() > 0


def test_vllm_reads_a_policy_of_which_adapters_are_stored(saved: PreTrainedModel, tmp_path: Path) -> None:
    write_rounds(saved, tmp_path, spread=0.3)
    merged = load_policy(tmp_path, SystemConfig(), "cpu", base=saved.name_or_path)
    ours = policy(merged, TextBackend.own).complete(PROMPTS, None).tokens
    assert ours != policy(saved, TextBackend.own).complete(PROMPTS, None).tokens
    assert policy(merged, TextBackend.vllm).complete(PROMPTS, None).tokens == ours


def test_vllm_leaves_the_gpu_to_a_training(saved: PreTrainedModel) -> None:
    drawn(policy(saved, TextBackend.vllm))
    assert vllm_engine._kept
    stage_entry._empty(ModelCache(0))
    assert not vllm_engine._kept
    drawn(policy(saved, TextBackend.vllm))
    assert len(vllm_stand_in.ENGINES) == 2


def test_an_end_that_vllm_leaves_out_is_put_back(saved: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = policy(saved, TextBackend.own).complete(PROMPTS, None)
    one = vllm_stand_in.LLM._one

    def without(self: Any, *args: Any) -> vllm_stand_in.CompletionOutput:
        output = one(self, *args)
        if output.finish_reason == "stop":
            output.token_ids = output.token_ids[:-1]
        return output

    monkeypatch.setattr(vllm_stand_in.LLM, "_one", without)
    assert policy(saved, TextBackend.vllm).complete(PROMPTS, None).tokens == ours.tokens


def test_vllm_without_room_or_folder_says_what_to_do(
    saved: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise ValueError("No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.")

    monkeypatch.setattr(vllm_stand_in, "LLM", full)
    with pytest.raises(OutOfMemory, match=r"Give it more of the GPU by generation\.memory_mb"):
        drawn(policy(saved, TextBackend.vllm))
    saved.name_or_path = "some/hub-id"
    with pytest.raises(JobError, match=r"'some/hub-id' is none; use generation\.backend=own"):
        policy(saved, TextBackend.vllm)
