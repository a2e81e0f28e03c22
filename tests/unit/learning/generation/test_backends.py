"""Others than our own decoder complete prompts as it does: with our draws the same tokens, else as likely ones."""

import math
import threading
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packaging.version import Version
from scipy.stats import chisquare
from transformers import PreTrainedModel

from pipeline.config.schema import GenerationConfig, SystemConfig, TextBackend
from pipeline.errors import JobError, OutOfMemory
from pipeline.learning.algos import stage_entry
from pipeline.learning.choices import HeadType
from pipeline.learning.datasets.addition import AdditionConfig
from pipeline.learning.datasets.registry import load_dataset
from pipeline.learning.generation.backends import paged, vllm_engine
from pipeline.learning.generation.decode import Decoded, DecodeSettings, Guidance, decode
from pipeline.learning.generation.policy import BestOfNPolicy, GreedyPolicy, TextPolicy
from pipeline.learning.generation.sampling import LIKELIEST, policy_logprobs, sample_keys, uniforms, uniforms_at
from pipeline.learning.generation.tilt import Tilt, preference_offset
from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.cache import ModelCache
from pipeline.learning.models.families import PAGED, why_not_paged
from pipeline.learning.models.flops import metered
from pipeline.learning.models.load import frozen, load_policy
from pipeline.learning.models.tiny import make_tokenizer
from pipeline.plan.compatibility import OLDEST_TRANSFORMERS
from tests.doubles import vllm_stand_in
from tests.doubles.adapters import write_rounds
from tests.doubles.families import FAMILIES, tiny_model
from tests.unit.learning.generation.conftest import language_model, opinionated

DATASET = load_dataset(AdditionConfig(kind="addition"))
PROMPTS = [[1, 2, 3, 4][: 1 + row % 4] for row in range(10)]
STEPS = 4
paged_alone = pytest.mark.skipif(
    Version(version("transformers")) < Version(OLDEST_TRANSFORMERS),
    reason=f"generation.backend=transformers is refused before transformers {OLDEST_TRANSFORMERS}",
)
ENDS = 9
RARE = 1e-3
"""A chance below which draws do not come from a distribution; seeds are fixed, so a test passes always or not."""


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


def chance(model: PreTrainedModel, prompt: list[int], tokens: list[int], top_p: float = 1.0) -> float:
    """The p-value of how often each token comes first."""
    with torch.inference_mode():
        logprobs = policy_logprobs(model(torch.tensor([prompt])).logits[:, -1], 1.0, top_p)
    expected = logprobs[0].double().exp().numpy() * len(tokens)
    counts = np.bincount(tokens, minlength=len(expected))
    assert not counts[expected == 0].any()
    often = expected >= 5
    seen = [*counts[often], counts[~often].sum()]
    wanted = np.array([*expected[often], expected[~often].sum()])
    kept = wanted > 0
    return float(chisquare(np.array(seen)[kept], wanted[kept] * (len(tokens) / wanted[kept].sum())).pvalue)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (1.3, 0.7)])
@paged_alone
def test_continuous_batching_gives_our_tokens_and_divergences(temperature: float, top_p: float) -> None:
    model = ending(language_model("gpt2"))
    told: list[tuple[int, int]] = []
    settings = {"temperature": temperature, "top_p": top_p}
    keys = sample_keys(0, "test", np.arange(len(PROMPTS)), 3)
    budgets = np.array([1 + row % STEPS for row in range(len(PROMPTS))])
    budgets[3] = 0
    found: dict[Any, Any] = {}
    for backend in (TextBackend.own, TextBackend.transformers):
        with metered() as meter:
            found[backend] = policy(model, backend, **settings).complete(
                PROMPTS,
                keys,
                samples=3,
                budgets=budgets,
                on_batch=lambda done, tokens: told.append((done, tokens)),
            )
        found[backend, "flops"] = meter.flops
    ours, theirs = found[TextBackend.own], found[TextBackend.transformers]
    assert theirs.tokens == ours.tokens
    assert theirs.kl == pytest.approx(ours.kl, abs=1e-5)
    assert any(tokens[-1:] == [ENDS] for tokens in theirs.tokens)
    assert told[-1] == (30, sum(map(len, theirs.tokens)))
    assert found[TextBackend.transformers, "flops"] == found[TextBackend.own, "flops"]


@paged_alone
def test_samples_are_queued_in_parts_and_a_caller_may_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    model = language_model("gpt2")
    expected = drawn(policy(model, TextBackend.own))
    monkeypatch.setattr(paged, "QUEUE", 7)
    monkeypatch.setattr(paged, "TURNS", 1)
    assert drawn(policy(model, TextBackend.transformers)).tokens == expected.tokens

    def stop(done: int, tokens: int) -> None:
        raise KeyboardInterrupt

    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        policy(model, TextBackend.transformers).complete(PROMPTS, None, on_batch=stop)
    assert threading.active_count() == threads


@pytest.mark.parametrize("greedy", [True, False])
@paged_alone
def test_a_broken_model_is_told_of(greedy: bool) -> None:
    model = language_model("gpt2")
    model.get_output_embeddings().register_forward_hook(lambda _, __, found: found.fill_(math.nan))
    keys = None if greedy else sample_keys(0, "test", np.arange(len(PROMPTS)), 1)
    with pytest.raises(JobError, match="what the model computes is no number"):
        policy(model, TextBackend.transformers).complete(PROMPTS, keys)


def test_draws_of_one_step_are_those_of_all() -> None:
    keys = sample_keys(3, "test", np.arange(5), 1)[:, 0]
    steps = np.array([0, 4, 2, 2, 7])
    assert (uniforms_at(keys, steps) == uniforms(keys, 8)[np.arange(5), steps]).all()


@paged_alone
def test_continuous_batching_draws_from_the_distribution_of_the_model() -> None:
    model = language_model("gpt2")
    keys = sample_keys(1, "test", np.arange(1), 400)
    found = policy(model, TextBackend.transformers, batch_size=50, max_new_tokens=1).complete(
        [[1, 2, 3]], keys, samples=400
    )
    assert chance(model, [1, 2, 3], [tokens[0] for tokens in found.tokens]) > RARE


@pytest.mark.parametrize("kind", [GreedyPolicy, BestOfNPolicy])
@paged_alone
def test_policies_that_decode_in_another_way_use_it_too(
    kind: type[TextPolicy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BestOfNPolicy, "count", 2)
    second = lambda _, __, tokens, count: np.ones(len(tokens) // count, np.int64)  # noqa: E731
    monkeypatch.setattr(BestOfNPolicy, "pick", second, raising=False)
    model = language_model("llama")
    ours = drawn(policy(model, TextBackend.own, kind=kind))
    assert drawn(policy(model, TextBackend.transformers, kind=kind)).tokens == ours.tokens


def test_an_engine_of_the_callers_own_completes_by_the_weights_as_they_are() -> None:
    """As a training that draws asks it for every batch."""

    class Echo:
        def complete(self, prompts: list[list[int]], keys: Any, *, samples: int, **_: Any) -> Decoded:
            last = int(model.lm_head.weight[0, 0].item())
            return Decoded([[last]] * (len(prompts) * samples), np.zeros(len(prompts) * samples))

    model, generation = language_model("gpt2"), GenerationConfig(max_new_tokens=2)
    asked = TextPolicy(model, make_tokenizer(DATASET), generation, DATASET, "cpu", decoder_of=lambda *_: Echo())
    for weight in (3, 4):
        torch.nn.init.constant_(model.lm_head.weight, weight)
        assert drawn(asked, samples=2).tokens == [[weight]] * 2 * len(PROMPTS)


def test_what_is_guided_is_decoded_by_us() -> None:
    model = language_model("gpt2")
    guidance = Guidance(opinionated(model, HeadType.q), Tilt(preference_offset(1.0), top_k=3))
    generation = GenerationConfig(backend=TextBackend.vllm, max_new_tokens=2)
    guided = TextPolicy(model, make_tokenizer(DATASET), generation, DATASET, "cpu", guidance)
    assert [len(tokens) for tokens in drawn(guided, samples=1).tokens] == [2] * len(PROMPTS)


@pytest.mark.parametrize("family", ["gemma3_text", "gpt_oss", "qwen3_moe"])
@paged_alone
def test_a_family_is_decoded_rightly(family: str) -> None:
    check_family(family)


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", [name for name in FAMILIES if name in PAGED])
def test_every_family_that_is_taken_is_decoded_rightly(family: str) -> None:
    check_family(family)


def check_family(family: str) -> None:
    model = frozen(tiny_model(family), "cpu")
    numbers = np.random.default_rng(0)
    prompts = [numbers.integers(2, 300, length).tolist() for length in (3, 17, 5, 40)]
    implementation = model.config._attn_implementation
    keys = sample_keys(0, "test", np.arange(4), 2)
    for given in (keys, None):
        ours = decode(model, prompts, [8] * 4, DecodeSettings(batch_size=8, eos_id=None), keys=given, samples=2)
        theirs = policy(model, TextBackend.transformers, batch_size=3, max_new_tokens=8).complete(
            prompts, given, samples=2
        )
        ends = [ours.tokens[place][: len(tokens)] for place, tokens in enumerate(theirs.tokens)]
        assert theirs.tokens == ends
    assert model.config._attn_implementation == implementation


def test_each_family_is_taken_or_told_why_not() -> None:
    reasons = {name: why_not_paged(make().to_dict()) for name, make in FAMILIES.items()}
    assert {name for name, why in reasons.items() if why is None} <= PAGED
    assert all("Use generation.backend=own" in why for why in reasons.values() if why)
    assert "layers of linear_attention" in str(reasons["qwen3_next"])
    assert "latent attention" in str(reasons["deepseek_v3"])
    assert "code of its own" in str(reasons["gptj"])
    assert "caps the scores" in str(why_not_paged({"model_type": "gemma2", "attn_logit_softcapping": 50.0}))
    assert "no kind that was found right" in str(why_not_paged({"model_type": "brand_new"}))
    with pytest.raises(JobError, match="gptj computes attention by code of its own"):
        policy(language_model("gptj"), TextBackend.transformers)


@paged_alone
def test_fewer_rows_are_tried_where_memory_runs_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = language_model("gpt2")
    expected, rows = drawn(policy(model, TextBackend.own)), []

    def check(module: object, args: object, kwargs: dict[str, Any]) -> None:
        rows.append(len(kwargs["logits_indices"]))
        if rows[-1] > 3:
            raise torch.OutOfMemoryError(f"no room for {rows[-1]} rows")

    handle = model.register_forward_pre_hook(check, with_kwargs=True)
    assert drawn(policy(model, TextBackend.transformers, hints=tmp_path)).tokens == expected.tokens
    assert capsys.readouterr().out.splitlines() == ["out of memory at batch 6: using 3"]
    rows.clear()
    drawn(policy(model, TextBackend.transformers, hints=tmp_path))
    assert max(rows) <= 3
    handle.remove()
    model.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("none")))
    with pytest.raises(OutOfMemory, match=r"tried: 3, 1\)\. Try a lower generation\.max_new_tokens"):
        drawn(policy(model, TextBackend.transformers, hints=tmp_path))


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
    assert told == [(10, sum(map(len, found.tokens)))]


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
    drawn(policy(saved, TextBackend.vllm, max_new_tokens=20, memory_mb=25 << 10))
    assert vllm_stand_in.ENGINES[1].settings["gpu_memory_utilization"] == 0.25


def test_what_vllm_draws_is_as_likely_as_what_we_do(saved: PreTrainedModel) -> None:
    keys = sample_keys(1, "test", np.arange(1), 400)
    found = {
        backend: policy(saved, backend, batch_size=400).complete([[1, 2, 3]], keys, samples=400)
        for backend in (TextBackend.own, TextBackend.vllm)
    }
    lengths = {backend: np.array(list(map(len, decoded.tokens))) for backend, decoded in found.items()}
    for decoded in found.values():
        assert chance(saved, [1, 2, 3], [tokens[0] for tokens in decoded.tokens]) > RARE
    ours, theirs = lengths[TextBackend.own], lengths[TextBackend.vllm]
    spread = np.sqrt(ours.var() / len(ours) + theirs.var() / len(theirs))
    assert abs(ours.mean() - theirs.mean()) < 3.5 * spread


def test_the_divergence_of_a_nucleus_is_read_from_the_texts(saved: PreTrainedModel) -> None:
    ours = policy(saved, TextBackend.own, top_p=0.7).complete(PROMPTS, None)
    found = policy(saved, TextBackend.vllm, top_p=0.7).complete(PROMPTS, None)
    assert found.kl == pytest.approx(ours.kl, abs=1e-5)
    assert found.kl.min() > 0


def test_vllm_takes_the_likeliest_tokens_of_samples_without_draws(saved: PreTrainedModel) -> None:
    greedily = policy(saved, TextBackend.vllm).complete(PROMPTS, None)
    found = policy(saved, TextBackend.vllm).complete(PROMPTS, np.full((len(PROMPTS), 1), LIKELIEST))
    assert found.tokens == greedily.tokens


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
