"""Where completions end: at stop strings as transformers finds them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, LogitsProcessor, PreTrainedTokenizerFast

from pipeline.config.schema import GenerationConfig
from pipeline.errors import JobError
from pipeline.learning.datasets import base, shipped
from pipeline.learning.generation import stops
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.generation.sampling import sample_keys

DATASET = base.load_dataset(shipped.AdditionConfig(kind="addition"))
LIMIT = 16
ASKED = ["ab", "cab b", "a", "bb c", "c\nab", "b a"]
STOPS = ["\n", "b c", "<tool>a"]


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, of few letters, with tokens that hold a stop string, begin one, or go on behind it."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    text = ["ab c ab\nb ca", "a\n\nb cab b c", "b  ca\nab c"] * 20
    made.train_from_iterator(text, trainers.BpeTrainer(vocab_size=40, initial_alphabet=[], show_progress=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", pad_token="<end>")
    tokenizer.add_special_tokens({"extra_special_tokens": ["<tool>", "<stop>"]})
    return tokenizer


@cache
def model(seed: int = 0) -> GPT2LMHeadModel:
    """Random, and flat enough to write many things."""
    end = tokenizer().eos_token_id
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = GPT2Config(
            vocab_size=len(tokenizer()), bos_token_id=None, eos_token_id=end, pad_token_id=end, **shape
        )
        return GPT2LMHeadModel(config).eval().requires_grad_(False)


def policies(stop: Sequence[str] = (), **settings: Any) -> TextPolicy:
    generation = GenerationConfig(**{"batch_size": 5, "max_new_tokens": LIMIT, "stop": list(stop), **settings})
    made = TextPolicy(model(), tokenizer(), generation, DATASET, "cpu")
    made.limit, made._fixed_length = LIMIT, False  # the dataset of the tests has answers of one length
    return made


def encoded() -> list[list[int]]:
    return [list(ids) for ids in tokenizer()(ASKED)["input_ids"]]


def written(made: TextPolicy, samples: int = 8) -> Any:
    return made.complete(encoded(), sample_keys(0, "test", np.arange(len(ASKED)), samples), samples=samples)


def cut(ids: Sequence[int], stop: Sequence[str]) -> list[int]:
    """The shortest beginning whose text holds a stop string: what any of these decoders must leave."""
    texts = (tokenizer().decode(ids[:count]) for count in range(1, len(ids) + 1))
    return list(
        ids[: next((at for at, text in enumerate(texts, 1) if any(one in text for one in stop)), len(ids))]
    )


class Forced(LogitsProcessor):
    """Has `generate` write given tokens, shape [n, T]."""

    def __init__(self, tokens: torch.Tensor, prompt: int) -> None:
        self._tokens, self._prompt = tokens, prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        now = self._tokens[:, input_ids.shape[1] - self._prompt]
        return torch.full_like(scores, -torch.inf).scatter_(1, now[:, None], 0.0)


def test_a_completion_ends_where_transformers_ends_it() -> None:
    stop = ["c a", "\n", "<tool>"]
    whole, found = written(policies()).tokens, written(policies(stop)).tokens
    end = tokenizer().eos_token_id
    tokens = torch.tensor([ids + [end] * (LIMIT - len(ids)) for ids in whole])
    # A prompt that no stop string begins in: there transformers would look for it as well.
    asked = torch.tensor([tokenizer()("aa")["input_ids"]] * len(whole))
    theirs = model().generate(
        asked,
        attention_mask=torch.ones_like(asked),
        max_new_tokens=LIMIT,
        do_sample=False,
        stop_strings=stop,
        tokenizer=tokenizer(),
        logits_processor=[Forced(tokens, asked.shape[1])],
    )
    assert found != whole
    for ids, row in zip(found, theirs[:, asked.shape[1] :].tolist(), strict=True):
        assert row[: len(ids)] == ids
        assert set(row[len(ids) :]) <= {end}


def test_the_same_tokens_are_drawn_up_to_the_stop() -> None:
    whole, found = written(policies(top_p=0.9)), written(policies(STOPS, top_p=0.9))
    assert found.tokens == [cut(ids, STOPS) for ids in whole.tokens]
    assert found.tokens != whole.tokens
    alike = [found.kl[at] for at, ids in enumerate(whole.tokens) if ids == found.tokens[at]]
    assert alike == pytest.approx([whole.kl[at] for at, ids in enumerate(whole.tokens) if ids == found.tokens[at]])
    assert (found.kl <= whole.kl + 1e-5).all()


def test_a_stop_string_may_begin_in_what_a_completion_has_already() -> None:
    made = policies(["b c"])
    b, c = tokenizer()("b")["input_ids"], tokenizer()(" c")["input_ids"]
    prompts, keys = [*encoded()[:1], *encoded()[:1]], sample_keys(0, "test", np.zeros(2, np.int64), 40)
    prompts = [prompt + b for prompt in prompts]
    (asked, begun) = (made.complete(prompts, keys, samples=40, budgets=np.array([LIMIT - k] * 2)) for k in (0, 1))
    at_once = [ids[: len(c)] == c for ids in asked.tokens]
    assert any(at_once)
    assert [ids == c for ids in begun.tokens] == at_once


def test_texts_have_no_stop_string_and_are_not_cut_off() -> None:
    made = policies(STOPS)
    tokens = written(made).tokens
    for ids, text in zip(tokens, made.text(tokens), strict=True):
        raw = tokenizer().decode(ids)
        at = min((raw.find(one) for one in STOPS if one in raw), default=None)
        assert made.ended(ids) == (at is not None or ids[-1] == tokenizer().eos_token_id)
        assert made.truncated(ids) == (not made.ended(ids))
        shown = raw if at is None else raw[:at]
        assert text == shown.replace("<end>", "").replace("<tool>", "").replace("<stop>", "")


def test_a_stop_string_that_nothing_can_write_is_refused() -> None:
    with pytest.raises(JobError, match=r"generation\.stop"):
        stops.StopStrings(tokenizer(), ["\N{SNOWMAN}"])


# -- spellings ------------------------------------------------------------


def searched(text: str, pieces: Mapping[int, str], ends: Collection[int], limit: int) -> Iterator[tuple[int, ...]]:
    """Every sequence that a policy may end with, one after the other."""
    for length in range(limit + 1):
        for ids in product(pieces, repeat=length):
            ended = length > 0 and ids[-1] in ends
            if any(token in ends for token in ids[:-1]) or not (ended or length == limit):
                continue
            if "".join("" if token in ends else pieces[token] for token in ids).strip() == text.strip():
                yield ids


SOME_TEXTS = st.text("ab ", min_size=0, max_size=3)
PIECES = st.lists(st.text("ab ", max_size=2), min_size=1, max_size=5)


@pytest.mark.properties
@given(SOME_TEXTS, PIECES, st.sets(st.integers(0, 4), max_size=2), st.integers(1, 4))
def test_none_is_left_out_and_none_is_there_twice(text: str, given: list[str], ends: set[int], limit: int) -> None:
    pieces = dict(enumerate(given))
    ends &= set(pieces)
    found = [tuple(ids) for ids in stops.spellings(text, pieces, ends, limit)]
    assert len(set(found)) == len(found)
    assert set(found) == set(searched(text, pieces, ends, limit))
