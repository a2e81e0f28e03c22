"""`generation.gpus_per_job`: which jobs take several devices, what their keys say of it, and what is refused."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.schema import Config
from pipeline.errors import ConfigError
from pipeline.plan.build import build_plan
from pipeline.plan.compatibility import check_compatible
from pipeline.plan.graph import Plan
from tests.doubles.composing import quick_config

LLAMA = {
    "model_type": "llama",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128_256,
    "tie_word_embeddings": False,
}
"""Of 70.6 billion weights: 141 GB in bfloat16."""


@pytest.fixture
def model(tmp_path: Path) -> str:
    return folder(tmp_path / "llama-70.6B", LLAMA)


def folder(path: Path, config: dict[str, Any]) -> str:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def request(model: str, *settings: str) -> Config:
    chosen = ["algos=[PITA,DPO]", "rounds_of_training=1", "data_collection.prompts_per_round=100"]
    return quick_config(["experiment.name=t", *chosen, "model=hf", f"models.hf.path={model}", *settings])


def plan(model: str, *settings: str) -> Plan:
    return build_plan(request(model, *settings))


def devices(planned: Plan) -> dict[tuple[str, str], int]:
    return {(job.algo, job.stage): job.devices for job in planned.jobs.values()}


def refused(model: str, *settings: str) -> str:
    with pytest.raises(ConfigError) as refusal:
        check_compatible(request(model, *settings), gpu=True)
    return str(refusal.value)


def test_jobs_that_write_take_them_and_nothing_else(model: str) -> None:
    planned = plan(model, "generation.gpus_per_job=4")
    wide = {stage for (_, stage), count in devices(planned).items() if count == 4}
    assert wide == {"generate", "evaluate"}
    assert set(devices(planned).values()) == {1, 4}
    (written, *_) = [job for job in planned.jobs.values() if job.stage == "generate"]
    assert written.payload["spread"] == {"strategy": "tensor_parallel"}
    assert written.determined_by["devices"] == 4


def test_the_width_is_part_of_keys_and_one_device_changes_none(model: str) -> None:
    def keys(*settings: str) -> dict[str, str]:
        return {job.id: job.key for job in plan(model, *settings).jobs.values()}

    alone, two = keys(), keys("generation.gpus_per_job=2")
    first = {name for name in alone if name.endswith("reference/train")}
    assert {name for name in alone if alone[name] == two[name]} == first
    assert keys("generation.gpus_per_job=4") != two
    assert keys("generation.gpus_per_job=1") == alone


@pytest.mark.parametrize(
    ("change", "width", "said"),
    [
        ({}, 3, "3 devices cannot share num_attention_heads=64, num_key_value_heads=8, intermediate_size=28672 "
         "evenly. Use generation.gpus_per_job=1 or 2 or 4 or 8"),
        ({}, 16, "16 devices cannot share num_key_value_heads=8 evenly"),
        ({"model_type": "gpt2"}, 2, "gpt2 cannot be split over devices"),
    ],
)  # fmt: skip
def test_what_cannot_be_split_is_refused_with_what_can(
    tmp_path: Path, change: dict[str, str], width: int, said: str
) -> None:
    model = folder(tmp_path / "model", {**LLAMA, **change})
    assert said in refused(model, f"generation.gpus_per_job={width}")


def test_models_that_are_trained_here_and_other_decoders_are_refused(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = "generation.gpus_per_job=2"
    with pytest.raises(ConfigError, match=r"models\.tiny is a small model that is trained in the run"):
        check_compatible(quick_config(["experiment.name=t", two]), gpu=True)
    assert "Use generation.backend=own" in refused(model, two, "generation.backend=vllm")
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "5.17.0")
    assert "needs transformers 5.23, and 5.17.0 is installed" in refused(model, two)
