"""Rows of any age beside each other draw what rows draw that begin together, whatever enters and leaves when."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from pipeline.errors import JobError
from pipeline.learning.choices import HeadType, Others
from pipeline.learning.generation import decode as decoding
from pipeline.learning.generation import row_models
from pipeline.learning.generation.sampling import Keys, Tilt, preference_offset, sample_keys
from pipeline.learning.models import flops, load
from pipeline.learning.models.value import ValueModel
from pipeline.outputs.formats import Sampling
from tests.unit.learning.generation.conftest import VOCABULARY, language_model, opinionated
from tests.unit.learning.generation.test_decode import TILTS

HEADS = [None, HeadType.v, HeadType.q]


class Case:
    """Random work for random settings: a little, of which there is more than there are slots."""

    def __init__(self, seed: int) -> None:
        numbers = np.random.default_rng(seed)
        count, self.samples = int(numbers.integers(2, 9)), int(numbers.choice([1, 1, 2, 3]))
        self.prompts = [
            numbers.integers(1, VOCABULARY, length).tolist() for length in numbers.integers(1, 9, count)
        ]
        self.budgets = numbers.integers(0, 10, count) if seed % 2 else np.full(count, 6)
        self.budgets[0] = 5
        self.settings = decoding.DecodeSettings(
            batch_size=int(numbers.integers(2, 7)),
            sampling=Sampling(
                temperature=float(numbers.choice([1.0, 1.4])), top_p=float(numbers.choice([1.0, 0.8]))
            ),
            eos_id=None if numbers.random() < 0.2 else 5,
            further_end_ids=(7, 2) if numbers.random() < 0.5 else (),
        )
        self.keys: Keys | None = sample_keys(seed, "test", np.arange(count), self.samples)
        if numbers.random() < 0.3:
            self.keys = None
        self.tilt = list(TILTS.values())[int(numbers.integers(len(TILTS)))]
        self.pace = decoding.SlotPace(
            prefill=float(numbers.choice([0.0, 0.4, 1.0, 9.0])),
            entry=float(numbers.choice([0.0, 0.2, 2.0])),
            look_every=int(numbers.choice([1, 1, 3, 8])),
        )

    def drawn(self, model: PreTrainedModel, value: ValueModel | None = None, **options: Any) -> decoding.Decoded:
        return decoding.decode(
            model,
            self.prompts,
            self.budgets,
            self.settings,
            keys=self.keys,
            samples=self.samples,
            guidance=None if value is None else decoding.Guidance(value, self.tilt),
            **{"pace": self.pace, **options},
        )

    def in_batches(self, model: PreTrainedModel, value: ValueModel | None = None) -> decoding.Decoded:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(row_models, "reads_rows", lambda _: False)
            return self.drawn(model, value)

    def check(self, model: PreTrainedModel, value: ValueModel | None = None) -> decoding.Decoded:
        ours, theirs = self.drawn(model, value), self.in_batches(model, value)
        assert ours.tokens == theirs.tokens
        assert ours.kl == pytest.approx(theirs.kl, abs=1e-4)
        return ours


@pytest.mark.parametrize("head", HEADS)
def test_slots_draw_what_batches_draw(model: PreTrainedModel, head: HeadType | None) -> None:
    value = head and opinionated(model, head)
    _, once = (Case(seed).check(model, value) for seed in range(2))
    again = Case(1).drawn(model, value)
    assert (again.tokens, again.kl.tobytes()) == (once.tokens, once.kl.tobytes())


def sure_of_itself(kind: str) -> PreTrainedModel:
    """A model of whose steps half have one candidate of 20 %."""
    model = language_model(kind)
    norm = model.transformer.ln_f if kind == "gpt2" else model.model.norm
    norm.weight.mul_(4.0)
    return model


# Each two of them meet, and with them one slot for a head that reads candidates, of which it may have one alone.
@pytest.mark.parametrize(
    ("head", "others", "slots"),
    [
        (HeadType.v if (at + slots) % 2 else HeadType.q, others, slots)
        for at, others in enumerate((Others.kept, Others.offset_zero, Others.dropped))
        for slots in (1, 2)
    ],
)
def test_tokens_without_a_choice_change_nothing(head: HeadType, others: Others, slots: int) -> None:
    model = sure_of_itself("gpt2" if slots == 2 else "llama")
    value, case = opinionated(model, head), Case(3)
    case.tilt = Tilt(preference_offset(0.5), top_k=4, min_p=0.2, others=others)
    case.settings = replace(
        case.settings, batch_size=slots, sampling=replace(case.settings.sampling, top_p=1.0), eos_id=5
    )
    case.check(model, value)


@pytest.mark.parametrize("head", HEADS)
def test_what_a_text_leaves_behind_does_not_reach_later_ones(
    model: PreTrainedModel, head: HeadType | None
) -> None:
    """Not even what is no number: keys and values of token 16 are none, nor are those of what follows it."""
    value = head and opinionated(model, head)
    for outputs in [model.get_output_embeddings(), *([] if value is None else [value.head])]:
        outputs.register_forward_hook(lambda _, __, found: found.nan_to_num())
    for one in [model] if value is None else [value.backbone]:
        one.get_input_embeddings().register_forward_hook(
            lambda _, ids, found: found.masked_fill(ids[0][..., None] == 16, math.nan)
        )
    broken = [[16] * 9, [3] * 7 + [16]]
    guidance = None if value is None else decoding.Guidance(value, Tilt(preference_offset(0.7), top_k=4))
    settings, pace = decoding.DecodeSettings(batch_size=2, eos_id=16), decoding.SlotPace(prefill=0.0, entry=0.0)

    def tokens(prompts: list[list[int]], budgets: list[int]) -> list[list[int]]:
        found = decoding.decode(model, prompts, budgets, settings, keys=None, guidance=guidance, pace=pace)
        return found.tokens

    # The shortest are read first: a broken one leaves a long text, and what comes into its place is shorter.
    sound = [[1, 2, 3, 4, 5, 6, 7, 8, 9, row] for row in range(1, 6)]
    alone = tokens(sound, [4, 6, 8, 2, 9])
    assert tokens([*broken, *sound], [20, 30, 4, 6, 8, 2, 9])[2:] == alone


@pytest.mark.parametrize(
    ("head", "which", "broken", "drawn", "every"),
    [
        (None, "model", math.nan, True, 3),
        (HeadType.v, "model", math.inf, False, 3),
        (HeadType.v, "value model", math.nan, False, 1),
        (HeadType.q, "value model", math.inf, True, 1),
    ],
)
def test_a_broken_model_is_told_of(
    head: HeadType | None, which: str, broken: float, drawn: bool, every: int
) -> None:
    """And never reads a token that there is not, which a GPU would not survive."""
    model, calls = language_model("llama"), []
    value = head and opinionated(model, head)

    def breaks(_module: object, _given: object, found: torch.Tensor) -> torch.Tensor:
        calls.append(found)
        return found if len(calls) == 1 else found.index_fill(-1, torch.tensor([0]), broken)

    outputs = model.get_output_embeddings() if value is None or which == "model" else value.head
    outputs.register_forward_hook(breaks)
    with pytest.raises(JobError, match=f"what the {which} computes is no number.*learning rate"):
        decoding.decode(
            model,
            [[1], [2, 3], [4, 5, 6]],
            [6, 6, 6],
            decoding.DecodeSettings(batch_size=2),
            keys=sample_keys(0, "test", np.arange(3), 1) if drawn else None,
            guidance=None
            if value is None
            else decoding.Guidance(value, Tilt(preference_offset(0.7), top_k=VOCABULARY)),
            pace=decoding.SlotPace(look_every=every),
        )


def mixed(count: int = 24, samples: int = 1) -> dict[str, Any]:
    """Prompts of one length with budgets of 1 to 16."""
    numbers = np.random.default_rng(1)
    return {
        "prompts": [[1 + row % 16, 1 + row // 16, 3] for row in range(count)],
        "budgets": numbers.integers(1, 17, count),
        "keys": sample_keys(0, "test", np.arange(count), samples),
        "samples": samples,
    }


def test_what_is_finished_is_kept_and_counted_before_a_failure() -> None:
    model, given = language_model("gpt2"), mixed(samples=2)
    settings, keys = decoding.DecodeSettings(batch_size=8), given["keys"]
    whole = decoding.decode(model, settings=settings, **given)
    work = decoding.DecodingWork(given["prompts"], given["budgets"], 2)
    passes = 0

    def fail(*_: object) -> None:
        nonlocal passes
        passes += 1
        if passes == 30:
            raise torch.OutOfMemoryError

    model.register_forward_pre_hook(fail)
    with flops.metered() as meter, pytest.raises(torch.OutOfMemoryError):
        decoding.do(work, model, settings, keys=keys)
    some = np.flatnonzero(work.done).tolist()
    assert 3 < len(some) < 21
    assert all(work.tokens[2 * at : 2 * at + 2] == whole.tokens[2 * at : 2 * at + 2] for at in some)
    prompts = [given["prompts"][prompt] for prompt in some]
    with flops.metered() as again:
        decoding.decode(model, prompts, given["budgets"][some], settings, keys=keys[some], samples=2)
    assert dict(meter.flops) == dict(again.flops)
    work.begin()
    decoding.do(work, model, settings, keys=keys)
    assert work.tokens == whole.tokens


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("head", HEADS)
def test_slots_on_a_gpu(head: HeadType | None, make_value: Callable[..., ValueModel]) -> None:
    model = load.frozen(language_model("llama"), "cuda")
    value = None if head is None else load.frozen(make_value(language_model("llama"), head), "cuda")
    for seed in range(6):
        case = Case(seed)
        case.settings = replace(case.settings, device="cuda")
        ours, theirs = case.drawn(model, value, pace=decoding.SlotPace()), case.in_batches(model, value)
        assert ours.tokens == theirs.tokens
