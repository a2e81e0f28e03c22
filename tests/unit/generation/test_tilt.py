"""One step of guidance: pure functions against brute force."""

import math

import pytest
import torch

from pipeline.generation.tilt import (
    Tilt,
    bernoulli_offset,
    draw_columns,
    find_candidates,
    full_row,
    guided_logprobs,
    preference_offset,
    split_draw,
    step_kl,
)

VOCABULARY = 12


def step(truncate: bool, min_p: float = 0.0, top_k: int = 5, eta: float = 0.5, rows: int = 6):
    generator = torch.Generator().manual_seed(0)
    logprobs = (2 * torch.randn(rows, VOCABULARY, generator=generator)).log_softmax(-1)
    tilt = Tilt(bernoulli_offset(eta), top_k=top_k, min_p=min_p, truncate=truncate)
    candidates = find_candidates(logprobs, tilt)
    values = torch.randn(candidates.ids.shape, generator=generator)
    return logprobs, tilt, candidates, values


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("min_p", [0.0, 0.1])
def test_the_row_is_the_tilted_reference(truncate: bool, min_p: float) -> None:
    logprobs, tilt, candidates, values = step(truncate, min_p)
    row = full_row(logprobs, candidates, guided_logprobs(candidates, values, tilt), tilt).double().exp()
    eta = 0.5
    for b in range(len(logprobs)):
        reference = logprobs[b].double().exp()
        chosen = [t for t in reference.topk(5).indices.tolist() if reference[t] >= min_p]
        value = dict(zip(candidates.ids[b].tolist(), values[b].double().tolist(), strict=True))
        weight = torch.zeros(VOCABULARY, dtype=torch.float64)
        for token in chosen:
            p = 1 / (1 + math.exp(-value[token]))
            weight[token] = reference[token] * (1 - p + p * math.exp(1 / eta))
        share = weight / weight.sum()
        expected = share if truncate else share * reference[chosen].sum()
        if not truncate:
            rest = [t for t in range(VOCABULARY) if t not in chosen]
            expected[rest] = reference[rest]
        assert torch.allclose(row[b], expected, atol=1e-6)


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("min_p", [0.0, 0.1])
def test_kl_is_that_of_the_whole_rows(truncate: bool, min_p: float) -> None:
    logprobs, tilt, candidates, values = step(truncate, min_p)
    guided = guided_logprobs(candidates, values, tilt)
    row = full_row(logprobs, candidates, guided, tilt).double()
    terms = torch.where(row.isinf(), 0.0, row.exp() * (row - logprobs.double()))
    assert torch.allclose(step_kl(candidates, guided), terms.sum(-1), atol=1e-6)
    # A single candidate leaves nothing to choose, but dropping the others is a divergence too.
    differs = (candidates.logprobs.isfinite().sum(-1) > 1) | truncate
    assert ((step_kl(candidates, guided) > 0) == differs).all()


def test_equal_values_leave_the_reference_as_it_is() -> None:
    logprobs, tilt, candidates, values = step(truncate=False)
    for constant in (0.0, -7.0, 30.0):
        guided = guided_logprobs(candidates, torch.full_like(values, constant), tilt)
        assert torch.allclose(full_row(logprobs, candidates, guided, tilt), logprobs, atol=1e-5)
        assert step_kl(candidates, guided).abs().max() < 1e-5


@pytest.mark.parametrize("truncate", [False, True])
def test_draws_follow_the_row(truncate: bool) -> None:
    """The two-part draw gives every token its probability."""
    logprobs, tilt, candidates, values = step(truncate, rows=1, top_k=3)
    guided = guided_logprobs(candidates, values, tilt)
    count = 20_000
    grid = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    spread = [tensor.expand(count, -1) for tensor in (logprobs, candidates.ids, candidates.logprobs)]
    many = type(candidates)(spread[1], spread[2])
    draw = split_draw(spread[0], many, grid, tilt)
    inside = many.ids.gather(-1, draw_columns(guided.expand(count, -1), draw)[:, None])[:, 0]
    tokens = torch.where(draw.outside, draw.tokens, inside)
    frequency = torch.bincount(tokens, minlength=VOCABULARY) / count
    assert torch.allclose(frequency, full_row(logprobs, candidates, guided, tilt)[0].exp(), atol=2e-3)


def test_offsets() -> None:
    z = torch.tensor([-80.0, -2.0, 0.0, 3.0, 80.0], dtype=torch.float64)
    for eta in (0.1, 1.0, 5.0):
        p = z.sigmoid()
        exact = torch.log1p(p * math.expm1(1 / eta))
        assert torch.allclose(bernoulli_offset(eta)(z), exact, atol=1e-9)
    assert torch.equal(preference_offset(0.5)(z), z * 2)
    assert bernoulli_offset(math.inf)(z).abs().max() == 0


def test_offsets_are_finite_for_any_value() -> None:
    z = torch.tensor([-1e6, 1e6])
    for eta in (0.01, 0.1, 10.0):
        assert bernoulli_offset(eta)(z).isfinite().all()


def test_candidates_are_the_likeliest_and_always_one() -> None:
    logprobs = torch.tensor([[0.97, 0.01, 0.01, 0.01], [0.4, 0.3, 0.2, 0.1]]).log()
    tilt = Tilt(preference_offset(1.0), top_k=3, min_p=0.15)
    found = find_candidates(logprobs, tilt)
    assert found.ids.shape == (2, 3)
    assert found.ids[1].tolist() == [0, 1, 2]
    assert found.logprobs.isfinite().tolist() == [[True, False, False], [True, True, True]]
    flat = find_candidates(torch.full((1, 100), -math.log(100)), tilt)
    assert flat.logprobs.isfinite().tolist() == [[True]]
    assert find_candidates(logprobs, Tilt(preference_offset(1.0), top_k=50)).ids.shape == (2, 4)


def test_a_nucleus_is_not_left_by_guidance() -> None:
    """Tokens that the nucleus excludes are no candidates, however good their value."""
    logprobs = torch.tensor([[0.6, 0.4, 0.0, 0.0]]).log()
    tilt = Tilt(preference_offset(0.1), top_k=4)
    candidates = find_candidates(logprobs, tilt)
    guided = guided_logprobs(candidates, torch.tensor([[0.0, 0.0, 50.0, 50.0]]), tilt)
    row = full_row(logprobs, candidates, guided, tilt)
    assert row.exp()[0].tolist() == pytest.approx([0.6, 0.4, 0, 0], abs=1e-6)
    assert step_kl(candidates, guided).item() == pytest.approx(0, abs=1e-6)
