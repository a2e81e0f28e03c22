"""Distributions over rewards: two atoms are the Bernoulli case; the fast and the slow decoder agree."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.learning.algos.qsharp import MOST_GRID_ERROR, grid_error, least_atoms
from pipeline.learning.choices import HeadType, Others
from pipeline.learning.generation.decode import DecodeSettings, Guidance, decode
from pipeline.learning.generation.guided import GuidedLogitsProcessor
from pipeline.learning.generation.tilt import (
    Tilt,
    atoms_offset,
    bernoulli_offset,
    expected_atoms_offset,
    expected_offset,
)
from pipeline.learning.models.value import ValueModel, value_model_from
from pipeline.learning.training.value import atom_weights, token_atoms, token_bce
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
    optimizer = torch.optim.SGD([logits], lr=3.0)
    for _ in range(500):
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
@pytest.mark.parametrize("others", Others)
def test_the_fast_decoder_equals_the_slow_one(head: HeadType, others: Others) -> None:
    reference, guide = tiny_policy(), value(head)
    tilt = Tilt(atoms_offset([0, 1 / 3, 2 / 3, 1], 0.2), top_k=5, min_p=0.02, others=others)
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9], [2, 2]]
    settings = DecodeSettings(batch_size=4, eos_id=None, pad_id=11)
    found = decode(reference, prompts, [6] * 4, settings, keys=None, guidance=Guidance(guide, tilt)).tokens
    slow = GuidedLogitsProcessor(guide, tilt)
    for prompt, tokens in zip(prompts, found, strict=True):
        ids = list(prompt)
        for token in tokens:
            prefix = torch.tensor([ids])
            with torch.no_grad():
                row = slow(prefix, reference(prefix).logits[:, -1])
            assert float(row[0, token]) == pytest.approx(float(row[0].max()), abs=1e-4)
            ids.append(token)


@pytest.mark.parametrize(
    ("count", "eta"), [(11, 0.05), (2, 0.05), (11, 1.0), (101, 0.001), (3, 0.02), (5, math.inf)]
)
def test_a_reward_between_atoms_is_tilted_by_as_if_it_were_one(count: int, eta: float) -> None:
    """At the eta of the training, log E[exp(R / eta)] of a reward R is R / eta, wherever the atoms are."""
    rewards = torch.linspace(0, 1, 201, dtype=torch.float64)
    weights = atom_weights(rewards, count, 1 / eta)
    assert torch.allclose(weights.sum(-1), torch.ones(201), atol=1e-6)
    told = atoms_offset(np.linspace(0, 1, count).tolist(), eta)(weights.double().log())
    assert torch.allclose(told, rewards / eta, atol=1e-4, rtol=1e-5)


@pytest.mark.properties
@given(st.integers(2, 60), st.floats(0, 100), st.floats(0, 100), st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_no_distribution_is_further_off_than_the_grid(
    count: int, rate: float, other: float, rewards: list[float]
) -> None:
    labels = torch.tensor(rewards, dtype=torch.float64)
    weights = atom_weights(labels, count, rate).double().mean(0)
    told = float((weights.log() + torch.linspace(0, 1, count).double() * other).logsumexp(-1))
    true = float((labels * other).logsumexp(-1)) - math.log(len(rewards))
    assert abs(told - true) <= grid_error(count, rate, other) * 1.02 + 0.02


@pytest.mark.properties
@given(st.floats(0, 200), st.floats(0, 200))
def test_the_least_number_of_atoms_is_enough_and_no_smaller_one_is(rate: float, other: float) -> None:
    least = least_atoms(rate, other)
    assert least is not None
    assert grid_error(least, rate, other) <= MOST_GRID_ERROR
    assert least == 2 or grid_error(least - 1, rate, other) > MOST_GRID_ERROR
