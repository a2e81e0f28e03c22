"""`models.X.quantization`: what is refused, what keys cover, and what results call such a model."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest

from pipeline.config.checks import check_config
from pipeline.config.schema import Config
from pipeline.errors import ConfigError
from pipeline.plan.build import build_plan
from pipeline.plan.compatibility import check_compatible, named_by_bits
from tests.doubles.composing import quick_config


@pytest.fixture(autouse=True)
def release(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed here does not matter."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.50.2")


def request(*settings: str, bits: str = "4bit") -> Config:
    model = ["model=hf", "models.hf.path=some/model", f"models.hf.quantization={bits}"]
    chosen = ["rounds_of_training=1", "data_collection.prompts_per_round=100", "algos=[PITA]"]
    return quick_config(["experiment.name=t", *chosen, *model, *settings])


def refused(config: Config, *, gpu: bool = False) -> str:
    with pytest.raises(ConfigError) as refusal:
        check_compatible(config, gpu=gpu)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("algos=[PITA,DPO,RAFT]",), "DPO, RAFT would train the policy"),
        (("generation.backend=vllm",), "use generation.backend=own"),
        (("generation.gpus_per_job=2",), "weights in few bits are not split over devices"),
    ],
)
def test_what_it_does_not_go_with(settings: tuple[str, ...], said: str) -> None:
    assert said in refused(request(*settings))


def test_other_numbers_of_bits_and_models_that_have_few_already(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="quantization='3bit': must be '8bit' or '4bit'"):
        check_config(request(bits="3bit"))
    with pytest.raises(ConfigError, match="must be '8bit' or '4bit'"):
        check_config(request(bits="int8"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": {}}))
    assert "has weights in few bits already; use null" in refused(request(f"models.hf.path={tmp_path}"))


def test_results_and_keys_tell_it() -> None:
    def keys(bits: str) -> dict[str, str]:
        jobs = build_plan(named_by_bits(request(bits=bits))).jobs.values()
        return {job.id: job.key for job in jobs}

    whole, few = keys("null"), keys("4bit")
    assert {name.split("/")[1] for name in few} == {"hf-4bit"}
    assert {name.split("/")[1] for name in whole} == {"hf"}
    assert list(named_by_bits(named_by_bits(request())).models) == ["hf-4bit"]
    same = {name for name, key in whole.items() if few[name.replace("/hf/", "/hf-4bit/")] == key}
    assert {name.rpartition("reference/")[2] for name in same} == {"train"}  # which notes where the model is
    assert set(keys("8bit").values()) & set(few.values()) == {whole[name] for name in same}
