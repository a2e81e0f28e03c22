"""Policies when memory runs out: fewer rows at once, and nothing that was finished is lost."""

import math
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from pipeline.config.schema import GenerationConfig
from pipeline.errors import DataError
from pipeline.learning.algos import opening
from pipeline.learning.choices import HeadType, Others
from pipeline.learning.datasets import base, shipped
from pipeline.learning.generation.decode import Decoded, Guidance
from pipeline.learning.generation.policy import BestOfNPolicy, TextPolicy, TrainedPolicy, by_majority
from pipeline.learning.generation.sampling import Tilt, bernoulli_offset, preference_offset, sample_keys
from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.kinds import HFModelConfig
from pipeline.learning.models.tiny import make_tokenizer
from pipeline.learning.models.value import ValueModel
from tests.unit.learning.generation.conftest import language_model, opinionated

DATASET = base.load_dataset(shipped.AdditionConfig(kind="addition"))
PROMPTS = [[1, 2, 3, 4][: 1 + row % 4] for row in range(10)]


class Limited:
    """Raises out of memory where the forward pass of a model has more rows than fit."""

    def __init__(self, model: PreTrainedModel, rows: int) -> None:
        self.rows = rows
        self.seen: list[int] = []
        self.handle = model.register_forward_pre_hook(self.check, with_kwargs=True)

    def check(self, module: object, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]) -> None:
        self.seen.append(len(kwargs["input_ids"]))
        if self.seen[-1] > self.rows:
            raise torch.OutOfMemoryError(f"no room for {self.seen[-1]} rows")


def complete(
    model: PreTrainedModel, batch_size: int, samples: int = 2, hints: Path | None = None, guided: bool = False
) -> tuple[Decoded, list[tuple[int, int]]]:
    guidance, models = None, [model]
    if guided:
        value = opinionated(model, HeadType.v)
        guidance = Guidance(value, Tilt(preference_offset(0.5), top_k=4, min_p=0.0, others=Others.dropped))
        models.append(value)
    policy = TextPolicy(
        model,
        make_tokenizer(DATASET),
        GenerationConfig(batch_size=batch_size, max_new_tokens=4),
        DATASET,
        "cpu",
        guidance,
        sizes=BatchSizes(hints, "cpu", *models),
    )
    told: list[tuple[int, int]] = []
    keys = sample_keys(0, "test", np.arange(len(PROMPTS)), samples)
    decoded = policy.complete(PROMPTS, keys, samples=samples, on_batch=lambda done, n: told.append((done, n)))
    return decoded, told


def assert_equal(found: Decoded, expected: Decoded) -> None:
    assert found.tokens == expected.tokens
    assert found.kl.tolist() == expected.kl.tolist()


@pytest.mark.parametrize(("kind", "guided"), [("gptj", False), ("gpt2", True)])
def test_the_result_is_that_of_the_size_that_fits(kind: str, guided: bool) -> None:
    model = language_model(kind)
    expected, told = complete(model, 4, guided=guided)
    limit = Limited(model, rows=5)
    found, told_too = complete(model, 16, guided=guided)
    assert_equal(found, expected)
    assert told_too == told
    assert told[-1] == (20, 80)
    # Eight prompts at once fail at their prefill, four with two samples each at the step after it.
    assert [count for count in limit.seen if count > 5] == [8, 8]


def guided(kind: str, head: HeadType, others: Others = Others.dropped) -> TextPolicy:
    """A llama guided by a model of a kind, as jobs make it; the guide has a context of 64 tokens."""
    reference, guide = language_model("llama"), opinionated(language_model(kind), head)
    kept = {"policy": reference, "value": guide, "tokenizer": make_tokenizer(DATASET)}
    ctx: Any = SimpleNamespace(
        config=SimpleNamespace(
            system=None, generation=GenerationConfig(max_new_tokens=4), model=HFModelConfig(kind="hf")
        ),
        models=SimpleNamespace(get=lambda key, *_: kept[key[0]]),
        loading=None,
        hints=None,
        device="cpu",
    )
    tilt = Tilt(preference_offset(0.5), top_k=9, min_p=0.0, others=others)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "reference_source", lambda _: "")
        return opening.guided_policy(ctx, DATASET, Path("value"), tilt)


@pytest.mark.parametrize(("kind", "head"), [("gpt2", HeadType.v), ("gpt_neo", HeadType.q)])
def test_a_guide_never_reads_past_its_context(kind: str, head: HeadType) -> None:
    policy, room = guided(kind, head), 60
    fits = [[1] * room, [1, 2]]
    assert policy.fitted(fits) == fits
    keys = sample_keys(0, "test", np.arange(2), 2)
    assert all(len(tokens) == 4 for tokens in policy.complete(fits, keys, samples=2).tokens)
    with pytest.raises(
        DataError, match=f"the value model's context of {room + 4} tokens has room for {room} beside"
    ):
        policy.fitted([[1] * (room + 1)])


@pytest.mark.parametrize(("skipped", "text"), [(True, "1"), (False, "<think>1")])
def test_special_tokens_stay_in_texts_where_that_is_asked_for_and_are_counted_elsewhere(
    skipped: bool, text: str
) -> None:
    tokenizer = make_tokenizer(DATASET)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>"], "eos_token": "<end>"})
    generation = GenerationConfig(skip_special_tokens=skipped)
    policy = TextPolicy(language_model("gpt2"), tokenizer, generation, DATASET, "cpu")
    ids = tokenizer.convert_tokens_to_ids([tokenizer.bos_token, "<think>", "1", "<end>"])
    assert policy.text([ids]) == [text]
    assert policy.skipped(ids) == skipped


# -- divergence ------------------------------------------------------------


Row = NDArray[np.float64]
"""A distribution over the vocabulary."""
PROMPTS_DIVERGENCE = [[1, 2, 3], [4], [5, 6]]
SAMPLES, STEPS, ETA, TOP_K = 2, 4, 0.4, 3


def settings(temperature: float, top_p: float) -> GenerationConfig:
    return GenerationConfig(batch_size=9, max_new_tokens=STEPS, temperature=temperature, top_p=top_p)


def completed(policy: TextPolicy) -> Decoded:
    return policy.complete(
        PROMPTS_DIVERGENCE, sample_keys(0, "test", np.arange(len(PROMPTS_DIVERGENCE)), SAMPLES), samples=SAMPLES
    )


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
    repeated = [prompt for prompt in PROMPTS_DIVERGENCE for _ in range(SAMPLES)]
    return [
        sum(divergence(*step(prompt + tokens[:at])) for at in range(len(tokens)))
        for prompt, tokens in zip(repeated, found.tokens, strict=True)
    ]


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 0.85)])
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
