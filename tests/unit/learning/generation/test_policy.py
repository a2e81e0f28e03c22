"""Policies when memory runs out: fewer rows at once, and nothing that was finished is lost."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from pipeline.config.schema import GenerationConfig
from pipeline.errors import DataError, OutOfMemory
from pipeline.learning.algos import opening
from pipeline.learning.choices import HeadType, Others
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.datasets.made import AdditionConfig
from pipeline.learning.generation.decode import Decoded, Guidance
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.generation.sampling import sample_keys
from pipeline.learning.generation.tilt import Tilt, preference_offset
from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.kinds import HFModelConfig
from pipeline.learning.models.tiny import make_tokenizer
from tests.unit.learning.generation.conftest import language_model, opinionated

DATASET = load_dataset(AdditionConfig(kind="addition"))
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


@pytest.mark.parametrize("guided", [False, True], ids=["plain", "guided"])
@pytest.mark.parametrize("kind", ["gpt2", "gptj"])
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


def test_what_was_finished_is_not_done_again() -> None:
    """The longest prompts come last; they alone do not fit."""
    model = language_model("gpt2")
    calls = 0

    def check(module: object, args: object, kwargs: dict[str, torch.Tensor]) -> None:
        nonlocal calls
        width, rows = kwargs["input_ids"].shape[1], len(kwargs["input_ids"])
        calls += 1
        if width == 4 and rows > 1:
            raise torch.OutOfMemoryError("no")

    expected, told = complete(model, 4)
    model.register_forward_pre_hook(check, with_kwargs=True)
    found, told_too = complete(model, 4)
    assert_equal(found, expected)
    assert [done for done, _ in told_too] == [done for done, _ in told] == list(range(2, 21, 2))
    # Two prompts at a time, the last two each alone, of four forward passes each, and the one that failed.
    assert calls == 4 * 6 + 1


def test_the_next_job_starts_with_what_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = language_model("gpt2")
    limit = Limited(model, rows=5)
    first, _ = complete(model, 16, hints=tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        "out of memory at batch 16: using 8",
        "out of memory at batch 8: using 4",
    ]
    limit.seen.clear()
    second, _ = complete(model, 16, hints=tmp_path)
    assert_equal(second, first)
    assert max(limit.seen) == 4
    assert capsys.readouterr().out == ""
    # With a value model beside it less may fit, which is not known yet.
    limit.handle.remove()
    wide = Limited(model, rows=99)
    complete(model, 16, hints=tmp_path, guided=True)
    assert max(wide.seen) == 16


def test_what_was_tried_is_said_where_not_even_one_row_fits() -> None:
    model = language_model("gpt2")
    Limited(model, rows=0)
    with pytest.raises(OutOfMemory, match=r"single sequence at once \(batch sizes tried: 12, 6, 3, 1\)\. Try a"):
        complete(model, 12, samples=3)


@pytest.mark.parametrize("kind", ["gpt2", "gptj"])
def test_prompts_that_may_not_grow_are_finished_as_they_are(kind: str) -> None:
    policy = TextPolicy(language_model(kind), make_tokenizer(DATASET), GenerationConfig(), DATASET, "cpu")
    told: list[tuple[int, int]] = []
    keys = sample_keys(0, "test", np.arange(2), 3)
    for drawn in (keys, None):
        found = policy.complete(
            PROMPTS[:2], drawn, samples=3, budgets=np.zeros(2, np.int64), on_batch=lambda *both: told.append(both)
        )
        assert (found.tokens, found.kl.tolist()) == ([[]] * 6, [0.0] * 6)
    assert told == [(3, 0), (6, 0)] * 2


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


@pytest.mark.parametrize(
    ("kind", "head", "room"),
    [
        ("gpt2", HeadType.v, 60),
        ("gpt2", HeadType.q, 60),
        ("gptj", HeadType.v, 60),
        ("gpt_neo", HeadType.v, 60),
        ("gpt_neo", HeadType.q, 60),
    ],
)
def test_a_guide_never_reads_past_its_context(kind: str, head: HeadType, room: int) -> None:
    policy = guided(kind, head)
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
