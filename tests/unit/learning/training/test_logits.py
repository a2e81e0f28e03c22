"""Log-probabilities without all logits at once are those with all of them."""

import pytest
import torch
from torch import Tensor

from pipeline.learning.algos.policy_config import LoraSettings
from pipeline.learning.training import scoring
from pipeline.learning.training.lora import with_adapters
from pipeline.learning.training.scoring import (
    completion_logprobs,
    is_cut,
    is_plain,
    logprobs_and_entropies,
)
from pipeline.learning.training.sequences import Sequences, batch_of
from tests.doubles.families import tiny_model

FAMILY = "mixtral"


def gradients(model: torch.nn.Module, logprobs: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    logprobs.sum().backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("adapters", [False, True])
def test_parts_are_what_the_whole_is(adapters: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-probabilities, entropies over the whole vocabulary, and gradients of both."""
    model = tiny_model(FAMILY).requires_grad_(True)
    if adapters:
        model = with_adapters(model, LoraSettings(rank=2, target_modules=["q_proj"]), seed=0)
    rows = [list(range(2, 12)), list(range(20, 14, -1)), [5] * 9]
    batch = batch_of(Sequences.of(rows, [4, 2, 6], [0.0] * 3), torch.arange(3).numpy(), "cpu")
    assert is_plain(model, batch.ids)
    whole = torch.stack(logprobs_and_entropies(model, batch, 0.7))
    assert torch.equal(whole[0], completion_logprobs(model, batch, 0.7))
    expected = torch.distributions.Categorical(logits=model(batch.ids).logits[:, :-1] / 0.7).entropy()
    torch.testing.assert_close(whole[1][:, 1:], expected * batch.mask[:, 1:], atol=1e-6, rtol=1e-6)
    monkeypatch.setattr(scoring, "is_cut", lambda *_: True)
    monkeypatch.setattr(scoring, "LOGITS_AT_ONCE", 1)
    parts = torch.stack(logprobs_and_entropies(model, batch, 0.7))
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-6)
    ours, theirs = gradients(model, parts), gradients(model, whole)
    assert ours.keys() == theirs.keys()
    for name, one in ours.items():
        torch.testing.assert_close(one, theirs[name], atol=1e-5, rtol=1e-4)


def test_logits_that_are_capped_are_left_to_the_model() -> None:
    model = tiny_model("gemma2")
    assert model.config.final_logit_softcapping
    assert not is_plain(model, torch.arange(2, 8)[None])


def test_only_gpus_cut_and_only_what_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(FAMILY)

    class OnGpu(Tensor):
        is_cuda = True  # type: ignore[assignment]

    ids = torch.arange(2, 8)[None].as_subclass(OnGpu)
    assert not is_cut(model, ids)
    monkeypatch.setattr(scoring, "LOGITS_AT_ONCE", 100)
    assert is_cut(model, ids)
    assert not is_cut(model, torch.arange(2, 8)[None])
