"""The fast decoder is equal to slow ones, for both families of models and both heads."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.errors import DataError, RanksDisagree
from pipeline.learning.choices import HeadType, Others
from pipeline.learning.generation import decode as decoding
from pipeline.learning.generation import guided, row_models, sampling
from pipeline.learning.models.tensor_parallel import note_split
from pipeline.learning.models.value import ValueModel
from pipeline.learning.training.distributed import Ranks, Spread, bits_of
from tests.unit.learning.generation.conftest import VOCABULARY, language_model

MakeValue = Callable[[PreTrainedModel, HeadType], ValueModel]
STEPS = 7
TILTS = {
    "others kept": sampling.Tilt(sampling.preference_offset(0.7), top_k=4),
    "others dropped": sampling.Tilt(sampling.bernoulli_offset(0.2), top_k=6, min_p=0.05, others=Others.dropped),
    "uneven, others kept": sampling.Tilt(sampling.preference_offset(0.7), top_k=8, min_p=0.04),
    "uneven, others at offset 0": sampling.Tilt(
        sampling.bernoulli_offset(0.5), top_k=8, min_p=0.04, others=Others.offset_zero
    ),
}
FAMILIES = ("gpt2", "llama")
"""Of `model`: where each tilt meets each head, and each of both each family, all three need not meet."""


def some_prompts(count: int = 9) -> list[list[int]]:
    """Prompts of different lengths, in no order."""
    generator = np.random.default_rng(0)
    return [generator.integers(1, 17, length).tolist() for length in generator.integers(1, 9, count)]


def run(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    rows: Sequence[int] | None = None,
    batch_size: int = 64,
    samples: int = 1,
    budgets: Sequence[int] | None = None,
    greedy: bool = False,
    eos_id: int | None = None,
    guidance: decoding.Guidance | None = None,
) -> decoding.Decoded:
    keys = sampling.sample_keys(0, "test", np.array(range(len(prompts)) if rows is None else rows), samples)
    return decoding.decode(
        model,
        prompts,
        budgets or [STEPS] * len(prompts),
        decoding.DecodeSettings(batch_size=batch_size, eos_id=eos_id),
        keys=None if greedy else keys,
        samples=samples,
        guidance=guidance,
    )


class SlowGuide:
    """Values without any cache of keys or padding: texts are read whole and once, with those of their length."""

    joins, needs_equal_lengths, asked = True, False, None

    def __init__(self, model: ValueModel) -> None:
        self.model = model
        self.looks_up = model.config.head == "q"
        self._read: dict[tuple[int, ...], Tensor] = {}
        self.staged: Sequence[Sequence[int]] = []
        self.texts: list[list[int]] = []
        self.seen: list[Tensor] = []

    def stage(self, prompts: Sequence[Sequence[int]], *, at_once: bool) -> None:
        self.staged = prompts

    def unstage(self) -> None:
        self.staged = []

    def enter(self, places: Tensor | None, lengths: np.ndarray) -> None:
        at = range(len(self.staged)) if places is None else places.tolist()
        self.texts += [list(self.staged[place]) for place in at]

    def values(self, candidates: Tensor, valid: Tensor, _count: int | None = None) -> Tensor:
        rows = zip(self.texts, candidates.tolist(), strict=True)
        values = torch.tensor([self._values(text, tokens) for text, tokens in rows])
        self.seen.append(values[valid])
        return values

    def advance(self, tokens: Tensor, columns: Tensor) -> None:
        self.texts = [[*text, token] for text, token in zip(self.texts, tokens.tolist(), strict=True)]

    def keep(self, order: np.ndarray) -> None:
        self.texts = [self.texts[row] for row in order]

    def read(self, tokens: Tensor) -> None:
        """They are known."""

    def _values(self, text: list[int], candidates: list[int]) -> list[float]:
        if self.model.config.head == "q":
            (read_off,) = self._reads([text])
            return [float(read_off[token]) for token in candidates]
        return [float(value) for value in self._reads([[*text, token] for token in candidates])]

    def _reads(self, texts: list[list[int]]) -> list[Tensor]:
        wanted = [*map(tuple, texts)]
        if new := [text for text in dict.fromkeys(wanted) if text not in self._read]:
            self._read |= zip(new, self.model(torch.tensor(new))[:, -1], strict=True)
        return [self._read[text] for text in wanted]


class Recording:
    """A guide that notes the values it gives."""

    def __init__(self, guide: object, seen: list[Tensor]) -> None:
        self.guide = guide
        self.seen = seen

    def __getattr__(self, name: str) -> object:
        return getattr(self.guide, name)

    def values(self, candidates: Tensor, valid: Tensor, _count: int | None = None) -> Tensor:
        values = self.guide.values(candidates, valid)  # type: ignore[attr-defined]
        self.seen.append(values[valid])
        return values


def test_plain_decoding_equals_generate(model: PreTrainedModel) -> None:
    prompts = some_prompts()
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=STEPS, do_sample=False, pad_token_id=0)
    assert run(model, prompts, greedy=True).tokens == expected[:, width:].tolist()


# Batches with the other head draw what slots do, as `test_in_slots` has it.
@pytest.mark.parametrize("head", HeadType)
@torch.inference_mode()
def test_tokens_that_the_value_model_cannot_read_are_not_taken(make_value: MakeValue, head: HeadType) -> None:
    """Embeddings of a family are filled up to different sizes; of what fills them up nothing is drawn."""
    model = language_model("llama")
    guidance = decoding.Guidance(make_value(model, head), TILTS["others kept"])
    expected = run(model, some_prompts(), guidance=guidance)
    wide = language_model("llama")
    wide.resize_token_embeddings(VOCABULARY + 3, mean_resizing=False)
    wide.lm_head.weight[VOCABULARY:] = 3 * wide.lm_head.weight[4:7]
    assert any(token >= VOCABULARY for tokens in run(wide, some_prompts()).tokens for token in tokens)
    found = run(wide, some_prompts(), guidance=guidance)
    assert found.tokens == expected.tokens
    np.testing.assert_allclose(found.kl, expected.kl, atol=1e-4)
    scores = wide(torch.tensor([[1, 2]])).logits[:, -1]
    row = guided.GuidedLogitsProcessor(guidance.model, guidance.tilt)(torch.tensor([[1, 2]]), scores)
    assert row.shape == scores.shape
    assert row[:, VOCABULARY:].isneginf().all()


@pytest.mark.parametrize(
    ("model", "head", "in_slots", "name"),
    [
        (FAMILIES[(way + tilt) % 2], head, in_slots, name)
        for way, (head, in_slots) in enumerate([(HeadType.v, True), (HeadType.q, True), (HeadType.v, False)])
        for tilt, name in enumerate(TILTS)
    ],
    indirect=["model"],
)
def test_guided_decoding_equals_decoding_without_a_cache(
    model: PreTrainedModel,
    make_value: MakeValue,
    head: HeadType,
    name: str,
    in_slots: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value, prompts = make_value(model, head), some_prompts(4)
    budgets = [1 + row % STEPS for row in range(len(prompts))]
    slow, guide_of = SlowGuide(value), row_models.guide_of
    if not in_slots:
        monkeypatch.setattr(row_models, "reads_rows", lambda _: False)
    seen: list[Tensor] = []
    # Samples share the reading of their prompt, and there are more of them than there is room for.
    options: Any = {"batch_size": 3, "samples": 2, "budgets": budgets, "eos_id": 5}
    monkeypatch.setattr(row_models, "guide_of", lambda *given: Recording(guide_of(*given), seen))
    ours = run(model, prompts, guidance=decoding.Guidance(value, TILTS[name]), **options)
    monkeypatch.setattr(row_models, "guide_of", lambda *_: slow)
    theirs = run(model, prompts, guidance=decoding.Guidance(value, TILTS[name]), **options)
    assert ours.tokens == theirs.tokens
    assert ours.kl == pytest.approx(theirs.kl, abs=1e-4)
    assert len(seen) == len(slow.seen)
    for one, other in zip(seen, slow.seen, strict=True):
        assert torch.allclose(one, other, atol=2e-4)
    assert ours.tokens != run(model, prompts, **options).tokens


@pytest.mark.parametrize("head", [None, HeadType.v, HeadType.q])
def test_what_is_drawn_does_not_depend_on_batches_order_or_shards(
    make_value: MakeValue, head: HeadType | None
) -> None:
    model, prompts = language_model("llama"), some_prompts(5)
    guidance = head and decoding.Guidance(make_value(model, head), TILTS["others kept"])
    whole = run(model, prompts, guidance=guidance).tokens
    for batch_size in (1, 3):
        assert run(model, prompts, batch_size=batch_size, guidance=guidance).tokens == whole
    backwards = list(reversed(range(len(prompts))))
    shuffled = run(model, [prompts[i] for i in backwards], rows=backwards, guidance=guidance).tokens
    assert shuffled == whole[::-1]
    shards = [run(model, prompts[a:b], rows=range(a, b), guidance=guidance).tokens for a, b in ((0, 2), (2, 5))]
    assert shards[0] + shards[1] == whole


def test_a_prompt_without_tokens_is_refused_also_beside_others(model: PreTrainedModel) -> None:
    with pytest.raises(DataError, match="prompt 1 has no tokens"):
        run(model, [[1, 2], []])
    assert run(model, [[1, 2], []], budgets=[1, 0]).tokens[1] == []


# -- agreement ------------------------------------------------------------


TOKENS = np.array([[3, 4], [5, 6]])
LOGITS = torch.tensor([[0.5, -1.0], [2.0, 3.0]])


class OtherRanks(Ranks):
    """Ranks of which this process is one; `differ` says how far the numbers of each are from ours."""

    def __init__(self, rank: int, differ: Sequence[tuple[int, int]]) -> None:
        super().__init__(rank, len(differ), spread=Spread(by_tensors=True))
        self._differ = differ

    def all_numbers(self, values: Sequence[int]) -> list[list[int]]:
        return [[value + far for value, far in zip(values, each, strict=True)] for each in self._differ]


def agreement(rank: int, *differ: tuple[int, int]) -> decoding.Agreement:
    model = torch.nn.Linear(1, 1)
    note_split(model, OtherRanks(rank, differ))
    return decoding.Agreement(model)


@pytest.mark.parametrize(("differ", "what"), [((1, 0), "tokens"), ((0, 1), "logits"), ((2, 7), "tokens")])
def test_of_two_none_can_be_told_to_be_wrong(differ: tuple[int, int], what: str) -> None:
    with pytest.raises(
        RanksDisagree, match=f"2 ranks share a model, and have different {what} after 2 steps. A dev"
    ):
        agreement(0, (0, 0), differ).check(TOKENS, LOGITS)


def test_the_one_that_differs_from_most_is_named_and_tells() -> None:
    ranks = [(0, 0), (0, 0), (5, 0)]
    with pytest.raises(RanksDisagree, match="after 2 steps: rank 2 has others than most"):
        agreement(2, *ranks).check(TOKENS, LOGITS)
    # What others say is taken for a consequence.
    with pytest.raises(ConnectionError, match="rank 2 has others than most"):
        agreement(0, *ranks).check(TOKENS, LOGITS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_any_bit_of_a_logit_counts(dtype: torch.dtype) -> None:
    logits = LOGITS.to(dtype)
    other = logits.clone()
    other[1, 0] = torch.nextafter(other[1, 0], torch.tensor(9.0, dtype=dtype))
    assert bits_of(logits) != bits_of(other)
    assert bits_of(logits.T) == bits_of(logits)  # however they lie in memory
