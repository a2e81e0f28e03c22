"""Distributions over rewards: two atoms are the Bernoulli case; the fast and the slow decoder agree."""

import math

import numpy as np
import pytest
import torch

from pipeline.config.schema import HeadType
from pipeline.generation.decode import DecodeSettings, Guidance, decode
from pipeline.generation.guide import value_reader
from pipeline.generation.slow_guide import GuidedLogitsProcessor
from pipeline.generation.tilt import Tilt, atoms_offset, bernoulli_offset, expected_atoms_offset, expected_offset
from pipeline.models.value import ValueModel, value_model_from
from pipeline.training.losses import token_atoms, token_bce
from pipeline.training.value import token_values
from tests.doubles.models import tiny_policy


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("eta", [0.05, 0.1, 1.0, 10.0])
def test_two_atoms_tilt_as_one_probability(eta: float) -> None:
    logits = random(50, 2).double()
    single = logits[:, 1] - logits[:, 0]
    assert torch.allclose(atoms_offset([0, 1], eta)(logits), bernoulli_offset(eta)(single), atol=1e-6)
    assert torch.allclose(expected_atoms_offset([0, 1], eta)(logits), expected_offset(eta)(single), atol=1e-6)


def test_two_atoms_are_trained_as_one_probability() -> None:
    logits = random(4, 5, 2).requires_grad_(True)
    single = (logits[..., 1] - logits[..., 0]).detach().requires_grad_(True)
    mask, labels = torch.rand(4, 5, generator=torch.Generator().manual_seed(1)) < 0.6, torch.tensor([0, 1, 0.3, 1])
    one, other = token_atoms(logits, mask, labels), token_bce(single, mask, labels)
    assert one.item() == pytest.approx(other.item(), rel=1e-5)
    one.backward()
    other.backward()
    assert torch.allclose(logits.grad[..., 1], single.grad, atol=1e-6)


def test_offsets_are_expectations_of_the_distribution() -> None:
    atoms, eta = [-1.0, 0.0, 0.5, 2.0], 0.7
    logits = random(6, 4, seed=2)
    for row, soft, plain in zip(
        logits, atoms_offset(atoms, eta)(logits), expected_atoms_offset(atoms, eta)(logits), strict=True
    ):
        weights = row.softmax(-1).tolist()
        expected = math.log(sum(w * math.exp(a / eta) for w, a in zip(weights, atoms, strict=True)))
        assert float(soft) == pytest.approx(expected, abs=1e-5)
        mean = sum(w * a for w, a in zip(weights, atoms, strict=True))
        assert float(plain) == pytest.approx(mean / eta, abs=1e-5)
        assert float(soft) >= float(plain) - 1e-5  # Jensen


def test_a_label_between_atoms_is_split_so_that_its_mean_is_kept() -> None:
    """The likeliest distribution for one label has that label as its mean."""
    logits = torch.zeros(1, 1, 5, requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=1.0)
    for _ in range(3000):
        optimizer.zero_grad()
        token_atoms(logits, torch.ones(1, 1, dtype=torch.bool), torch.tensor([0.6])).backward()
        optimizer.step()
    mass = logits.softmax(-1).detach()[0, 0]
    assert float((mass * torch.linspace(0, 1, 5)).sum()) == pytest.approx(0.6, abs=1e-3)
    assert mass[2:4].sum() > 0.99


def value(head: HeadType) -> ValueModel:
    model = value_model_from(tiny_policy(1), head, atoms=4)
    model.head.weight.data = random(*model.head.weight.shape, seed=3) / 3
    return model.eval()


@pytest.mark.parametrize("head", list(HeadType))
@pytest.mark.parametrize("truncate", [True, False])
def test_the_fast_decoder_equals_the_slow_one(head: HeadType, truncate: bool) -> None:
    reference, guide = tiny_policy(), value(head)
    tilt = Tilt(atoms_offset([0, 1 / 3, 2 / 3, 1], 0.2), top_k=5, min_p=0.02, truncate=truncate)
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9], [2, 2]]
    settings = DecodeSettings(batch_size=4, eos_id=None, pad_id=11)
    found = decode(
        reference, prompts, [6] * 4, settings, keys=None, guidance=Guidance(value_reader(guide), tilt)
    ).tokens
    slow = GuidedLogitsProcessor(guide, tilt)
    for prompt, tokens in zip(prompts, found, strict=True):
        ids = list(prompt)
        for token in tokens:
            prefix = torch.tensor([ids])
            with torch.no_grad():
                row = slow(prefix, reference(prefix).logits[:, -1])
            # What outweighs all others may be a token outside of the candidates only if it keeps its probability.
            assert float(row[0, token]) == pytest.approx(float(row[0].max()), abs=1e-4) or not truncate
            ids.append(token)


@pytest.mark.parametrize("head", list(HeadType))
def test_values_of_taken_tokens_have_a_distribution_each(head: HeadType) -> None:
    model, ids = value(head), torch.tensor([[1, 5, 7], [2, 2, 0]])
    with torch.no_grad():
        found = token_values(model, ids)
        assert found.shape == (2, 3, 4)
        if head is HeadType.q:
            everything = model(ids)
            assert torch.equal(found[1, 2], everything[1, 1, 0])
            assert not found[:, 0].any()


def test_an_untrained_distribution_says_nothing() -> None:
    """Its logits are equal, so all candidates are tilted alike."""
    model = value_model_from(tiny_policy(1), HeadType.v, atoms=11)
    offsets = atoms_offset(np.linspace(0, 1, 11).tolist(), 0.1)(model(torch.tensor([[1, 2, 3, 4]])))
    assert torch.allclose(offsets, offsets[:, :1].expand_as(offsets), atol=1e-6)
