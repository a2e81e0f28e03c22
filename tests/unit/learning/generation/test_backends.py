"""Who decodes and where completions end: vLLM as our decoder does, stop strings as transformers does."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, LogitsProcessor, PreTrainedModel, PreTrainedTokenizerFast

from pipeline.config.schema import GenerationConfig, SystemConfig, TextBackend
from pipeline.errors import JobError, OutOfMemory
from pipeline.learning.algos import stage_entry
from pipeline.learning.datasets import base, shipped
from pipeline.learning.generation import decode, stops, vllm_engine
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.generation.sampling import sample_keys
from pipeline.learning.models import load, tiny
from pipeline.learning.models.cache import ModelCache
from tests.doubles import vllm_stand_in
from tests.doubles.models import write_rounds
from tests.unit.learning.generation.conftest import language_model

DATASET = base.load_dataset(shipped.AdditionConfig(kind="addition"))
PROMPTS = [[1, 2, 3, 4][: 1 + row % 4] for row in range(10)]
STEPS = 4
ENDS = 9


def policy(
    model: PreTrainedModel,
    backend: TextBackend,
    **settings: Any,
) -> TextPolicy:
    generation = GenerationConfig(**{"batch_size": 6, "max_new_tokens": STEPS, **settings, "backend": backend})
    return TextPolicy(model, tiny.make_tokenizer(DATASET), generation, DATASET, "cpu")


def ending(model: PreTrainedModel) -> PreTrainedModel:
    """The same, with a token that ends completions."""
    model.generation_config.eos_token_id = ENDS
    return model


def drawn(policy: TextPolicy, samples: int = 2) -> decode.Decoded:
    return policy.complete(PROMPTS, sample_keys(0, "test", np.arange(len(PROMPTS)), samples), samples=samples)


# -- vLLM ------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path, vllm: None) -> PreTrainedModel:
    """A model in a folder."""
    model = ending(language_model("gpt2"))
    model.save_pretrained(tmp_path / "model")
    return ending(load.load_policy(tmp_path / "model", SystemConfig(), "cpu"))


def test_vllm_draws_by_the_seed_of_each_sample(saved: PreTrainedModel) -> None:
    first = drawn(policy(saved, TextBackend.vllm, batch_size=2))
    assert first.tokens == drawn(policy(saved, TextBackend.vllm, batch_size=2)).tokens
    keys = sample_keys(0, "test", np.arange(len(PROMPTS)), 2)
    backwards = policy(saved, TextBackend.vllm, batch_size=2).complete(PROMPTS[::-1], keys[::-1], samples=2)
    assert [backwards.tokens[2 * place : 2 * place + 2] for place in range(9, -1, -1)] == [
        first.tokens[2 * place : 2 * place + 2] for place in range(10)
    ]
    (engine,) = vllm_stand_in.ENGINES
    assert engine.calls == [16, 4] * 3  # eight batches at a time
    assert engine.settings == {
        "dtype": "float32",
        "max_num_seqs": 2,
        "max_model_len": 8,
        "kv_cache_memory_bytes": 256 << 20,
    }
    drawn(policy(saved, TextBackend.vllm, max_new_tokens=20, memory_mb=25, temperature=1.3, top_p=0.9))
    assert vllm_stand_in.ENGINES[1].settings["kv_cache_memory_bytes"] == 25 << 20
    assert {(asked.temperature, asked.top_p) for asked in vllm_stand_in.ENGINES[1].asked} == {(1.3, 0.9)}


def test_vllm_reads_a_policy_of_which_adapters_are_stored(saved: PreTrainedModel, tmp_path: Path) -> None:
    write_rounds(saved, tmp_path, spread=0.3)
    merged = load.load_policy(tmp_path, SystemConfig(), "cpu", base=saved.name_or_path)
    ours = policy(merged, TextBackend.own).complete(PROMPTS, None).tokens
    assert ours != policy(saved, TextBackend.own).complete(PROMPTS, None).tokens
    told: list[tuple[int, int]] = []
    found = policy(merged, TextBackend.vllm).complete(PROMPTS, None, on_batch=lambda *now: told.append(now))
    assert found.tokens == ours
    assert told[-1] == (10, sum(map(len, ours)))


def test_vllm_leaves_the_gpu_to_a_training(saved: PreTrainedModel) -> None:
    drawn(policy(saved, TextBackend.vllm))
    assert vllm_engine._kept
    stage_entry._empty(ModelCache(0))
    assert vllm_stand_in.ENDED == vllm_stand_in.ENGINES
    drawn(policy(saved, TextBackend.vllm))
    assert len(vllm_stand_in.ENGINES) == 2


def test_vllm_is_asked_again_after_a_failure_and_reads_weights_that_have_changed(
    saved: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    first = drawn(policy(saved, TextBackend.vllm))
    with monkeypatch.context() as patch:
        patch.setattr(vllm_stand_in.LLM, "generate", broken)
        with pytest.raises(KeyboardInterrupt):
            drawn(policy(saved, TextBackend.vllm))
    assert vllm_stand_in.ENDED == vllm_stand_in.ENGINES  # an engine would wait for unfinished requests for ever
    assert drawn(policy(saved, TextBackend.vllm)).tokens == first.tokens
    other = ending(language_model("gpt2"))
    torch.nn.init.normal_(other.get_input_embeddings().get_parameter("weight"))
    other.save_pretrained(saved.name_or_path)
    assert drawn(policy(saved, TextBackend.vllm)).tokens != first.tokens
    assert len(vllm_stand_in.ENGINES) == 3


def test_vllm_draws_nothing_from_a_model_that_computes_no_numbers(
    saved: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = vllm_stand_in.LLM._one

    def broken(self: Any, *args: Any) -> vllm_stand_in.CompletionOutput:
        return replace(one(self, *args), cumulative_logprob=float("nan"))

    monkeypatch.setattr(vllm_stand_in.LLM, "_one", broken)
    with pytest.raises(JobError, match="no number"):
        drawn(policy(saved, TextBackend.vllm))


def test_an_end_that_vllm_leaves_out_is_put_back(saved: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = policy(saved, TextBackend.own).complete(PROMPTS, None)
    one = vllm_stand_in.LLM._one

    def without(self: Any, *args: Any) -> vllm_stand_in.CompletionOutput:
        output = one(self, *args)
        if output.finish_reason == "stop":
            output.token_ids = output.token_ids[:-1]
        return output

    monkeypatch.setattr(vllm_stand_in.LLM, "_one", without)
    assert policy(saved, TextBackend.vllm).complete(PROMPTS, None).tokens == ours.tokens


def test_vllm_without_room_or_folder_says_what_to_do(
    saved: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise ValueError("No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.")

    monkeypatch.setattr(vllm_stand_in, "LLM", full)
    with pytest.raises(OutOfMemory, match=r"Give it more of the GPU by generation\.memory_mb"):
        drawn(policy(saved, TextBackend.vllm))
    saved.name_or_path = "some/hub-id"
    with pytest.raises(JobError, match=r"'some/hub-id' is none; use generation\.backend=own"):
        policy(saved, TextBackend.vllm)


# -- stop strings --------------------------------------------------------------------------------------------


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


@pytest.fixture
def in_folder(tmp_path: Path, vllm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model().save_pretrained(tmp_path)
    monkeypatch.setattr(model(), "name_or_path", str(tmp_path))


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


@pytest.mark.parametrize("stop", [STOPS, ["<stop>"]], ids=repr)
def test_vllm_leaves_the_tokens_and_texts_that_our_decoder_does(in_folder: None, stop: list[str]) -> None:
    ours, theirs = policies(stop), policies(stop, backend=TextBackend.vllm)
    assert (ours.stops is None) == (stop != STOPS)  # a special token is one more end
    likeliest = theirs.complete(encoded(), None).tokens
    assert likeliest == ours.complete(encoded(), None).tokens
    whole, found = (written(policies(each, backend=TextBackend.vllm)).tokens for each in ((), stop))
    assert found == [cut(ids, stop) for ids in whole]
    assert found != whole
    for tokens in (likeliest, found):
        assert theirs.text(tokens) == ours.text(tokens)
        assert [*map(theirs.ended, tokens)] == [*map(ours.ended, tokens)]


@pytest.mark.parametrize("backend", TextBackend, ids=lambda one: one.name)
def test_a_stop_string_may_begin_in_what_a_completion_has_already(backend: TextBackend, in_folder: None) -> None:
    made = policies(["b c"], backend=backend)
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
