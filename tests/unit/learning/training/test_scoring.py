"""Without padding the same is computed by the models for which it may be left out; others are left as they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

from pipeline.config.schema import DType
from pipeline.errors import JobError
from pipeline.learning.algos import policy_config
from pipeline.learning.algos.dpo import DPOConfig
from pipeline.learning.choices import HeadType
from pipeline.learning.generation import decode, policy
from pipeline.learning.models.load import checkpoint_activations
from pipeline.learning.models.value import ValueModel, value_model_from
from pipeline.learning.training import loop, preferences, scoring, value
from pipeline.learning.training.lora import with_adapters
from pipeline.learning.training.sequences import FILE, Sequences, batch_of
from pipeline.outputs.formats import Sampling
from tests.doubles.families import tiny_model
from tests.doubles.models import fitting as small_fitting
from tests.doubles.models import tiny_policy
from tests.unit.learning.generation.conftest import language_model
from tests.unit.learning.training.test_loop import sequences as value_sequences

# A window that is shorter than texts, experts, latent attention.
RIGHT = ["llama", "gpt2", "mistral", "gemma3_text", "mixtral", "deepseek_v3", "cohere2"]
# Biases by distance, scores that are capped, states, a window without a limit that attention is told, chunks.
LEFT = ["bloom", "gemma2", "mamba", "gpt_oss", "llama4_text"]


def sequences(count: int = 16) -> Sequences:
    generator = np.random.default_rng(0)
    lengths = generator.integers(4, 30, count)
    ids = [generator.integers(2, 300, length).tolist() for length in lengths]
    starts = generator.integers(0, 4, count).tolist()
    starts[3] = int(lengths[3])  # nothing of this one is supervised
    return Sequences.of(ids, starts, generator.random(count).tolist())


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def agree(model: nn.Module, compute: Callable[[], Tensor], part: nn.Module | None = None) -> None:
    expected = compute()
    expected.square().sum().backward()
    before = gradients(model)
    with scoring.without_padding(model if part is None else part, True):
        assert scoring.is_unpadded(model if part is None else part)
        found = compute()
        found.square().sum().backward()
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    after = gradients(model)
    assert after.keys() == before.keys()
    for name, one in after.items():
        torch.testing.assert_close(one, before[name], atol=1e-4 * float(before[name].abs().max() + 1), rtol=1e-3)


# That logits are made in parts depends on no family; one scales them.
@pytest.mark.parametrize(
    ("family", "at_once"), [*((family, 1 << 27) for family in RIGHT), ("gpt2", 700), ("cohere2", 700)]
)
def test_what_is_computed_is_the_same(family: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "LOGITS_AT_ONCE", at_once)
    model = tiny_model(family).requires_grad_(True)
    batch = batch_of(sequences(), np.arange(16), "cpu")
    before = model.config._attn_implementation
    agree(model, lambda: scoring.completion_logprobs(model, batch, 0.8))
    if family == "gpt2":
        agree(model, lambda: torch.stack(scoring.logprobs_and_entropies(model, batch, 0.8)))
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("family", LEFT)
def test_what_would_be_wrong_is_left_as_it_is(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_model(family)
    batch = batch_of(sequences(), np.arange(16), "cpu")
    with torch.no_grad(), scoring.without_padding(model, True):
        assert not scoring.is_unpadded(model)
        assert "this model needs padded rows" in capsys.readouterr().out
        found = scoring.completion_logprobs(model, batch)
    with torch.no_grad():
        assert torch.equal(found, scoring.completion_logprobs(model, batch))


def test_adapters_and_checkpointed_layers_go_along() -> None:
    model = with_adapters(tiny_model("llama").requires_grad_(True), policy_config.LoraSettings(rank=2), seed=0)
    checkpoint_activations(model)
    model.enable_input_require_grads()
    model.train()
    batch = batch_of(sequences(), np.arange(16), "cpu")
    agree(model, lambda: scoring.completion_logprobs(model, batch))


def fitting(epochs: int = 1, **settings: Any) -> loop.Fitting:
    return small_fitting(epochs=epochs, learning_rate=1e-3, **{"micro_batch_size": 4, **settings})


def trained(method: str, how: loop.Fitting) -> list[float]:
    data, model = sequences(), tiny_model("llama").requires_grad_(True)
    if method == "SFT":
        return loop.fit_sft(model, data, how)
    return value.fit_value(value_model_from(model, HeadType.v).requires_grad_(True), data, how)


@cache
def losses_with_padding(method: str) -> list[float]:
    return trained(method, fitting())


# All methods go through one loop, which does the one as well as the other.
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        *((method, {"padding_free": True, "group_by_length": True}) for method in ("SFT", "value")),
        *(("SFT", {setting: True}) for setting in ("padding_free", "group_by_length")),
    ],
)
def test_trainings_have_the_same_losses_step_by_step(method: str, settings: dict[str, bool]) -> None:
    assert trained(method, fitting(**settings)) == pytest.approx(losses_with_padding(method), abs=1e-4)


# -- test logits -------------------------------------------------------------------------------------------------
# Log-probabilities without all logits at once are those with all of them.


FAMILY = "mixtral"


@pytest.mark.parametrize("adapters", [False, True])
def test_parts_are_what_the_whole_is(adapters: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-probabilities, entropies over the whole vocabulary, and gradients of both."""
    model = tiny_model(FAMILY).requires_grad_(True)
    if adapters:
        model = with_adapters(model, policy_config.LoraSettings(rank=2, target_modules=["q_proj"]), seed=0)
    rows = [list(range(2, 12)), list(range(20, 14, -1)), [5] * 9]
    batch = batch_of(Sequences.of(rows, [4, 2, 6], [0.0] * 3), torch.arange(3).numpy(), "cpu")
    assert scoring.is_plain(model, batch.ids)
    whole = torch.stack(scoring.logprobs_and_entropies(model, batch, 0.7))
    assert torch.equal(whole[0], scoring.completion_logprobs(model, batch, 0.7))
    expected = torch.distributions.Categorical(logits=model(batch.ids).logits[:, :-1] / 0.7).entropy()
    torch.testing.assert_close(whole[1][:, 1:], expected * batch.mask[:, 1:], atol=1e-6, rtol=1e-6)
    monkeypatch.setattr(scoring, "is_cut", lambda *_: True)
    monkeypatch.setattr(scoring, "LOGITS_AT_ONCE", 1)
    parts = torch.stack(scoring.logprobs_and_entropies(model, batch, 0.7))
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-6)
    whole.sum().backward()
    theirs = gradients(model)
    parts.sum().backward()
    ours = gradients(model)
    assert ours.keys() == theirs.keys()
    for name, one in ours.items():
        torch.testing.assert_close(one, theirs[name], atol=1e-5, rtol=1e-4)


def test_logits_that_are_capped_are_left_to_the_model() -> None:
    model = tiny_model("gemma2")
    assert model.config.final_logit_softcapping
    assert not scoring.is_plain(model, torch.arange(2, 8)[None])


# -- test sequences ----------------------------------------------------------------------------------------------
# Files of labelled sequences and of samples that are not as they must be: one message says what is wrong.


GOOD = {
    "ids": np.array([[1, 2, 3], [4, 5, 0]], np.int32),
    "lengths": np.array([3, 2], np.int32),
    "starts": np.array([1, 1], np.int32),
    "labels": np.array([1, 0], np.float32),
}


def test_positions_in_between_may_be_left_out(tmp_path: Path) -> None:
    marks = [[False, True, False, True], [False, True]]
    data = Sequences.supervised_at([[1, 2, 3, 4], [5, 6]], marks, [1.0, 0.0])
    data.save(tmp_path)
    (tmp_path / "plain").mkdir()
    Sequences.supervised_at([[7, 8, 9, 1, 2]], [[False, False, True, True, True]], [1.0]).save(tmp_path / "plain")
    found = Sequences.load([tmp_path, tmp_path / "plain"])
    expected = [[False, True, False, True, False], [False, True, False, False, False], [False] * 2 + [True] * 3]
    assert found.mask().tolist() == expected
    assert found.supervised.tolist() == [2, 1, 3]
    assert batch_of(found, np.array([2, 0]), "cpu").mask.tolist() == [expected[2], expected[0]]
    assert found.some(np.array([1])).mask().tolist() == [expected[1]]
    assert Sequences.load([tmp_path / "plain"]).left_out is None


@pytest.mark.parametrize("padding_free", [False, True])
def test_what_is_left_out_counts_in_no_log_probability(padding_free: bool) -> None:
    model = tiny_model("llama")
    ids = [[3, 4, 5, 6, 7, 8], [9, 10, 11, 12]]
    whole = Sequences.of(ids, [2, 1], [1.0, 0.0])
    marks = [[False, False, True, False, False, True], [False, True, True, True]]
    batches = [
        batch_of(each, np.arange(2), "cpu") for each in (whole, Sequences.supervised_at(ids, marks, [1.0, 0.0]))
    ]
    with torch.no_grad(), scoring.without_padding(model, padding_free):
        every, some = (scoring.completion_logprobs(model, batch) for batch in batches)
    assert every[0, 3:5].abs().min() > 0
    torch.testing.assert_close(some, torch.where(batches[1].mask, every, 0.0))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"labels": None}, "it lacks the array `labels`; it has ids, lengths, starts"),
        ({"ids": np.zeros(2, np.int32)}, r"expected `ids` of shape [N,T] and whole numbers, got [2] of int32"),
        (
            {"labels": np.zeros(3, np.float32)},
            r"expected `labels` of shape [N] with N=2 and floating numbers, got [3]",
        ),
        ({"lengths": np.array([9, 1], np.int32)}, "expected 0 <= `starts` <= `lengths` <= T"),
        ({"ids": -GOOD["ids"]}, "found a negative number"),
    ],
)
def test_other_arrays_are_refused_in_one_message(
    tmp_path: Path, changed: dict[str, np.ndarray], said: str
) -> None:
    save_file({name: array for name, array in {**GOOD, **changed}.items() if array is not None}, tmp_path / FILE)
    with pytest.raises(JobError) as caught:
        Sequences.load([tmp_path])
    assert str(caught.value).startswith(f"{FILE} in the output of (unknown job) ({tmp_path}) cannot be used: ")
    assert said in str(caught.value)


# -- test policy -------------------------------------------------------------------------------------------------
# Training weights: log-probabilities, divergence, groups, adapters.


def some_sequences(count: int = 12) -> Sequences:
    generator = np.random.default_rng(0)
    lengths = generator.integers(5, 11, count)
    ids = [generator.integers(0, 10, length).tolist() for length in lengths]
    return Sequences.of(ids, [2 + row % 3 for row in range(count)], [0.0] * count)


def test_log_probabilities_are_those_of_each_sequence_alone() -> None:
    model, data = tiny_policy(), some_sequences()
    batch = batch_of(data, np.arange(len(data)), "cpu")
    with torch.no_grad():
        found = scoring.completion_logprobs(model, batch, temperature=0.7)
        for row in range(len(data)):
            ids = torch.from_numpy(data.ids[row, : data.lengths[row]].astype(np.int64))
            alone = (model(ids[None]).logits[0] / 0.7).log_softmax(-1)
            for place in range(batch.ids.shape[1]):
                inside = data.starts[row] <= place < data.lengths[row]
                expected = float(alone[place - 1, ids[place]]) if inside else 0.0
                assert float(found[row, place]) == pytest.approx(expected, abs=1e-5)


def test_divergence_is_the_sum_over_the_vocabulary_at_every_step() -> None:
    model, reference, data = tiny_policy(0), tiny_policy(1), some_sequences(4)
    batch = batch_of(data, np.arange(4), "cpu")
    with torch.no_grad():
        found = scoring.sequence_divergence(model, reference, batch, Sampling(temperature=1.3))
        assert scoring.sequence_divergence(model, model, batch, Sampling(temperature=1.3)).tolist() == [0.0] * 4
        for row in range(4):
            ids = torch.from_numpy(data.ids[row, : data.lengths[row]].astype(np.int64))[None]
            one, other = ((net(ids).logits[0] / 1.3).log_softmax(-1) for net in (model, reference))
            steps = (one.exp() * (one - other)).sum(-1)[data.starts[row] - 1 : data.lengths[row] - 1]
            assert float(found[row]) == pytest.approx(float(steps.sum()), abs=1e-4)
    assert (found > 0).all()


def micro_batches(data: Sequences, group: int, how: loop.Fitting) -> list[tuple[list[int], list[int]]]:
    """Places of the sequences of each micro-batch of a training, and of those of its whole batch."""
    seen = []

    def loss_of(batch: Any, part: Any, whole: Any) -> Tensor:
        seen.append((part.tolist(), whole.tolist()))
        return torch.zeros((), requires_grad=True)

    loop.fit(tiny_policy(), loop.TrainingSet(data, loss_of, group=group), how)
    return seen


@pytest.mark.parametrize("micro_batch_size", [1, 7, 100])
def test_no_micro_batch_splits_a_group(micro_batch_size: int) -> None:
    for part, whole in micro_batches(some_sequences(), 4, small_fitting(micro_batch_size)):
        assert set(part) <= set(whole)
        assert len(part) % 4 == 0
        assert [row // 4 for row in part] == [part[at - at % 4] // 4 for at in range(len(part))]
    with pytest.raises(ValueError, match="in groups of 3"):
        micro_batches(some_sequences(), 3, small_fitting(micro_batch_size))


def test_like_lengths_share_a_micro_batch_and_steps_keep_their_sequences() -> None:
    generator = np.random.default_rng(1)
    ids = [generator.integers(0, 10, length).tolist() for length in generator.integers(3, 25, 32)]
    data = Sequences.of(ids, [2] * 32, [0.0] * 32)
    mixed, alike = (
        micro_batches(data, 2, small_fitting(4, batch_size=16, group_by_length=grouped))
        for grouped in (False, True)
    )
    assert [set(whole) for _, whole in alike] == [set(whole) for _, whole in mixed]
    assert all([row // 2 for row in part[0::2]] == [row // 2 for row in part[1::2]] for part, _ in alike)
    padded, less = (sum(4 * max(data.lengths[part]) for part, _ in found) for found in (mixed, alike))
    assert less < padded


# -- test gradient checkpointing ---------------------------------------------------------------------------------
# Gradient checkpointing computes layers twice, to the same gradients, and without a word of warning.


def fit(checkpointing: bool) -> tuple[ValueModel, list[float], int]:
    model = value_model_from(language_model("llama"), HeadType.v).requires_grad_(True)
    seen = []
    model.backbone.layers[0].mlp.register_forward_pre_hook(lambda *_: seen.append(1))
    how = small_fitting(warmup_steps=2, gradient_checkpointing=checkpointing)
    losses = value.fit_value(model, value_sequences(), how)
    return model, losses, len(seen)


def test_checkpointing_saves_memory_and_changes_nothing_else() -> None:
    plain, losses, computed = fit(checkpointing=False)
    saving, same_losses, twice = fit(checkpointing=True)
    assert twice == 2 * computed
    assert same_losses == losses
    for one, other in zip(plain.parameters(), saving.parameters(), strict=True):
        assert torch.equal(one, other)


# -- test precision ----------------------------------------------------------------------------------------------
# Trainings that compute in bfloat16: weights stay float32, and what is compared is computed alike.


def pairs() -> Sequences:
    generator = np.random.default_rng(0)
    return Sequences.of(generator.integers(0, 10, (16, 8)).tolist(), [3] * 16, [1.0, 0.0] * 8)


def fit_pairs(dtype: DType) -> tuple[GPT2LMHeadModel, list[float]]:
    model, data = tiny_policy(), pairs()
    with loop.computing_in(dtype, "cpu"):
        anchor = scoring.score_sequences(
            data,
            lambda batch: scoring.completion_logprobs(model, batch).double().sum(-1),
            micro_batch_size=8,
            device="cpu",
        )
    made = preferences.dpo_set(model, data, anchor, DPOConfig(beta=1.0), "cpu")
    return model, loop.fit(model, made, small_fitting(epochs=4, dtype=dtype))


def test_a_policy_that_computes_like_its_anchor_starts_at_it() -> None:
    model, losses = fit_pairs(DType.bfloat16)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert losses[0] == pytest.approx(np.log(2), abs=1e-6)
    assert losses[-1] < 0.5 < losses[0]
    assert losses != fit_pairs(DType.float32)[1]


def test_a_policy_is_as_likely_to_draw_as_training_begins_with() -> None:
    """What drew was rounded; scored by that, the ratio of GRPO would not be 1 at the first step."""
    exact, prompts, drawn = tiny_policy(), [[1, 2, 3]] * 4, [[4, 5], [6, 7, 8], [9], [1, 1]]
    settings = decode.DecodeSettings(batch_size=4)
    with loop.computing_in(DType.bfloat16, "cpu"):
        found = policy.completion_scores(exact, prompts, drawn, settings)
        data = Sequences.of([[*p, *d] for p, d in zip(prompts, drawn, strict=True)], [3] * 4, [0.0] * 4)
        batch = batch_of(data, np.argsort(data.lengths, kind="stable"), "cpu")
        begun = scoring.completion_logprobs(exact, batch).detach()
    first = begun[batch.mask].numpy()
    np.testing.assert_array_equal(np.concatenate([found[at] for at in (2, 0, 3, 1)]), first)
    rounded = policy.completion_scores(tiny_policy().bfloat16(), prompts, drawn, settings)
    assert any(not np.array_equal(one, other) for one, other in zip(found, rounded, strict=True))
