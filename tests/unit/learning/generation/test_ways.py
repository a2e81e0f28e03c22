"""Models whose layers are not all full attention are decoded as by reading the whole text for each token."""

from importlib.metadata import version

import pytest
import torch
import torch.nn.functional as F
from packaging.version import Version
from transformers import FalconConfig, GPT2Config, GPTNeoConfig, LlamaConfig, MistralConfig, PreTrainedConfig

from benchmarks.families import TILT, differing, some_prompts, value_model
from pipeline.learning.choices import HeadType
from pipeline.learning.generation.decode import DecodeSettings, Guidance, decode
from pipeline.learning.generation.guided import GuidedLogitsProcessor
from pipeline.learning.generation.row_models import BranchRows, Way, reading_of
from pipeline.learning.models.kinds import WITHOUT_SDPA
from tests.doubles.families import FAMILIES, VOCABULARY, tiny_model

OLD = Version(version("transformers")) < Version("5.23")


@pytest.mark.parametrize("family", ["gemma2", "gpt_neo", "deepseek_v3", "bloom", "mamba", "falcon_h1", "rwkv"])
def test_a_family_is_decoded_rightly_plain_and_guided(family: str) -> None:
    model, prompts = tiny_model(family), some_prompts(12, 3)
    # gemma2 has it by name before transformers 5.23, without what caps its scores (`load._attention`).
    assert model._supports_sdpa == (family not in WITHOUT_SDPA) or (family == "gemma2" and OLD)
    guides = [None, *(value_model(family, head) for head in HeadType)]
    with torch.inference_mode():
        assert [differing(model, guide, prompts, 3, 2) for guide in guides] == [[], [], []]


@pytest.mark.parametrize("family", ["mamba", "mixtral", "qwen3_next"])
def test_guided_decoding_takes_weights_of_two_bytes(family: str) -> None:
    model, prompts = tiny_model(family).bfloat16(), some_prompts(9, 3)
    for head in HeadType:
        guidance = Guidance(value_model(family, head).bfloat16(), TILT)
        found = decode(model, prompts, [3, 3], DecodeSettings(batch_size=2), keys=None, guidance=guidance)
        assert [len(tokens) for tokens in found.tokens] == [3, 3]


@pytest.mark.parametrize("family", ["llama", "qwen3", "cohere", "mamba", "mixtral"])
def test_under_autocast_tokens_are_those_that_generate_writes(family: str) -> None:
    # As a policy draws while it is trained: of qwen3, keys are then float32, by their norm, and values bfloat16.
    model, prompts = tiny_model(family), [[3, 4, 5, 6], [7, 8], [9, 10, 11]]
    with torch.autocast("cpu", torch.bfloat16):
        found = decode(model, prompts, [6] * 3, DecodeSettings(batch_size=4), keys=None, samples=2).tokens
        for prompt, tokens in zip(prompts, found[::2], strict=True):
            whole = model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False, pad_token_id=0)
            assert tokens == whole[0, len(prompt) :].tolist()


@pytest.mark.parametrize("family", ["gpt_neo", "falcon_h1", "rwkv"])
def test_candidates_that_are_too_many_at_once_are_read_in_parts(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BranchRows, "FEW", 1)
    monkeypatch.setattr(BranchRows, "BRANCHES", 1)
    with torch.inference_mode():
        guide = value_model(family, HeadType.v)
        assert differing(tiny_model(family), guide, some_prompts(9, 3, 12), 3, 3) == []


@pytest.mark.parametrize("head", HeadType)
def test_padding_before_a_text_changes_no_state_where_transformers_generates(head: HeadType) -> None:
    processor = GuidedLogitsProcessor(value_model("rwkv", head), TILT, pad_id=0)
    prompts = [torch.tensor([prompt]) for prompt in some_prompts(9, 3, 9)]
    scores = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(0))
    apart = torch.cat([processor(text, row[None]) for text, row in zip(prompts, scores, strict=True)])
    padded = torch.cat([F.pad(text, (9 - text.shape[1], 0)) for text in prompts])
    torch.testing.assert_close(processor(padded, scores), apart, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "way"),
    [
        (GPT2Config(), Way.slots),
        (LlamaConfig(), Way.slots),
        (FalconConfig(alibi=False), Way.slots),
        (FalconConfig(alibi=True), Way.own),
        (MistralConfig(sliding_window=None), Way.slots),
        (MistralConfig(sliding_window=8), Way.own),
        (FAMILIES["llama4_text"](), Way.own),
        (FAMILIES["jamba"](), Way.own),
        (FAMILIES["recurrent_gemma"](), Way.anew),
        (FAMILIES["gemma3"](), Way.own),
        (FAMILIES["gpt_neo"](), Way.own),
        (GPTNeoConfig(max_position_embeddings=256), Way.slots),
        (FAMILIES["llava"](), Way.slots),
    ],
    ids=lambda value: value.model_type if isinstance(value, PreTrainedConfig) else None,
)
def test_the_configuration_tells_how_a_model_is_read(config: PreTrainedConfig, way: Way) -> None:
    found = reading_of(config)
    assert found.way is way
    assert bool(found.reason) == (way is not Way.slots)
    assert found.has_state == (config.model_type == "jamba")
