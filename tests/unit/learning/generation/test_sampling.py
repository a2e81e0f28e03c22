"""Draws belong to samples, and follow the policy's distribution."""

import math

import numpy as np
import pytest
import torch

from pipeline.learning.generation import sampling
from pipeline.learning.generation.sampling import (
    by_blocks,
    draw_by_weight,
    draw_tokens,
    nucleus,
    policy_logprobs,
    sample_keys,
    uniforms,
)

GOLDEN = [["0.530821926270", "0.590544215812"], ["0.625709343037", "0.487117968349"]]


def test_a_draw_is_a_function_of_seed_stream_row_sample_and_step() -> None:
    rows = np.array([5, 900_000, 7])
    whole = uniforms(sample_keys(3, "x", rows, 4), 6)
    assert whole.shape == (3, 4, 6)
    part = uniforms(sample_keys(3, "x", rows[[2, 0]], 2), 3)
    assert np.array_equal(part, whole[[2, 0], :2, :3])


def test_draws_do_not_change_between_versions() -> None:
    """Stored results rest on these numbers."""
    drawn = uniforms(sample_keys(0, "evaluate", np.array([123456]), 2), 2)
    assert [[f"{u:.12f}" for u in row] for row in drawn[0]] == GOLDEN


def test_draws_are_uniform_and_independent() -> None:
    drawn = uniforms(sample_keys(0, "u", np.arange(2000), 5), 10)
    assert 0 < drawn.min() < drawn.max() < 1
    flat = np.sort(drawn.reshape(-1))
    distance = np.abs(flat - (np.arange(flat.size) + 0.5) / flat.size).max()
    assert distance < 1.63 / math.sqrt(flat.size)  # Kolmogorov-Smirnov, 1 %
    for axis in range(3):
        shifted = np.roll(drawn, 1, axis)
        assert abs(np.corrcoef(drawn.reshape(-1), shifted.reshape(-1))[0, 1]) < 4 / math.sqrt(drawn.size)


@pytest.mark.parametrize("vocabulary", [3000, 4096, 50_257])
def test_sums_of_blocks_draw_the_same_tokens(vocabulary: int) -> None:
    numbers = torch.Generator().manual_seed(vocabulary)
    weights = (3 * torch.randn(64, vocabulary, generator=numbers, dtype=torch.float64)).softmax(-1)
    weights[torch.rand(weights.shape, generator=numbers) < 0.5] = 0
    weights[0] = 0
    weights[0, 1025] = 1  # all else of its block and every other one are empty
    for turn in range(20):
        uniform = torch.rand(64, generator=numbers, dtype=torch.float64)
        if turn < 2:
            uniform[:] = [2.0**-49, 1 - 2.0**-49][turn]
        tokens = by_blocks(weights.clone(), uniform)
        assert tokens.tolist() == draw_by_weight(weights.clone(), uniform).tolist()
        assert bool((weights.gather(1, tokens[:, None]) > 0).all())


@pytest.mark.parametrize("uniform", [2.0**-49, 1 - 2.0**-49], ids=["lowest", "highest"])
def test_the_ends_of_the_range_draw_possible_tokens(uniform: float) -> None:
    logprobs = torch.full((1, 50_000), -math.inf)
    logprobs[0, [3, 40_000]] = math.log(0.5)
    assert draw_tokens(logprobs, torch.tensor([uniform], dtype=torch.float64)).item() in (3, 40_000)


def test_temperature_and_nucleus() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    assert torch.allclose(policy_logprobs(logits, 0.5), (logits * 2).log_softmax(-1))
    probabilities = logits.softmax(-1)[0]
    nucleus = policy_logprobs(logits, 1.0, top_p=float(probabilities[:2].sum()) - 1e-3).exp()[0]
    assert torch.allclose(nucleus[:2], probabilities[:2] / probabilities[:2].sum())
    assert nucleus[2:].tolist() == [0, 0]
    assert torch.equal(policy_logprobs(logits, 1.0, top_p=1e-9).exp()[0], torch.tensor([1.0, 0, 0, 0]))


@pytest.mark.parametrize("top_p", [0.1, 0.9, 0.999, 0.999999])
@pytest.mark.parametrize("sharpness", [0.01, 1.0, 4.0, 40.0])
def test_a_nucleus_is_the_same_whether_all_tokens_are_sorted_or_the_likeliest(
    top_p: float, sharpness: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, ties included: logits that were rounded have many."""
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(6, 5000, generator=generator) * 8).round() / 8 * sharpness
    logits[0, 1000:1010] = logits[0].max() + 1
    logprobs = logits.log_softmax(-1)
    found = nucleus(logprobs, top_p)
    monkeypatch.setattr(sampling, "_FEW", 5000)
    assert torch.equal(found, nucleus(logprobs, top_p))
