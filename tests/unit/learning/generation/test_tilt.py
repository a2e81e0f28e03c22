"""Draws that belong to samples, what they are drawn from, and how values tilt it: against brute force."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pipeline.learning.algos.qsharp import grid_error
from pipeline.learning.choices import Others
from pipeline.learning.generation import sampling, steps
from pipeline.learning.training.value import atom_weights
from pipeline.outputs.formats import OffsetRule, Rule, Sampling

GOLDEN = [["0.530821926270", "0.590544215812"], ["0.625709343037", "0.487117968349"]]


def test_draws_do_not_change_between_versions() -> None:
    """Stored results rest on these numbers."""
    drawn = sampling.uniforms(sampling.sample_keys(0, "evaluate", np.array([123456]), 2), 2)
    assert [[f"{u:.12f}" for u in row] for row in drawn[0]] == GOLDEN


@pytest.mark.parametrize("vocabulary", [3000, 4096])
def test_sums_of_blocks_draw_the_same_tokens(vocabulary: int) -> None:
    numbers = torch.Generator().manual_seed(vocabulary)
    weights = (3 * torch.randn(64, vocabulary, generator=numbers, dtype=torch.float64)).softmax(-1)
    weights[torch.rand(weights.shape, generator=numbers) < 0.5] = 0
    weights[0] = 0
    weights[0, 1025] = 1  # all else of its block and every other one are empty
    for turn in range(6):
        uniform = torch.rand(64, generator=numbers, dtype=torch.float64)
        if turn < 2:
            uniform[:] = [2.0**-49, 1 - 2.0**-49][turn]
        tokens = sampling.by_blocks(weights.clone(), uniform)
        assert tokens.tolist() == sampling.draw_by_weight(weights.clone(), uniform).tolist()
        assert bool((weights.gather(1, tokens[:, None]) > 0).all())


def test_temperature_and_nucleus() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    assert torch.allclose(sampling.policy_logprobs(logits, 0.5), (logits * 2).log_softmax(-1))
    probabilities = logits.softmax(-1)[0]
    whole = sampling.policy_logprobs(logits)
    nucleus = sampling.cut(whole, Sampling(top_p=float(probabilities[:2].sum()) - 1e-3)).exp()[0]
    assert torch.allclose(nucleus[:2], probabilities[:2] / probabilities[:2].sum())
    assert nucleus[2:].tolist() == [0, 0]
    assert torch.equal(sampling.cut(whole, Sampling(top_p=1e-9)).exp()[0], torch.tensor([1.0, 0, 0, 0]))


@pytest.mark.parametrize("top_p", [0.1, 0.9, 0.999999])
@pytest.mark.parametrize("sharpness", [0.01, 4.0])
def test_a_nucleus_is_the_same_whether_all_tokens_are_sorted_or_the_likeliest(
    top_p: float, sharpness: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, ties included: logits that were rounded have many."""
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(6, 5000, generator=generator) * 8).round() / 8 * sharpness
    logits[0, 1000:1010] = logits[0].max() + 1
    logprobs = logits.log_softmax(-1)
    found = sampling.cut(logprobs, Sampling(top_p=top_p))
    monkeypatch.setattr(sampling, "_FEW", 5000)
    assert torch.equal(found, sampling.cut(logprobs, Sampling(top_p=top_p)))


VOCABULARY = 12


def step(others: Others, min_p: float = 0.0, top_k: int = 5, eta: float = 0.5, rows: int = 6):
    generator = torch.Generator().manual_seed(0)
    logprobs = (2 * torch.randn(rows, VOCABULARY, generator=generator)).log_softmax(-1)
    tilt = sampling.Tilt(sampling.bernoulli_offset(eta), top_k=top_k, min_p=min_p, others=others)
    candidates = sampling.find_candidates(logprobs, tilt)
    values = torch.randn(candidates.ids.shape, generator=generator)
    return logprobs, tilt, candidates, values


@pytest.mark.parametrize("others", Others)
@pytest.mark.parametrize("min_p", [0.0, 0.1])
@pytest.mark.parametrize("top_k", [5, 99])
def test_the_row_is_the_tilted_reference(others: Others, min_p: float, top_k: int) -> None:
    logprobs, tilt, candidates, values = step(others, min_p, top_k)
    row = (
        sampling.full_row(logprobs, candidates, sampling.guided_logprobs(candidates, values, tilt), tilt)
        .double()
        .exp()
    )
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


def test_candidates_without_a_chance_leave_all_to_the_others() -> None:
    """PITA's logit has no bound, so candidates may lose all they have, however little the others had."""
    logprobs = torch.tensor([[0.6, 0.4 - 2e-9, 1e-9, 1e-9]]).log()
    tilt = sampling.Tilt(sampling.preference_offset(0.1), top_k=2, others=Others.offset_zero)
    candidates = sampling.find_candidates(logprobs, tilt)
    guided = sampling.guided_logprobs(candidates, torch.tensor([[-9.0, -9.0, 5.0]]), tilt)
    assert sampling.full_row(logprobs, candidates, guided, tilt).exp()[0].tolist() == pytest.approx(
        [0, 0, 0.5, 0.5]
    )
    assert sampling.likeliest_columns(logprobs, candidates, guided).tolist() == [2]
    assert float(sampling.step_kl(candidates, guided)) == pytest.approx(math.log(0.5 / 1e-9), rel=1e-5)


def test_the_likeliest_token_is_not_that_of_the_likeliest_column() -> None:
    """All others together may be likelier than any candidate, and none of them is by itself."""
    logprobs = torch.tensor([[0.3, 0.2, 0.18, 0.17, 0.15]]).log()
    for value, column in ((0.0, 0), (-0.4, 0), (-0.6, 1)):
        tilt = sampling.Tilt(sampling.preference_offset(1.0), top_k=1, others=Others.offset_zero)
        candidates = sampling.find_candidates(logprobs, tilt)
        guided = sampling.guided_logprobs(candidates, torch.tensor([[value, 0.0]]), tilt)
        assert guided.argmax(-1).tolist() == [1]
        assert sampling.likeliest_columns(logprobs, candidates, guided).tolist() == [column]
        row = sampling.full_row(logprobs, candidates, guided, tilt)
        assert candidates.ids[0, column] == row.argmax()


@pytest.mark.parametrize("others", Others)
def test_draws_follow_the_row(others: Others) -> None:
    """The two-part draw gives every token its probability."""
    logprobs, tilt, candidates, values = step(others, rows=1, top_k=3)
    guided = sampling.guided_logprobs(candidates, values, tilt)
    side = 200
    count = side * side
    grid = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    further = ((torch.arange(count) % side).double() + 0.5) / side
    spread = logprobs.expand(count, -1)
    many = sampling.find_candidates(spread, tilt, further)
    draw = sampling.split_draw(spread, many, grid, tilt)
    inside = many.ids.gather(-1, sampling.draw_columns(guided.double().exp().repeat(count, 1), draw)[:, None])[
        :, 0
    ]
    tokens = draw.or_else(inside)
    frequency = torch.bincount(tokens, minlength=VOCABULARY) / count
    assert torch.allclose(frequency, sampling.full_row(logprobs, candidates, guided, tilt)[0].exp(), atol=2e-3)


def test_offsets() -> None:
    z = torch.tensor([-80.0, -2.0, 0.0, 3.0, 80.0], dtype=torch.float64)
    for eta in (0.1, 1.0, 5.0):
        p = z.sigmoid()
        exact = torch.log1p(p * math.expm1(1 / eta))
        assert torch.allclose(sampling.bernoulli_offset(eta)(z), exact, atol=1e-9)
    assert torch.equal(sampling.preference_offset(0.5)(z), z * 2)
    assert sampling.bernoulli_offset(math.inf)(z).abs().max() == 0


@pytest.mark.parametrize("broken", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(
    "offset", [sampling.preference_offset(0.5), sampling.bernoulli_offset(0.5), sampling.expected_offset(0.5)]
)
def test_of_a_row_with_an_infinite_value_nothing_is_a_number(offset: sampling.KnownOffset, broken: float) -> None:
    logprobs = torch.zeros(2, 4).log_softmax(-1)
    values = torch.tensor([[0.0, broken, 1.0], [0.0, 2.0, 1.0]])
    tilt = sampling.Tilt(offset, top_k=3)
    guided = sampling.guided_logprobs(sampling.find_candidates(logprobs, tilt), values, tilt)
    assert guided[0].isnan().all()
    assert guided[1].isfinite().all()


def test_candidates_are_the_likeliest_and_always_one() -> None:
    logprobs = torch.tensor([[0.97, 0.01, 0.01, 0.01], [0.4, 0.3, 0.2, 0.1]]).log()
    tilt = sampling.Tilt(sampling.preference_offset(1.0), top_k=3, min_p=0.15)
    found = sampling.find_candidates(logprobs, tilt)
    assert found.ids.shape == (2, 3)
    assert found.ids[1].tolist() == [0, 1, 2]
    assert found.logprobs.isfinite().tolist() == [[True, False, False], [True, True, True]]
    flat = sampling.find_candidates(torch.full((1, 100), -math.log(100)), tilt)
    assert flat.logprobs.isfinite().tolist() == [[True]]
    assert sampling.find_candidates(
        logprobs, sampling.Tilt(sampling.preference_offset(1.0), top_k=50)
    ).ids.shape == (2, 4)


# -- guided step ------------------------------------------------------------


SURE, SPLIT = [0.9, 0.04, 0.03, 0.03], [0.45, 0.35, 0.11, 0.09]
INSIDE, OUTSIDE = 0.999, 1e-3


class Asked:
    """A guide that notes what it is asked for."""

    looks_up = False

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.taken: list[int] = []

    def values(self, candidates: Tensor, valid: Tensor, _count: int | None = None) -> Tensor:
        rows = zip(candidates, valid, strict=True)
        self.asked = [sorted(ids[places].tolist()) for ids, places in rows]
        self.candidates = candidates
        return torch.linspace(-1, 1, candidates.numel()).view(candidates.shape)

    def advance(self, tokens: Tensor, columns: Tensor) -> None:
        assert torch.equal(self.candidates.gather(1, columns[:, None])[:, 0], tokens)
        self.taken = tokens.tolist()


def step_guided_step(
    rows: list[list[float]], draws: list[float] | None, others: Others = Others.kept
) -> tuple[Asked, Tensor]:
    reader = Asked()
    tilt = sampling.Tilt(sampling.preference_offset(1.0), top_k=3, min_p=0.2, others=others)
    drawn = None if draws is None else torch.tensor([draws, draws], dtype=torch.float64)
    tokens, kl = steps.guided_step(reader, tilt, torch.tensor(rows).log(), drawn)  # type: ignore[arg-type]
    assert tokens.tolist() == reader.taken
    return reader, kl


def test_the_only_candidate_is_asked_for_where_it_is_taken_alone() -> None:
    inside, kl = step_guided_step([SURE, SPLIT], [INSIDE, INSIDE])
    assert inside.asked == [[0], [0, 1]]
    outside, kl_outside = step_guided_step([SURE, SPLIT], [OUTSIDE, OUTSIDE])
    assert outside.taken == [1, 2]
    assert outside.asked == [[1], [0, 1, 2]]
    assert kl[0] == kl_outside[0] == 0
    assert kl[1] > 0


class ByToken(Asked):
    """A guide that values each token alike in every row."""

    def values(self, candidates: Tensor, valid: Tensor, _count: int | None = None) -> Tensor:
        super().values(candidates, valid)
        return 5 * torch.sin(candidates * 1.0)


@pytest.mark.parametrize("others", Others)
@pytest.mark.parametrize("min_p", [0.0, 0.1])
def test_a_row_without_a_draw_is_decoded_greedily_beside_others(others: Others, min_p: float) -> None:
    logprobs, tilt, *_ = step(others, min_p, top_k=3, rows=40)

    def taken(draws: Tensor | None, some_likeliest: bool = False) -> list[int]:
        guide = ByToken()
        steps.guided_step(guide, tilt, logprobs, draws, some_likeliest=some_likeliest)  # type: ignore[arg-type]
        return guide.taken

    draws = torch.rand(2, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mixed = draws.clone()
    mixed[:, ::2] = math.nan
    greedy, drawn, found = taken(None), taken(draws), taken(mixed, some_likeliest=True)
    assert found == [
        one if row % 2 == 0 else other for row, (one, other) in enumerate(zip(greedy, drawn, strict=True))
    ]
    assert greedy != drawn


# -- atoms ------------------------------------------------------------


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("rule", ["preference", "bernoulli", "expected", "atoms", "expected_atoms"])
def test_every_row_may_have_a_strength_of_its_own(rule: Rule) -> None:
    rule_of_all = OffsetRule(rule=rule, rewards=(0.0, 0.5, 2.0) if "atoms" in rule else (-1.0, 2.0))
    values = random(4, 5, *([3] if "atoms" in rule else []))
    etas = [0.1, 1.0, 7.0, math.inf]
    found = sampling.KnownOffset(rule_of_all, torch.tensor(etas)[:, None])(values)
    alone = [sampling.KnownOffset(rule_of_all, eta)(row) for eta, row in zip(etas, values, strict=True)]
    assert torch.allclose(found, torch.stack(alone), rtol=1e-6)
    assert found[3].abs().max() < 1e-6


def test_offsets_are_expectations_of_the_distribution() -> None:
    atoms, eta = [-1.0, 0.0, 0.5, 2.0], 0.7
    logits = random(6, 4, seed=2)
    for row, soft, plain in zip(
        logits,
        sampling.atoms_offset(atoms, eta)(logits),
        sampling.expected_atoms_offset(atoms, eta)(logits),
        strict=True,
    ):
        weights = row.softmax(-1).tolist()
        expected = math.log(sum(w * math.exp(a / eta) for w, a in zip(weights, atoms, strict=True)))
        assert float(soft) == pytest.approx(expected, abs=1e-5)
        mean = sum(w * a for w, a in zip(weights, atoms, strict=True))
        assert float(plain) == pytest.approx(mean / eta, abs=1e-5)
        assert float(soft) >= float(plain) - 1e-5  # Jensen


@pytest.mark.parametrize(
    ("count", "eta"), [(11, 0.05), (2, 0.05), (11, 1.0), (101, 0.001), (3, 0.02), (5, math.inf)]
)
def test_a_reward_between_atoms_is_tilted_by_as_if_it_were_one(count: int, eta: float) -> None:
    """At the eta of the training, log E[exp(R / eta)] of a reward R is R / eta, wherever the atoms are."""
    rewards = torch.linspace(0, 1, 201, dtype=torch.float64)
    weights = atom_weights(rewards, count, 1 / eta)
    assert torch.allclose(weights.sum(-1), torch.ones(201), atol=1e-6)
    told = sampling.atoms_offset(np.linspace(0, 1, count).tolist(), eta)(weights.double().log())
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
