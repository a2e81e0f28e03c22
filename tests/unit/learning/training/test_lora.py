"""Adapters work in the pass that trains them as they do merged, in families whose layers are not all alike."""

import pytest
import torch

from pipeline.errors import ConfigError
from pipeline.learning.algos.post_training import LoraSettings
from pipeline.learning.memory.shape import shape_of_config
from pipeline.learning.training.lora import merged, with_adapters
from tests.doubles.families import tiny_model


@pytest.mark.parametrize("family", ["mamba", "llama4_text", "mixtral"])
def test_what_is_trained_is_what_is_merged(family: str) -> None:
    model, ids = tiny_model(family), torch.arange(2, 22)[None]
    width = shape_of_config(model.config, family).lora_width
    before = model(ids, use_cache=False).logits
    adapted = with_adapters(model, LoraSettings(rank=2), seed=0).eval()
    trained = [weight for weight in adapted.parameters() if weight.requires_grad]
    assert sum(weight.numel() for weight in trained) == 2 * width
    with torch.no_grad():
        for weight in trained:
            weight.add_(0.02)
        whole = adapted(ids, use_cache=False).logits
        torch.testing.assert_close(merged(adapted)(ids, use_cache=False).logits, whole, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(before, whole, atol=1e-2)


def test_layers_that_share_their_weights_take_no_adapters() -> None:
    with pytest.raises(ConfigError, match="share weights, so adapters cannot be merged into them"):
        with_adapters(tiny_model("zamba2"), LoraSettings(rank=2), seed=0)
