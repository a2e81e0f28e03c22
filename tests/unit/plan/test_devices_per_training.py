"""`training.gpus_per_job` and its relatives: which jobs take several devices, and what their keys say of it."""

import importlib.metadata
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.meaning import shipped_meanings
from pipeline.config.schema import Config
from pipeline.errors import ConfigError
from pipeline.plan.build import build_plan
from pipeline.plan.compatibility import check_compatible
from pipeline.plan.graph import Plan
from tests.doubles.composing import quick_config

TWO = "training.gpus_per_job=2"
TABLES = ("algos.", "datasets.", "models.")


@cache
def plan(*overrides: str) -> Plan:
    # As few jobs as have every kind of stage: a plan is made again for every request.
    chosen = ["algos=[PITA,QSharp-HF,DPO]", "rounds_of_training=1", "data_collection.prompts_per_round=100"]
    return build_plan(quick_config(["experiment.name=t", *chosen, *overrides]))


def keys(*overrides: str) -> dict[str, str]:
    return {job.id: job.key for job in plan(*overrides).jobs.values()}


@pytest.mark.parametrize(
    ("overrides", "devices"),
    [
        (["distributed.num_gpus=4"], 1),
        (["distributed.enabled=true", "distributed.num_gpus=4"], 4),
        (["distributed.enabled=true", "distributed.gpu_ids=[0,3]"], 2),
        (["distributed.enabled=true", "distributed.num_gpus=4", "training.gpus_per_job=2"], 2),
    ],
)
def test_so_many_devices_share_a_training(overrides: list[str], devices: int) -> None:
    jobs = plan(*overrides).jobs.values()
    assert {job.devices for job in jobs if job.stage == "train"} == {devices}


def test_how_they_share_it_is_in_the_payload() -> None:
    said = ("distributed.strategy=ddp", "training.strategy=fsdp", "distributed.fsdp_cpu_offload=true")
    jobs = plan(TWO, *said, "distributed.master_port=29511").jobs.values()
    job = next(job for job in jobs if job.stage == "train" and job.devices > 1)
    assert job.payload["spread"] == {"strategy": "fsdp", "sharding": "full_shard", "cpu_offload": True}
    assert job.payload["master_port"] == 29511


def test_every_training_takes_them_and_nothing_else() -> None:
    stages = {(job.stage, job.devices) for job in plan(TWO).jobs.values()}
    assert stages == {("generate", 1), ("score", 1), ("reward", 2), ("train", 2), ("evaluate", 1), ("metrics", 1)}


def test_a_model_that_is_not_trained_here_needs_no_devices_for_that() -> None:
    given = plan(TWO, "model=hf", "models.hf.path=some/model").jobs.values()
    assert {job.devices for job in given if job.algo == "reference"} == {1}


def test_results_of_several_ranks_have_keys_of_their_own() -> None:
    alone, together = keys(), keys(TWO)
    changed = {name for name in alone if alone[name] != together[name]}
    # What follows from a training follows from another one.
    assert changed == set(alone)
    assert keys(TWO, "training.strategy=fsdp") != together
    assert keys(TWO, "distributed.strategy=fsdp") == keys(TWO, "training.strategy=fsdp")
    assert keys(TWO, "distributed.master_port=29500") == together


def test_one_device_has_one_key_however_several_would_share() -> None:
    assert keys("training.strategy=fsdp", "distributed.fsdp_sharding_strategy=shard_grad_op") == keys()


@pytest.mark.parametrize(
    "settings",
    [
        (TWO,),
        (TWO, "training.strategy=ddp"),
        ("distributed.enabled=true", "distributed.num_gpus=2"),
        ("distributed.enabled=true", "distributed.gpu_ids=[0,1]"),
        ("distributed.enabled=true", "distributed.gpu_list=[0,1]"),
        ("generation.backend=vllm",),
    ],
    ids=lambda settings: settings[-1],
)
def test_where_help_says_that_results_depend_on_a_setting_keys_do(settings: tuple[str, ...]) -> None:
    *before, last = settings
    meaning = shipped_meanings()[last.partition("=")[0]]
    assert (meaning.affects_result, bool(meaning.keyed)) == (False, True)
    assert keys(*before) != keys(*settings)


def test_no_key_depends_on_a_number_of_which_help_says_that_results_do_not() -> None:
    found = [each for each in shipped_meanings().values() if not each.affects_result and not each.keyed]
    numbers = {each.key: int(each.default) for each in found if re.fullmatch(r"\d+", each.default)}
    settings = [f"{key}={number + 1}" for key, number in numbers.items() if not key.startswith(TABLES)]
    assert len(settings) > 10
    assert keys(*settings) == keys()


# -- test widths -------------------------------------------------------------------------------------------------
# `generation.gpus_per_job`: which jobs take several devices, what their keys say of it, and what is refused.


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


def wide_plan(model: str, *settings: str) -> Plan:
    return build_plan(request(model, *settings))


def devices(planned: Plan) -> dict[tuple[str, str], int]:
    return {(job.algo, job.stage): job.devices for job in planned.jobs.values()}


def refused(model: str, *settings: str) -> str:
    with pytest.raises(ConfigError) as refusal:
        check_compatible(request(model, *settings), gpu=True)
    return str(refusal.value)


def test_jobs_that_write_take_them_and_nothing_else(model: str) -> None:
    planned = wide_plan(model, "generation.gpus_per_job=4")
    wide = {stage for (_, stage), count in devices(planned).items() if count == 4}
    assert wide == {"generate", "evaluate"}
    assert set(devices(planned).values()) == {1, 4}
    (written, *_) = [job for job in planned.jobs.values() if job.stage == "generate"]
    assert written.payload["spread"] == {"strategy": "tensor_parallel"}
    assert written.determined_by["devices"] == 4


def test_the_width_is_part_of_keys_and_one_device_changes_none(model: str) -> None:
    def keys(*settings: str) -> dict[str, str]:
        return {job.id: job.key for job in wide_plan(model, *settings).jobs.values()}

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
