"""Without padding the same is computed by the models for which it may be left out; others are left as they are."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipeline.errors import JobStopped
from pipeline.learning.algos.dpo import DPOConfig
from pipeline.learning.algos.policy_config import LoraSettings
from pipeline.learning.choices import HeadType
from pipeline.learning.models.load import checkpoint_activations
from pipeline.learning.models.value import value_model_from
from pipeline.learning.training import scoring
from pipeline.learning.training.checkpoint import Checkpoints
from pipeline.learning.training.grpo import Samples, grpo_set
from pipeline.learning.training.loop import Fitting, fit, fit_sft
from pipeline.learning.training.lora import with_adapters
from pipeline.learning.training.preferences import dpo_set
from pipeline.learning.training.scoring import (
    completion_logprobs,
    is_unpadded,
    logprobs_and_entropies,
    without_padding,
)
from pipeline.learning.training.sequences import Sequences, batch_of
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
    with without_padding(model if part is None else part, True):
        assert is_unpadded(model if part is None else part)
        found = compute()
        found.square().sum().backward()
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    after = gradients(model)
    assert after.keys() == before.keys()
    for name, one in after.items():
        torch.testing.assert_close(one, before[name], atol=1e-4 * float(before[name].abs().max() + 1), rtol=1e-3)


# That logits are made in parts depends on no family; one scales them.
@pytest.mark.parametrize(
    ("family", "at_once"),
    [
        *((family, 1 << 27) for family in RIGHT),
        *(
            pytest.param(family, 700, marks=() if family in ("gpt2", "cohere2") else pytest.mark.exhaustive)
            for family in RIGHT
        ),
    ],
)
def test_what_is_computed_is_the_same(family: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "LOGITS_AT_ONCE", at_once)
    model = tiny_model(family).requires_grad_(True)
    batch = batch_of(sequences(), np.arange(16), "cpu")
    before = model.config._attn_implementation
    agree(model, lambda: completion_logprobs(model, batch, 0.8))
    if family == "gpt2":
        agree(model, lambda: torch.stack(logprobs_and_entropies(model, batch, 0.8)))
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("family", LEFT)
def test_what_would_be_wrong_is_left_as_it_is(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_model(family)
    batch = batch_of(sequences(), np.arange(16), "cpu")
    with torch.no_grad(), without_padding(model, True):
        assert not is_unpadded(model)
        assert "this model needs padded rows" in capsys.readouterr().out
        found = completion_logprobs(model, batch)
    with torch.no_grad():
        assert torch.equal(found, completion_logprobs(model, batch))


def test_adapters_and_checkpointed_layers_go_along() -> None:
    model = with_adapters(tiny_model("llama").requires_grad_(True), LoraSettings(rank=2), seed=0)
    checkpoint_activations(model)
    model.enable_input_require_grads()
    model.train()
    batch = batch_of(sequences(), np.arange(16), "cpu")
    agree(model, lambda: completion_logprobs(model, batch))


def fitting(epochs: int = 1, **settings: Any) -> Fitting:
    return small_fitting(epochs=epochs, learning_rate=1e-3, **{"micro_batch_size": 4, **settings})


def trained(method: str, how: Fitting) -> tuple[nn.Module, list[float]]:
    data, model = sequences(supervised=method == "reward model"), tiny_model("llama").requires_grad_(True)
    if method == "SFT":
        return model, fit_sft(model, data, how)
    if method == "DPO":
        made = dpo_set(model, data, np.linspace(-30.0, -20.0, 16), DPOConfig(beta=0.5), "cpu")
        return model, fit(model, made, how)
    if method == "GRPO":
        old = np.full((16, 30), -5.7, np.float32)
        better = np.linspace(-1, 1, 16, dtype=np.float32)
        made = grpo_set(model, Samples(data, old), better, old, of_grpo(beta=0.1), "cpu", longest=30)
        return model, fit(model, made, how)
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
        *(
            pytest.param(method, {setting: True}, marks=() if method == "SFT" else pytest.mark.exhaustive)
            for setting in ("padding_free", "group_by_length")
            for method in METHODS
        ),
    ],
)
def test_trainings_have_the_same_losses_step_by_step(method: str, settings: dict[str, bool]) -> None:
    assert trained(method, fitting(**settings))[1] == pytest.approx(losses_with_padding(method), abs=1e-4)


def test_a_training_that_is_stopped_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"padding_free": True, "group_by_length": True, "epochs": 2}
    calm, losses = trained("SFT", fitting(**settings))
    calls = iter(range(100))
    stopping = Checkpoints(tmp_path, {}, every_minutes=0, stopping=lambda: next(calls) == 1)
    with pytest.raises(JobStopped):
        trained("SFT", fitting(**settings, checkpoint=stopping))
    resumed, same = trained("SFT", fitting(**settings, checkpoint=Checkpoints(tmp_path, {}, every_minutes=0)))
    assert same == losses
    assert all(torch.equal(one, other) for one, other in zip(calm.parameters(), resumed.parameters(), strict=True))
