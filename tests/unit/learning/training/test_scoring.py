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

from pipeline.errors import JobError, JobStopped
from pipeline.learning.algos import dpo, policy_config
from pipeline.learning.choices import HeadType
from pipeline.learning.models.load import checkpoint_activations
from pipeline.learning.models.value import value_model_from
from pipeline.learning.training import checkpoint, grpo, loop, preferences, scoring
from pipeline.learning.training.lora import with_adapters
from pipeline.learning.training.sequences import FILE, Sequences, batch_of
from pipeline.learning.training.value import fit_reward_model, fit_value
from tests.doubles.families import tiny_model
from tests.doubles.fitting import fitting as small_fitting
from tests.doubles.fitting import of_grpo

# A window that is shorter than texts, experts, latent attention.
RIGHT = ["llama", "gpt2", "mistral", "gemma3_text", "mixtral", "deepseek_v3", "cohere2"]
# Biases by distance, scores that are capped, states, a window without a limit that attention is told, chunks.
LEFT = ["bloom", "gemma2", "mamba", "qwen3_next", "gpt_oss", "llama4_text"]


METHODS = ["SFT", "DPO", "GRPO", "value", "reward model"]


def sequences(count: int = 16, supervised: bool = False) -> Sequences:
    generator = np.random.default_rng(0)
    lengths = generator.integers(4, 30, count)
    ids = [generator.integers(2, 300, length).tolist() for length in lengths]
    starts = generator.integers(0, 4, count).tolist()
    if not supervised:
        starts[3] = int(lengths[3])  # nothing of this one is
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


def trained(method: str, how: loop.Fitting) -> tuple[nn.Module, list[float]]:
    data, model = sequences(supervised=method == "reward model"), tiny_model("llama").requires_grad_(True)
    if method == "SFT":
        return model, loop.fit_sft(model, data, how)
    if method == "DPO":
        made = preferences.dpo_set(model, data, np.linspace(-30.0, -20.0, 16), dpo.DPOConfig(beta=0.5), "cpu")
        return model, loop.fit(model, made, how)
    if method == "GRPO":
        old = np.full((16, 30), -5.7, np.float32)
        better = np.linspace(-1, 1, 16, dtype=np.float32)
        made = grpo.grpo_set(model, grpo.Samples(data, old), better, old, of_grpo(beta=0.1), "cpu", longest=30)
        return model, loop.fit(model, made, how)
    value = value_model_from(model, HeadType.v).requires_grad_(True)
    return value, (fit_value if method == "value" else fit_reward_model)(value, data, how)


@cache
def losses_with_padding(method: str) -> list[float]:
    return trained(method, fitting())[1]


# All methods go through one loop, which does the one as well as the other.
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        *((method, {"padding_free": True, "group_by_length": True}) for method in METHODS),
        *(("SFT", {setting: True}) for setting in ("padding_free", "group_by_length")),
    ],
)
def test_trainings_have_the_same_losses_step_by_step(method: str, settings: dict[str, bool]) -> None:
    assert trained(method, fitting(**settings))[1] == pytest.approx(losses_with_padding(method), abs=1e-4)


def test_a_training_that_is_stopped_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"padding_free": True, "group_by_length": True, "epochs": 2}
    calm, losses = trained("SFT", fitting(**settings))
    calls = iter(range(100))
    stopping = checkpoint.Checkpoints(tmp_path, {}, every_minutes=0, stopping=lambda: next(calls) == 1)
    with pytest.raises(JobStopped):
        trained("SFT", fitting(**settings, checkpoint=stopping))
    resumed, same = trained(
        "SFT", fitting(**settings, checkpoint=checkpoint.Checkpoints(tmp_path, {}, every_minutes=0))
    )
    assert same == losses
    assert all(torch.equal(one, other) for one, other in zip(calm.parameters(), resumed.parameters(), strict=True))


# -- test logits -------------------------------------------------------------------------------------------------
# Log-probabilities without all logits at once are those with all of them.


FAMILY = "mixtral"


def gradients_after(model: torch.nn.Module, logprobs: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    logprobs.sum().backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


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
    ours, theirs = gradients_after(model, parts), gradients_after(model, whole)
    assert ours.keys() == theirs.keys()
    for name, one in ours.items():
        torch.testing.assert_close(one, theirs[name], atol=1e-5, rtol=1e-4)


def test_logits_that_are_capped_are_left_to_the_model() -> None:
    model = tiny_model("gemma2")
    assert model.config.final_logit_softcapping
    assert not scoring.is_plain(model, torch.arange(2, 8)[None])


def test_only_gpus_cut_and_only_what_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(FAMILY)

    class OnGpu(Tensor):
        is_cuda = True  # type: ignore[assignment]

    ids = torch.arange(2, 8)[None].as_subclass(OnGpu)
    assert not scoring.is_cut(model, ids)
    monkeypatch.setattr(scoring, "LOGITS_AT_ONCE", 100)
    assert scoring.is_cut(model, ids)
    assert not scoring.is_cut(model, torch.arange(2, 8)[None])


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
        ({"ids": np.zeros((2, 3), np.float32)}, r"got [2, 3] of float32"),
        (
            {"labels": np.zeros(3, np.float32)},
            r"expected `labels` of shape [N] with N=2 and floating numbers, got [3]",
        ),
        ({"starts": np.array([4, 0], np.int32)}, "expected 0 <= `starts` <= `lengths` <= T"),
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
