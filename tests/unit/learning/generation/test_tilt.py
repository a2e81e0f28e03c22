"""One step of guidance: pure functions against brute force."""

import math

import pytest
import torch

from pipeline.learning.choices import Others
from pipeline.learning.generation.tilt import (
    KnownOffset,
    Tilt,
    bernoulli_offset,
    draw_columns,
    expected_offset,
    find_candidates,
    full_row,
    guided_logprobs,
    likeliest_columns,
    preference_offset,
    split_draw,
    step_kl,
)

VOCABULARY = 12


def step(others: Others, min_p: float = 0.0, top_k: int = 5, eta: float = 0.5, rows: int = 6):
    generator = torch.Generator().manual_seed(0)
    logprobs = (2 * torch.randn(rows, VOCABULARY, generator=generator)).log_softmax(-1)
    tilt = Tilt(bernoulli_offset(eta), top_k=top_k, min_p=min_p, others=others)
    candidates = find_candidates(logprobs, tilt)
    values = torch.randn(candidates.ids.shape, generator=generator)
    return logprobs, tilt, candidates, values


@pytest.mark.parametrize("others", Others)
@pytest.mark.parametrize("min_p", [0.0, 0.1])
@pytest.mark.parametrize("top_k", [5, 99])
def test_the_row_is_the_tilted_reference(others: Others, min_p: float, top_k: int) -> None:
    logprobs, tilt, candidates, values = step(others, min_p, top_k)
    row = full_row(logprobs, candidates, guided_logprobs(candidates, values, tilt), tilt).double().exp()
    eta = 0.5
    assert candidates.ids.shape[1] <= tilt.top_k + tilt.leaves_others(VOCABULARY)
    assert candidates.pooled == (others is Others.offset_zero and (top_k < VOCABULARY or min_p > 0))
    for b in range(len(logprobs)):
        reference = logprobs[b].double().exp()
        chosen = [t for t in reference.topk(min(top_k, VOCABULARY)).indices.tolist() if reference[t] >= min_p]
        rest = [t for t in range(VOCABULARY) if t not in chosen]
        read = candidates.ids[b].tolist()[: len(chosen)]
        value = dict(zip(read, values[b].double().tolist(), strict=False))
        weight = torch.zeros(VOCABULARY, dtype=torch.float64)
        for token in chosen:
            p = 1 / (1 + math.exp(-value[token]))
            weight[token] = reference[token] * (1 - p + p * math.exp(1 / eta))
        if others is Others.offset_zero:
            weight[rest] = reference[rest]
        expected = weight / weight.sum()
        if others is Others.kept:
            expected = expected * reference[chosen].sum()
            expected[rest] = reference[rest]
        assert torch.allclose(row[b], expected, atol=1e-6)


@pytest.mark.parametrize("others", Others)
@pytest.mark.parametrize("min_p", [0.0, 0.1])
def test_kl_is_that_of_the_whole_rows(others: Others, min_p: float) -> None:
    logprobs, tilt, candidates, values = step(others, min_p)
    guided = guided_logprobs(candidates, values, tilt)
    row = full_row(logprobs, candidates, guided, tilt).double()
    terms = torch.where(row.isinf(), 0.0, row.exp() * (row - logprobs.double()))
    assert torch.allclose(step_kl(candidates, guided), terms.sum(-1), atol=1e-6)
    # A single candidate leaves nothing to choose, but dropping the others is a divergence too, and so is its
    # offset where they have none.
    differs = (candidates.logprobs.isfinite().sum(-1) > 1) | (others is not Others.kept)
    assert ((step_kl(candidates, guided) > 0) == differs).all()


def test_candidates_without_a_chance_leave_all_to_the_others() -> None:
    """PITA's logit has no bound, so candidates may lose all they have, however little the others had."""
    logprobs = torch.tensor([[0.6, 0.4 - 2e-9, 1e-9, 1e-9]]).log()
    tilt = Tilt(preference_offset(0.1), top_k=2, others=Others.offset_zero)
    candidates = find_candidates(logprobs, tilt)
    guided = guided_logprobs(candidates, torch.tensor([[-9.0, -9.0, 5.0]]), tilt)
    assert full_row(logprobs, candidates, guided, tilt).exp()[0].tolist() == pytest.approx([0, 0, 0.5, 0.5])
    assert likeliest_columns(logprobs, candidates, guided).tolist() == [2]
    assert float(step_kl(candidates, guided)) == pytest.approx(math.log(0.5 / 1e-9), rel=1e-5)


def test_the_likeliest_token_is_not_that_of_the_likeliest_column() -> None:
    """All others together may be likelier than any candidate, and none of them is by itself."""
    logprobs = torch.tensor([[0.3, 0.2, 0.18, 0.17, 0.15]]).log()
    for value, column in ((0.0, 0), (-0.4, 0), (-0.6, 1)):
        tilt = Tilt(preference_offset(1.0), top_k=1, others=Others.offset_zero)
        candidates = find_candidates(logprobs, tilt)
        guided = guided_logprobs(candidates, torch.tensor([[value, 0.0]]), tilt)
        assert guided.argmax(-1).tolist() == [1]
        assert likeliest_columns(logprobs, candidates, guided).tolist() == [column]
        row = full_row(logprobs, candidates, guided, tilt)
        assert candidates.ids[0, column] == row.argmax()


@pytest.mark.parametrize("others", Others)
def test_draws_follow_the_row(others: Others) -> None:
    """The two-part draw gives every token its probability."""
    logprobs, tilt, candidates, values = step(others, rows=1, top_k=3)
    guided = guided_logprobs(candidates, values, tilt)
    side = 200
    count = side * side
    grid = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    further = ((torch.arange(count) % side).double() + 0.5) / side
    spread = logprobs.expand(count, -1)
    many = find_candidates(spread, tilt, further)
    draw = split_draw(spread, many, grid, tilt)
    inside = many.ids.gather(-1, draw_columns(guided.double().exp().repeat(count, 1), draw)[:, None])[:, 0]
    tokens = draw.or_else(inside)
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


@pytest.mark.parametrize("broken", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("offset", [preference_offset(0.5), bernoulli_offset(0.5), expected_offset(0.5)])
def test_of_a_row_with_an_infinite_value_nothing_is_a_number(offset: KnownOffset, broken: float) -> None:
    logprobs = torch.zeros(2, 4).log_softmax(-1)
    values = torch.tensor([[0.0, broken, 1.0], [0.0, 2.0, 1.0]])
    tilt = Tilt(offset, top_k=3)
    guided = guided_logprobs(find_candidates(logprobs, tilt), values, tilt)
    assert guided[0].isnan().all()
    assert guided[1].isfinite().all()


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
