"""Divergence means the same for every policy: of what is sampled, from the whole reference at that temperature."""

import math
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from pipeline.config.schema import GenerationConfig
from pipeline.learning.choices import HeadType, Others
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.datasets.made import AdditionConfig
from pipeline.learning.generation.decode import Decoded, Guidance
from pipeline.learning.generation.policy import BestOfNPolicy, TextPolicy, TrainedPolicy, by_majority
from pipeline.learning.generation.sampling import sample_keys
from pipeline.learning.generation.tilt import Tilt, bernoulli_offset
from pipeline.learning.models.tiny import make_tokenizer
from pipeline.learning.models.value import ValueModel
from tests.unit.learning.generation.conftest import language_model, opinionated

Row = NDArray[np.float64]
"""A distribution over the vocabulary."""
DATASET = load_dataset(AdditionConfig(kind="addition"))
PROMPTS = [[1, 2, 3], [4], [5, 6]]
SAMPLES, STEPS, ETA, TOP_K = 2, 4, 0.4, 3


def settings(temperature: float, top_p: float) -> GenerationConfig:
    return GenerationConfig(batch_size=9, max_new_tokens=STEPS, temperature=temperature, top_p=top_p)


def completed(policy: TextPolicy) -> Decoded:
    return policy.complete(PROMPTS, sample_keys(0, "test", np.arange(len(PROMPTS)), SAMPLES), samples=SAMPLES)


def whole(model: PreTrainedModel, ids: Sequence[int], temperature: float) -> Row:
    with torch.no_grad():
        logits = model(torch.tensor([list(ids)])).logits[0, -1].double().numpy() / temperature
    weights: Row = np.exp(logits - logits.max())
    return weights / weights.sum()


def cut(row: Row, top_p: float) -> Row:
    """Token by token, the likeliest first, until they have the share that is asked for."""
    kept, held = np.zeros_like(row), 0.0
    for token in np.argsort(-row):
        if held >= top_p:
            break
        kept[token], held = row[token], held + row[token]
    return kept / kept.sum()


def tilted(row: Row, guide: ValueModel, ids: Sequence[int], others: Others) -> Row:
    with torch.no_grad():
        values = guide(torch.tensor([list(ids)]))[0, -1].double().numpy()
    chance = 1 / (1 + np.exp(-values))
    factors = 1 - chance + chance * math.exp(1 / ETA)
    chosen = np.isin(np.arange(len(row)), np.argsort(-row)[:TOP_K])
    weights = np.where(chosen, row * factors, 0.0)
    if others is Others.dropped:
        return weights / weights.sum()
    if others is Others.kept:
        return np.where(chosen, weights / weights.sum() * row[chosen].sum(), row)
    weights = np.where(chosen, weights, row)
    return weights / weights.sum()


def divergence(policy: Row, reference: Row) -> float:
    drawn = policy > 0
    return float((policy[drawn] * np.log(policy[drawn] / reference[drawn])).sum())


def expected(found: Decoded, step: Callable[[list[int]], tuple[Row, Row]]) -> list[float]:
    """Divergence of policy and reference summed over the prefixes of every completion."""
    repeated = [prompt for prompt in PROMPTS for _ in range(SAMPLES)]
    return [
        sum(divergence(*step(prompt + tokens[:at])) for at in range(len(tokens)))
        for prompt, tokens in zip(repeated, found.tokens, strict=True)
    ]


@pytest.mark.parametrize(
    ("temperature", "top_p"),
    [
        (1.0, 1.0),
        (1.0, 0.85),
        (0.6, 0.85),
        (1.7, 1.0),
        pytest.param(0.6, 1.0, marks=pytest.mark.exhaustive),
        pytest.param(1.7, 0.85, marks=pytest.mark.exhaustive),
    ],
)
class TestEveryPolicyIsMeasuredFromTheWholeReference:
    def test_the_reference_itself(self, temperature: float, top_p: float) -> None:
        model = language_model("gpt2")
        found = completed(TextPolicy(model, make_tokenizer(DATASET), settings(temperature, top_p), DATASET, "cpu"))

        def step(ids: list[int]) -> tuple[Row, Row]:
            row = whole(model, ids, temperature)
            return cut(row, top_p), row

        assert found.kl == pytest.approx(expected(found, step), abs=1e-5)
        assert (found.kl > 0.05).any() == (top_p < 1)
        assert found.kl.any() == (top_p < 1)

    @pytest.mark.parametrize("others", Others)
    def test_a_guided_one(self, temperature: float, top_p: float, others: Others) -> None:
        model = language_model("gpt2")
        guide = opinionated(model, HeadType.q)
        guidance = Guidance(guide, Tilt(bernoulli_offset(ETA), top_k=TOP_K, others=others))
        policy = TextPolicy(
            model, make_tokenizer(DATASET), settings(temperature, top_p), DATASET, "cpu", guidance=guidance
        )
        found = completed(policy)

        def step(ids: list[int]) -> tuple[Row, Row]:
            row = whole(model, ids, temperature)
            return tilted(cut(row, top_p), guide, ids, others), row

        assert found.kl == pytest.approx(expected(found, step), abs=1e-5)

    def test_a_trained_one(self, temperature: float, top_p: float) -> None:
        reference, model = language_model("gpt2"), language_model("gpt2", seed=3)
        policy = TrainedPolicy(model, make_tokenizer(DATASET), settings(temperature, top_p), DATASET, "cpu")
        policy.reference = reference
        found = completed(policy)

        def step(ids: list[int]) -> tuple[Row, Row]:
            return cut(whole(model, ids, temperature), top_p), whole(reference, ids, temperature)

        assert found.kl == pytest.approx(expected(found, step), abs=1e-4)


COUNT = 3


@pytest.mark.parametrize("majority", [False, True], ids=["highest score", "majority"])
def test_the_bound_of_best_of_n_is_one_from_the_whole_reference(majority: bool) -> None:
    """Exactly, for completions of one token: all of the draws that there may be."""
    model, prompt, top_p, temperature = language_model("gpt2"), [1, 2, 3], 0.6, 2.0
    policy = BestOfNPolicy(model, make_tokenizer(DATASET), settings(temperature, top_p), DATASET, "cpu")
    policy.count = COUNT
    worth = np.random.default_rng(0).permutation(17)
    pick = by_majority(lambda tokens: str(tokens[0] % 4)) if majority else by_worth(worth)
    policy.pick = pick
    keys = sample_keys(0, "test", np.arange(1), 5)
    found = policy.complete([prompt], keys, samples=5, budgets=np.array([1])).kl
    row = whole(model, prompt, temperature)
    sampled, given = cut(row, top_p), np.zeros_like(row)
    for tokens in product(np.flatnonzero(sampled), repeat=COUNT):
        place = int(pick([prompt] * COUNT, [[int(token)] for token in tokens], COUNT)[0])
        given[tokens[place]] += math.prod(sampled[token] for token in tokens)
    bound = math.log(COUNT) - (COUNT - 1) / COUNT
    assert given.sum() == pytest.approx(1)
    assert divergence(given, sampled) <= bound
    assert divergence(given, row) <= found.min()
    # Without the nucleus' own part it would be none.
    assert majority or divergence(given, row) > bound
    assert found == pytest.approx([bound + divergence(sampled, row)] * 5, abs=1e-6)


def by_worth(worth: NDArray[np.int64]) -> Callable[..., NDArray[np.int64]]:
    def pick(_: object, completions: Sequence[Sequence[int]], count: int) -> NDArray[np.int64]:
        found: NDArray[np.int64] = worth[[tokens[0] for tokens in completions]].reshape(-1, count).argmax(1)
        return found

    return pick
