"""Search among blocks, held to one that reads every text whole and draws token by token."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from pipeline.config.schema import GenerationConfig
from pipeline.errors import JobError
from pipeline.learning.choices import HeadType
from pipeline.learning.datasets import base, shipped
from pipeline.learning.generation.blocks import BlockSearchPolicy
from pipeline.learning.generation.policy import BestOfNPolicy, TextPolicy, by_score, of_texts
from pipeline.learning.generation.sampling import Keys, sample_keys, split_keys, uniforms
from pipeline.learning.models.flops import metered
from pipeline.learning.models.tiny import make_tokenizer
from pipeline.learning.models.value import ValueModel
from pipeline.learning.training.value import reward_scores
from tests.unit.learning.generation.conftest import language_model, opinionated

TOKENIZER = make_tokenizer(base.load_dataset(shipped.AdditionConfig(kind="addition")))
ENDLESS: Any = SimpleNamespace(completion_length=None, fixed_length=False)
PROMPTS, SAMPLES, LIMIT = [[1, 2, 3], [4], [5, 6]], 2, 5
KEYS = sample_keys(0, "test", np.arange(len(PROMPTS)), SAMPLES)
END = "2"
Row = NDArray[np.float64]
Kind = TypeVar("Kind", bound=TextPolicy)


def best(_: object, values: Row, count: int) -> NDArray[np.int64]:
    return np.sort(np.argsort(-values, kind="stable")[:count])


def search(
    model: PreTrainedModel, guide: ValueModel, n: int, beams: int, block: int, choose: Callable[..., Any] = best
) -> BlockSearchPolicy:
    policy = made(BlockSearchPolicy, model)
    policy.count, policy.beams, policy.block, policy.choose = n, beams, block, choose
    policy.values = partial(of_texts, partial(reward_scores, guide, **SCORED))
    return policy


SCORED: dict[str, Any] = {"micro_batch_size": 5, "device": "cpu", "as_labels": True, "purpose": "guidance"}


def made(kind: type[Kind], model: PreTrainedModel) -> Kind:
    generation = GenerationConfig(batch_size=7, max_new_tokens=LIMIT, stop=[END])
    return kind(model, TOKENIZER, generation, ENDLESS, "cpu")


def chances(model: PreTrainedModel, ids: Sequence[int]) -> Row:
    with torch.no_grad():
        row: Row = model(torch.tensor([list(ids)])).logits[0, -1].double().softmax(-1).numpy()
    return row


def by_hand(
    model: PreTrainedModel, guide: ValueModel, prompt: list[int], key: Keys, n: int, beams: int, block: int
) -> list[int]:
    def value(tokens: list[int]) -> float:
        with torch.no_grad():
            logits = guide(torch.tensor([[*prompt, *tokens]]))[0]
        return float(logits[-1] if guide.config.head == "v" else logits[-2, tokens[-1]])

    end = TOKENIZER.convert_tokens_to_ids(END)
    draws, each = uniforms(split_keys(key, n), LIMIT), n // beams

    def is_over(tokens: list[int]) -> bool:
        return len(tokens) == LIMIT or end in tokens

    def goes_on(tokens: list[int], stream: int) -> list[int]:
        grown = list(tokens)
        while not is_over(grown) and len(grown) < len(tokens) + block:
            sums = chances(model, [*prompt, *grown]).cumsum()
            grown.append(int(np.searchsorted(sums, draws[stream, len(grown)] * sums[-1], side="right")))
        return grown

    kept: list[list[int]] = [[]] * beams
    while open_ones := [at for at, tokens in enumerate(kept) if not is_over(tokens)]:
        grown = [goes_on(kept[at], at * each + more) for at in open_ones for more in range(each)]
        order = sorted(range(len(grown)), key=lambda place: -value(grown[place]))
        if each == 1:
            order = list(range(len(grown)))
        for at, place in zip(open_ones, sorted(order[: len(open_ones)]), strict=True):
            kept[at] = grown[place]
    return max(kept, key=value)


@pytest.mark.parametrize("head", HeadType)
@pytest.mark.parametrize(
    ("n", "beams", "block"), [(3, 1, 1), (3, 1, 2), (4, 2, 1), (4, 2, 2), (6, 3, 2), (3, 3, 2), (4, 2, 9)]
)
def test_it_goes_on_from_the_candidates_of_the_highest_values(
    head: HeadType, n: int, beams: int, block: int
) -> None:
    model = language_model("gpt2")
    guide = opinionated(model, head)
    found = search(model, guide, n, beams, block).complete(PROMPTS, KEYS, samples=SAMPLES)
    expected = [
        by_hand(model, guide, prompt, key, n, beams, block)
        for prompt, own in zip(PROMPTS, KEYS, strict=True)
        for key in own
    ]
    assert found.tokens == expected
    blocks = [-(-len(tokens) // block) for tokens in found.tokens]
    first, further = math.log(n) - (n - 1) / n, math.log(n // beams)
    adds = first if beams == 1 else further
    assert found.kl == pytest.approx([first + (count - 1) * adds for count in blocks])


def test_one_candidate_is_the_reference_and_one_block_is_best_of_n() -> None:
    model = language_model("gpt2")
    guide = opinionated(model, HeadType.v)
    plain = made(TextPolicy, model).complete(PROMPTS, KEYS, samples=SAMPLES)
    single = search(model, guide, 1, 1, 2).complete(PROMPTS, KEYS, samples=SAMPLES)
    assert (single.tokens, single.kl.tolist()) == (plain.tokens, plain.kl.tolist())
    best_of = made(BestOfNPolicy, model)
    best_of.count, best_of.pick = 4, by_score(partial(reward_scores, guide, **SCORED))
    expected = best_of.complete(PROMPTS, KEYS, samples=SAMPLES)
    assert expected.tokens != plain.tokens
    assert len({len(tokens) for tokens in expected.tokens}) > 1
    for beams in (1, 2, 4):
        found = search(model, guide, 4, beams, LIMIT).complete(PROMPTS, KEYS, samples=SAMPLES)
        assert found.tokens == expected.tokens
        assert found.kl == pytest.approx(expected.kl)


@pytest.mark.parametrize(("n", "beams"), [(3, 1), (4, 2)])
def test_the_bound_is_one(n: int, beams: int) -> None:
    """Exactly, for completions of two tokens that are drawn one by one: all of the draws that there may be.

    What is kept is liked the more the less probable it is, which is the farthest from the reference.
    """
    first, second = np.array([0.7, 0.25, 0.05]), np.array([[0.6, 0.4], [0.9, 0.1], [0.3, 0.7]])
    value = {
        **{(a,): -first[a] for a in range(3)},
        **{(a, b): -first[a] * second[a, b] for a in range(3) for b in (0, 1)},
    }
    each, given = n // beams, np.zeros((3, 2))
    for begins in product(range(3), repeat=n):
        kept = sorted(range(n), key=lambda at: value[begins[at],])[:beams]
        for ends in product((0, 1), repeat=n):
            whole = [
                (begins[at], ends[place * each + more]) for place, at in enumerate(kept) for more in range(each)
            ]
            chance = math.prod(first[[*begins]]) * math.prod(second[a, b] for a, b in whole)
            given[min(whole, key=lambda pair: value[pair])] += chance
    assert given.sum() == pytest.approx(1)
    reference = first[:, None] * second
    divergence = float((given * np.log(given / reference)).sum())
    policy = made(BlockSearchPolicy, language_model("gpt2"))
    policy.count, policy.beams = n, beams
    assert math.log(n) - (n - 1) / n < divergence < policy.bound(2)  # so that of a single block would be none


def test_every_text_that_is_read_counts() -> None:
    model = language_model("gpt2")
    guide = opinionated(model, HeadType.v)
    with metered() as meter:
        search(model, guide, 2, 1, 3).complete([[1, 2, 3]], KEYS[:1, :1])
    with metered() as expected:
        first = made(TextPolicy, model)
        drawn = first.complete([[1, 2, 3]], split_keys(KEYS[:1, 0], 2), samples=2, budgets=np.array([3])).tokens
    assert 0 < expected.flops["decoding"] < meter.flops["decoding"]
    assert all(len(tokens) == 3 for tokens in drawn)
    with metered() as read:
        of_texts(partial(reward_scores, guide, **SCORED), [[1, 2, 3]] * 2, [[0] * 3] * 2)
        of_texts(partial(reward_scores, guide, **SCORED), [[1, 2, 3]] * 2, [[0] * 5] * 2)
    assert meter.flops["guidance"] == read.flops["guidance"]


@pytest.mark.parametrize("places", [[0], [0, 0], [0, 4], [-1, 0]])
def test_a_choice_of_something_else_than_candidates_is_told(places: list[int]) -> None:
    model = language_model("gpt2")
    policy = search(model, opinionated(model, HeadType.v), 4, 2, 2, lambda *_: np.array(places))
    with pytest.raises(JobError, match="must return 2 different ones of 0 to 3"):
        policy.complete(PROMPTS, KEYS, samples=SAMPLES)
