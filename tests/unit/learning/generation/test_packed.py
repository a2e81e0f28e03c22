"""Rows by any way of reading, and candidates read as one sequence, are what each text is by itself."""

from collections.abc import Callable
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from packaging.version import Version
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from benchmarks.families import TILT, differing, some_prompts, value_model
from pipeline.learning.choices import HeadType
from pipeline.learning.generation import decode, guided, row_cache, row_models
from pipeline.learning.models.kinds import WITHOUT_SDPA
from pipeline.learning.models.value import ValueModel
from tests.doubles.families import FAMILIES, VOCABULARY, tiny_model
from tests.unit.learning.generation.conftest import VOCABULARY as FEW
from tests.unit.learning.generation.conftest import language_model

MakeValue = Callable[[hf.PreTrainedModel, HeadType], ValueModel]
PACKED = ["gpt2", "llama", "qwen2", "neox"]
BRANCHED = ["gpt_neo", "gemma2"]
VALID = torch.tensor([[True, False, False], [True, True, True], [True, True, False], [True, False, True]])


class Run:
    """Rows that grow by random candidates, read by the guide and beside it without a cache."""

    def __init__(self, value: ValueModel, device: str = "cpu", padded: bool = True) -> None:
        self.value, self.device = value.to(device), device
        self.numbers = np.random.default_rng(0)
        lengths = [3, 1, 5, 4] if padded else [4] * 4
        self.texts = [self.numbers.integers(1, FEW, length).tolist() for length in lengths]
        self.guide = row_models.guide_of(self.value, len(self.texts), 20, 0)
        self.guide.stage(self.texts)
        self.guide.enter(torch.arange(len(self.texts), device=device), np.array(list(map(len, self.texts))))

    def step(self, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Values of the guide and of each text alone."""
        shape = (len(self.texts), valid.shape[1])
        candidates = torch.from_numpy(self.numbers.integers(1, FEW, shape)).to(self.device)
        values = self.guide.values(candidates, valid.to(self.device))
        assert values.shape[:2] == shape
        assert values.isfinite().all()
        alone = [
            self.alone([[*text, token] for token in row[there].tolist()])
            for text, row, there in zip(self.texts, candidates.cpu(), valid, strict=True)
        ]
        columns = torch.stack([row.nonzero().max() for row in valid]).to(self.device)
        tokens = candidates.gather(1, columns[:, None])[:, 0]
        self.guide.advance(tokens, columns)
        self.texts = [[*text, token] for text, token in zip(self.texts, tokens.tolist(), strict=True)]
        return values[valid.to(self.device)].cpu(), torch.cat(alone).cpu()

    def alone(self, texts: list[list[int]]) -> Tensor:
        """Values of texts of one length, each read as a whole."""
        return self.value(torch.tensor(texts, device=self.device))[:, -1]

    def keep(self, rows: list[int]) -> None:
        self.guide.keep(np.array(rows))
        self.texts = [self.texts[row] for row in rows]


@pytest.mark.parametrize(
    ("kind", "padded"), [*((kind, True) for kind in (*PACKED, *BRANCHED)), ("llama", False), ("gemma2", False)]
)
@torch.inference_mode()
def test_values_are_those_of_each_candidate_alone(make_value: MakeValue, kind: str, padded: bool) -> None:
    value = make_value(language_model(kind), HeadType.v)
    run, before = Run(value, padded=padded), value.backbone.config._attn_implementation
    assert isinstance(run.guide, row_models.CandidateRows if kind in PACKED else row_models.BranchRows)
    for valid in (VALID, VALID[:, :1], VALID.flip(0)):
        ours, alone = run.step(valid)
        assert torch.allclose(ours, alone, atol=2e-4)
    run.keep([3, 1])
    for valid in (VALID[[1, 0]], VALID[[3, 2]]):
        ours, alone = run.step(valid)
        assert torch.allclose(ours, alone, atol=2e-4)
    assert value.backbone.config._attn_implementation == before  # the model is left as it was


@pytest.mark.parametrize(("kind", "padded"), [("gpt2", False), ("llama", True)])
@torch.inference_mode()
def test_the_prefix_by_a_kernel_is_merged_with_the_candidate(
    make_value: MakeValue, kind: str, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [Run(make_value(language_model(kind), HeadType.v), padded=padded) for _ in range(2)]
    for valid in (VALID, VALID[:, :1], VALID.flip(0), VALID):
        found = []
        for run, merged in zip(runs, (False, True), strict=True):
            monkeypatch.setattr(row_cache, "is_merged", lambda *_, merged=merged: merged)
            found.append(run.step(valid))
        (before, alone), (ours, _) = found
        assert torch.allclose(ours, before, atol=2e-5)
        assert torch.allclose(ours, alone, atol=2e-4)


@pytest.mark.parametrize("merged", [True, False])
def test_a_score_with_itself_is_as_exact_as_those_with_the_prefix(
    merged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 a product of its own would be rounded, and its weight off by several percent."""
    numbers = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 4, 64, 128, generator=numbers) for _ in range(2))
    query, key = (query + 2 * key).bfloat16(), key.bfloat16()  # scores of about 16
    # Each row has one token before its candidate, with the same key: both have half of the weight.
    cache = row_cache.RowCache(64, 2, "cpu")
    cache.take_in(0, key[0].transpose(0, 1)[:, :, None], torch.zeros(64, 4, 1, 128, dtype=torch.bfloat16))
    cache._set(np.ones(64, np.int64))
    monkeypatch.setattr(row_cache, "is_merged", lambda *_: merged)
    step = row_cache.PackedStep(row_cache.Packing(torch.ones(64, 1, dtype=torch.bool)), cache, None)
    for layer in cache.layers:
        layer.show()
    found = step.attend(0, query, key, torch.ones_like(key), scaling=2.0**-4)[..., 0].float()
    assert float((found - 0.5).abs().max()) < (0.004 if merged else 0.02)  # where scores lie in memory, rounded


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", PACKED)
@torch.inference_mode()
def test_values_on_a_gpu(make_value: MakeValue, kind: str) -> None:
    run = Run(make_value(language_model(kind), HeadType.v), "cuda")
    for valid in (VALID, VALID[:, :1], VALID.flip(0)):
        ours, alone = run.step(valid)
        assert torch.allclose(ours, alone, atol=2e-3)


@torch.inference_mode()
def test_a_model_that_goes_past_the_interface_has_a_row_for_each_candidate(make_value: MakeValue) -> None:
    """As models do whose code has an attention of its own, though they say otherwise."""
    value = make_value(language_model("llama"), HeadType.v)
    value.backbone.set_attn_implementation("eager")
    attention = value.backbone.layers[1].self_attn
    attention.config = type(attention.config).from_dict(attention.config.to_dict())
    run = Run(value)
    assert isinstance(run.guide, row_models.BranchRows)
    for _ in range(2):
        ours, alone = run.step(VALID)
        assert torch.allclose(ours, alone, atol=2e-4)


@pytest.mark.parametrize("kind", ["numbers", "marks", "one row of it", "several queries", "of transformers"])
def test_heads_that_share_keys_see_what_they_would_with_keys_of_their_own(kind: str) -> None:
    """As `sdpa` of transformers 5.23 has it; machines with cards have versions that repeat keys."""
    numbers, queries = torch.Generator().manual_seed(0), 4 if kind == "several queries" else 1
    query = torch.randn(3, 8, queries, 16, generator=numbers)
    key, value = (torch.randn(3, 2, 21, 16, generator=numbers) for _ in range(2))
    mask = torch.zeros(3, 1, queries, 21).masked_fill(
        torch.arange(21) > torch.tensor([20, 5, 0]).view(3, 1, 1, 1), -1e9
    )
    mask = {"marks": mask == 0, "one row of it": mask[:1]}.get(kind, mask)
    options: dict[str, Any] = {"position_bias": torch.ones(1, 8, 1, 21)} if kind == "of transformers" else {}
    module: Any = SimpleNamespace(num_key_value_groups=4, is_causal=True)
    ours, _ = row_cache.grouped_attention(module, query, key, value, mask, **options)
    if options:
        theirs = sdpa_attention_forward(module, query, key, value, mask, **options)[0]
    else:
        keys, values = (states.repeat_interleave(4, 1) for states in (key, value))
        theirs = torch.nn.functional.scaled_dot_product_attention(query, keys, values, mask).transpose(1, 2)
    assert torch.allclose(ours, theirs, atol=1e-6)


OLD = Version(version("transformers")) < Version("5.23")


@pytest.mark.parametrize("family", ["gemma2", "gpt_neo", "deepseek_v3", "bloom", "mamba", "falcon_h1", "rwkv"])
def test_a_family_is_decoded_rightly_plain_and_guided(family: str) -> None:
    model, prompts = tiny_model(family), some_prompts(12, 3)
    # gemma2 has it by name before transformers 5.23, without what caps its scores (`load._attention`).
    assert model._supports_sdpa == (family not in WITHOUT_SDPA) or (family == "gemma2" and OLD)
    guides = [None, *(value_model(family, head) for head in HeadType)]
    with torch.inference_mode():
        assert [differing(model, guide, prompts, 3, 2) for guide in guides] == [[], [], []]


@pytest.mark.parametrize("family", ["qwen3", "mamba"])
def test_under_autocast_tokens_are_those_that_generate_writes(family: str) -> None:
    # As a policy draws while it is trained: of qwen3, keys are then float32, by their norm, and values bfloat16.
    model, prompts = tiny_model(family), [[3, 4, 5, 6], [7, 8], [9, 10, 11]]
    with torch.autocast("cpu", torch.bfloat16):
        found = decode.decode(
            model, prompts, [6] * 3, decode.DecodeSettings(batch_size=4), keys=None, samples=2
        ).tokens
        for prompt, tokens in zip(prompts, found[::2], strict=True):
            whole = model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False, pad_token_id=0)
            assert tokens == whole[0, len(prompt) :].tolist()


@pytest.mark.parametrize("family", ["gpt_neo", "rwkv"])
def test_candidates_that_are_too_many_at_once_are_read_in_parts(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_models.BranchRows, "FEW", 1)
    monkeypatch.setattr(row_models.BranchRows, "BRANCHES", 1)
    with torch.inference_mode():
        guide = value_model(family, HeadType.v)
        assert differing(tiny_model(family), guide, some_prompts(9, 3, 12), 3, 3) == []


@pytest.mark.parametrize("head", HeadType)
def test_padding_before_a_text_changes_no_state_where_transformers_generates(head: HeadType) -> None:
    processor = guided.GuidedLogitsProcessor(value_model("rwkv", head), TILT, pad_id=0)
    prompts = [torch.tensor([prompt]) for prompt in some_prompts(9, 3, 9)]
    scores = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(0))
    apart = torch.cat([processor(text, row[None]) for text, row in zip(prompts, scores, strict=True)])
    padded = torch.cat([F.pad(text, (9 - text.shape[1], 0)) for text in prompts])
    torch.testing.assert_close(processor(padded, scores), apart, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "way"),
    [
        (hf.LlamaConfig(), row_models.Way.slots),
        (hf.FalconConfig(alibi=True), row_models.Way.own),
        (hf.MistralConfig(sliding_window=8), row_models.Way.own),
        (FAMILIES["jamba"](), row_models.Way.states),
        (FAMILIES["recurrent_gemma"](), row_models.Way.anew),
        (FAMILIES["gpt_neo"](), row_models.Way.own),
        (FAMILIES["llava"](), row_models.Way.slots),
    ],
    ids=lambda value: value.model_type if isinstance(value, hf.PreTrainedConfig) else None,
)
def test_the_configuration_tells_how_a_model_is_read(config: hf.PreTrainedConfig, way: row_models.Way) -> None:
    assert row_models.reading_of(config) is way
