"""Training weights: log-probabilities, divergence, groups, adapters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel

from pipeline.config.schema import DType
from pipeline.learning.algos.dpo import DPOConfig
from pipeline.learning.choices import HeadType
from pipeline.learning.generation import decode, policy
from pipeline.learning.models.value import ValueModel, value_model_from, without_dropout
from pipeline.learning.training import loop, preferences, value
from pipeline.learning.training.scoring import completion_logprobs, score_sequences, sequence_divergence
from pipeline.learning.training.sequences import Sequences, batch_of
from tests.doubles.fitting import fitting
from tests.doubles.models import tiny_policy
from tests.unit.learning.generation.conftest import language_model
from tests.unit.learning.training.test_loop import sequences as value_sequences


def sequences(count: int = 12) -> Sequences:
    generator = np.random.default_rng(0)
    lengths = generator.integers(5, 11, count)
    ids = [generator.integers(0, 10, length).tolist() for length in lengths]
    return Sequences.of(ids, [2 + row % 3 for row in range(count)], [0.0] * count)


def test_log_probabilities_are_those_of_each_sequence_alone() -> None:
    model, data = tiny_policy(), sequences()
    batch = batch_of(data, np.arange(len(data)), "cpu")
    with torch.no_grad():
        found = completion_logprobs(model, batch, temperature=0.7)
        for row in range(len(data)):
            ids = torch.from_numpy(data.ids[row, : data.lengths[row]].astype(np.int64))
            alone = (model(ids[None]).logits[0] / 0.7).log_softmax(-1)
            for place in range(batch.ids.shape[1]):
                inside = data.starts[row] <= place < data.lengths[row]
                expected = float(alone[place - 1, ids[place]]) if inside else 0.0
                assert float(found[row, place]) == pytest.approx(expected, abs=1e-5)


def test_divergence_is_the_sum_over_the_vocabulary_at_every_step() -> None:
    model, reference, data = tiny_policy(0), tiny_policy(1), sequences(4)
    batch = batch_of(data, np.arange(4), "cpu")
    with torch.no_grad():
        found = sequence_divergence(model, reference, batch, 1.3)
        assert sequence_divergence(model, model, batch, 1.3).tolist() == [0.0] * 4
        for row in range(4):
            ids = torch.from_numpy(data.ids[row, : data.lengths[row]].astype(np.int64))[None]
            one, other = ((net(ids).logits[0] / 1.3).log_softmax(-1) for net in (model, reference))
            steps = (one.exp() * (one - other)).sum(-1)[data.starts[row] - 1 : data.lengths[row] - 1]
            assert float(found[row]) == pytest.approx(float(steps.sum()), abs=1e-4)
    assert (found > 0).all()


def test_scores_do_not_depend_on_the_batch() -> None:
    model, data = tiny_policy(), sequences()
    tables = [
        score_sequences(
            data, lambda batch: completion_logprobs(model, batch), micro_batch_size=size, device="cpu", width=10
        )
        for size in (1, 5, 12)
    ]
    for table in tables[1:]:
        assert table == pytest.approx(tables[0], abs=1e-5)


@pytest.mark.parametrize("micro_batch_size", [1, 3, 4, 7, 100])
def test_no_micro_batch_splits_a_group(micro_batch_size: int) -> None:
    model, seen = tiny_policy(), []

    def loss_of(batch, part, whole):
        seen.append(part.tolist())
        assert set(part) <= set(whole)
        return completion_logprobs(model, batch).sum() * 0

    loop.fit(model, loop.TrainingSet(sequences(), loss_of, group=4), fitting(micro_batch_size, batch_size=4))
    for part in seen:
        assert len(part) % 4 == 0
        assert [row // 4 for row in part] == [part[at - at % 4] // 4 for at in range(len(part))]
    with pytest.raises(ValueError, match="in groups of 3"):
        loop.fit(model, loop.TrainingSet(sequences(), loss_of, group=3), fitting(batch_size=4))


def test_like_lengths_share_a_micro_batch_and_steps_keep_their_sequences() -> None:
    generator = np.random.default_rng(1)
    ids = [generator.integers(0, 10, length).tolist() for length in generator.integers(3, 25, 32)]
    data = Sequences.of(ids, [2] * 32, [0.0] * 32)
    found: dict[bool, list[tuple[set[int], set[int]]]] = {}
    for grouped in (False, True):
        seen = found.setdefault(grouped, [])

        def loss_of(batch, part, whole, seen=seen):
            seen.append((set(part.tolist()), set(whole.tolist())))
            assert [row // 2 for row in part[0::2]] == [row // 2 for row in part[1::2]]
            return completion_logprobs(tiny_policy(), batch).sum() * 0 + torch.zeros((), requires_grad=True)

        how = fitting(4, batch_size=16, group_by_length=grouped)
        loop.fit(tiny_policy(), loop.TrainingSet(data, loss_of, group=2), how)
    assert [whole for _, whole in found[True]] == [whole for _, whole in found[False]]
    widths = {
        grouped: sum(4 * max(len(ids[row]) for row in part) for part, _ in parts)
        for grouped, parts in found.items()
    }
    assert widths[True] < widths[False]


def test_dropout_is_switched_off() -> None:
    model = tiny_policy(dropout=0.5).train()
    without_dropout(model)
    ids = torch.tensor([[1, 2, 3, 4]])
    assert torch.equal(model(ids).logits, model(ids).logits)


# -- test gradient checkpointing ---------------------------------------------------------------------------------
# Gradient checkpointing computes layers twice, to the same gradients, and without a word of warning.


def fit(kind: str, checkpointing: bool) -> tuple[ValueModel, list[float], int]:
    model = value_model_from(language_model(kind), HeadType.v).requires_grad_(True)
    layers = model.backbone.h if kind == "gpt2" else model.backbone.layers
    seen = []
    layers[0].mlp.register_forward_pre_hook(lambda *_: seen.append(1))
    how = fitting(warmup_steps=2, gradient_checkpointing=checkpointing)
    losses = value.fit_value(model, value_sequences(), how)
    return model, losses, len(seen)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_checkpointing_saves_memory_and_changes_nothing_else(kind: str) -> None:
    plain, losses, computed = fit(kind, checkpointing=False)
    saving, same_losses, twice = fit(kind, checkpointing=True)
    assert twice == 2 * computed
    assert same_losses == losses
    for one, other in zip(plain.parameters(), saving.parameters(), strict=True):
        assert torch.equal(one, other)


# -- test precision ----------------------------------------------------------------------------------------------
# Trainings that compute in bfloat16: weights stay float32, and what is compared is computed alike.


def pairs() -> Sequences:
    generator = np.random.default_rng(0)
    return Sequences.of(generator.integers(0, 10, (16, 8)).tolist(), [3] * 16, [1.0, 0.0] * 8)


def fit_pairs(dtype: DType) -> tuple[GPT2LMHeadModel, list[float]]:
    model, data = tiny_policy(), pairs()
    with loop.computing_in(dtype, "cpu"):
        anchor = score_sequences(
            data,
            lambda batch: completion_logprobs(model, batch).double().sum(-1),
            micro_batch_size=8,
            device="cpu",
        )
    made = preferences.dpo_set(model, data, anchor, DPOConfig(beta=1.0), "cpu")
    return model, loop.fit(model, made, fitting(epochs=4, dtype=dtype))


def test_a_policy_that_computes_like_its_anchor_starts_at_it() -> None:
    model, losses = fit_pairs(DType.bfloat16)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert losses[0] == pytest.approx(np.log(2), abs=1e-6)
    assert losses[-1] < 0.5 < losses[0]
    assert losses != fit_pairs(DType.float32)[1]


def test_a_policy_is_as_likely_to_draw_as_training_begins_with() -> None:
    """What drew was rounded; scored by that, the ratio of GRPO would not be 1 at the first step."""
    exact, prompts, drawn = tiny_policy(), [[1, 2, 3]] * 4, [[4, 5], [6, 7, 8], [9], [1, 1]]
    settings = decode.DecodeSettings(batch_size=4)
    with loop.computing_in(DType.bfloat16, "cpu"):
        found = policy.completion_scores(exact, prompts, drawn, settings)
        data = Sequences.of([[*p, *d] for p, d in zip(prompts, drawn, strict=True)], [3] * 4, [0.0] * 4)
        batch = batch_of(data, np.argsort(data.lengths, kind="stable"), "cpu")
        begun = completion_logprobs(exact, batch).detach()
    first = begun[batch.mask].numpy()
    np.testing.assert_array_equal(np.concatenate([found[at] for at in (2, 0, 3, 1)]), first)
    rounded = policy.completion_scores(tiny_policy().bfloat16(), prompts, drawn, settings)
    assert any(not np.array_equal(one, other) for one, other in zip(found, rounded, strict=True))
