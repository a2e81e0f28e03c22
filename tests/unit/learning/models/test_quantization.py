"""A reference with weights in few bits: what bitsandbytes is told, and where it is there, what comes of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from pipeline.config.schema import DType, SystemConfig
from pipeline.learning.generation.decode import decode
from pipeline.learning.models.flops import model_cost
from pipeline.learning.models.load import bits_settings, load_policy, quantization_options
from tests.doubles import wide


def test_what_the_library_is_told() -> None:
    assert quantization_options(None, SystemConfig(), "cpu") == {}
    assert bits_settings(8, SystemConfig()) == {"load_in_8bit": True}
    assert bits_settings(4, SystemConfig(dtype=DType.bfloat16)) == {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_compute_dtype": torch.bfloat16,
    }


def test_that_a_kernel_of_the_library_is_missing_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """It says so when it is imported, as peft does wherever it is installed, whether anybody asks for few bits."""
    logging.getLogger("bitsandbytes.backends.cpu.ops").warning("Failed to load CPU gemm_4bit_forward")
    assert caplog.records == []


@pytest.mark.parametrize(("bits", "share", "off"), [(8, 0.45, 0.3), (4, 0.35, 1.2)])
def test_a_model_in_few_bits_is_smaller_and_near(tmp_path: Path, bits: int, share: float, off: float) -> None:
    """Of random weights, whose errors do not shrink with anything that was learnt."""
    pytest.importorskip("bitsandbytes")
    whole = wide.policy()
    whole.save_pretrained(tmp_path)
    small = load_policy(tmp_path, SystemConfig(), "cpu", bits=bits)
    sizes = [sum(one.numel() * one.element_size() for one in model.parameters()) for model in (small, whole)]
    assert sizes[0] < share * sizes[1]
    ids = torch.tensor([wide.PROMPTS[1]])
    with torch.inference_mode():
        few, exact = (model(input_ids=ids).logits for model in (small, whole))
    assert 0 < (few - exact).std() < off * exact.std()
    cost = model_cost(small)
    assert (cost.body, cost.head) == (model_cost(whole).body, model_cost(whole).head)
    texts = [decode(small, wide.PROMPTS, [8] * 3, wide.SETTINGS, keys=None).tokens for _ in range(2)]
    assert texts[0] == texts[1]
