"""Gradient checkpointing computes layers twice, to the same gradients, and without a word of warning."""

import pytest
import torch

from pipeline.config.schema import TrainingConfig
from pipeline.learning.choices import HeadType
from pipeline.learning.models.value import ValueModel, value_model_from
from pipeline.learning.training.policy import Fitting
from pipeline.learning.training.value import fit_value
from tests.unit.learning.generation.conftest import language_model
from tests.unit.learning.training.test_training import sequences


def fit(kind: str, checkpointing: bool) -> tuple[ValueModel, list[float], int]:
    model = value_model_from(language_model(kind), HeadType.v).requires_grad_(True)
    layers = model.backbone.h if kind == "gpt2" else model.backbone.layers
    seen = []
    layers[0].mlp.register_forward_pre_hook(lambda *_: seen.append(1))
    training = TrainingConfig(micro_batch_size=8, warmup_steps=2, gradient_checkpointing=checkpointing)
    fitting = Fitting(batch_size=8, learning_rate=1e-2, epochs=1, training=training, seed=0, device="cpu")
    losses = fit_value(model, sequences(), fitting)
    return model, losses, len(seen)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_checkpointing_saves_memory_and_changes_nothing_else(kind: str) -> None:
    plain, losses, computed = fit(kind, checkpointing=False)
    saving, same_losses, twice = fit(kind, checkpointing=True)
    assert twice == 2 * computed
    assert same_losses == losses
    for one, other in zip(plain.parameters(), saving.parameters(), strict=True):
        assert torch.equal(one, other)
