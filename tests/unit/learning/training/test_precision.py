"""Trainings that compute in bfloat16: weights stay float32, and what is compared is computed alike."""

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel

from pipeline.config.schema import DType, TrainingConfig
from pipeline.learning.choices import DPOLoss
from pipeline.learning.generation.decode import DecodeSettings
from pipeline.learning.generation.likelihood import completion_scores
from pipeline.learning.training.policy import Fitting, computing_in
from pipeline.learning.training.scoring import completion_logprobs, score_sequences
from pipeline.learning.training.sequences import Sequences, batch_of
from tests.doubles.models import tiny_policy


def pairs() -> Sequences:
    generator = np.random.default_rng(0)
    return Sequences.of(generator.integers(0, 10, (16, 8)).tolist(), [3] * 16, [1.0, 0.0] * 8)


def fit_pairs(dtype: DType) -> tuple[GPT2LMHeadModel, list[float]]:
    from pipeline.learning.training.preferences import DPOObjective, fit_dpo

    model, data = tiny_policy(), pairs()
    with computing_in(dtype, "cpu"):
        anchor = score_sequences(
            data,
            lambda batch: completion_logprobs(model, batch).double().sum(-1),
            micro_batch_size=8,
            device="cpu",
        )
    training = TrainingConfig(micro_batch_size=8, warmup_steps=0)
    fitting = Fitting(
        batch_size=8, epochs=4, learning_rate=1e-2, training=training, seed=0, device="cpu", dtype=dtype
    )
    return model, fit_dpo(model, data, anchor, DPOObjective(loss_type=DPOLoss.sigmoid, beta=1.0), fitting)[0]


def test_a_policy_that_computes_like_its_anchor_starts_at_it() -> None:
    model, losses = fit_pairs(DType.bfloat16)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert losses[0] == pytest.approx(np.log(2), abs=1e-6)
    assert losses[-1] < 0.5 < losses[0]
    assert losses != fit_pairs(DType.float32)[1]


def test_a_policy_is_as_likely_to_draw_as_training_begins_with() -> None:
    """What drew was rounded; scored by that, the ratio of GRPO would not be 1 at the first step."""
    exact, prompts, drawn = tiny_policy(), [[1, 2, 3]] * 4, [[4, 5], [6, 7, 8], [9], [1, 1]]
    settings = DecodeSettings(batch_size=4)
    with computing_in(DType.bfloat16, "cpu"):
        found = completion_scores(exact, prompts, drawn, settings)
        data = Sequences.of([[*p, *d] for p, d in zip(prompts, drawn, strict=True)], [3] * 4, [0.0] * 4)
        batch = batch_of(data, np.argsort(data.lengths, kind="stable"), "cpu")
        begun = completion_logprobs(exact, batch).detach()
    first = begun[batch.mask].numpy()
    np.testing.assert_array_equal(np.concatenate([found[at] for at in (2, 0, 3, 1)]), first)
    rounded = completion_scores(tiny_policy().bfloat16(), prompts, drawn, settings)
    assert any(not np.array_equal(one, other) for one, other in zip(found, rounded, strict=True))
