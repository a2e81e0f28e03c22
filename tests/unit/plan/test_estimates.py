"""What the models of a plan take of the disk: known before anything runs, and a run without room is refused."""

import io
import os
import shutil
from collections import namedtuple
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline.commands import request as dry_run
from pipeline.commands.request import Request, look_up, prepare
from pipeline.commands.run import run_experiment
from pipeline.config.schema import AlgoConfig, DatasetConfig
from pipeline.engine.store.store import NOT_STORED
from pipeline.errors import StoreError
from pipeline.learning.algos.base import Stage
from pipeline.learning.algos.dpo import DPO, DPOConfig
from pipeline.learning.algos.grpo import GRPO, GRPOConfig
from pipeline.learning.algos.qsharp import QSharp, QSharpConfig
from pipeline.learning.algos.value_guided import PITA, PITAConfig
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.models.kinds import HFModelConfig, TinyModelConfig
from pipeline.plan.build import build_plan
from pipeline.plan.estimates import (
    DiskNeed,
    Scale,
    decided_pairs,
    disk_need,
    guess_seconds,
    prompt_tokens,
)
from pipeline.plan.models import count_weights, weights_in_name
from pipeline.terminal.console import Terminal
from tests.doubles.composing import quick_config

WEIGHTS = 1_000
ASKED = ("experiment.name=x", "device=cpu", "execution.workers=2", "dataset=star_graph", "model=hf")
_Disk = namedtuple("_Disk", "total used free")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a model that is in the cache of the hub."""
    repo = tmp_path / "hub" / "models--owner--name"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("c0ffee")
    snapshot = repo / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"model_type": "llama"}')
    save_file({"model.a": np.zeros(WEIGHTS, np.float32)}, snapshot / "model.safetensors")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return "models.hf.path=owner/name"


def asked(tmp_path: Path, *settings: str) -> Request:
    return prepare(quick_config([*ASKED, f"output_dir={tmp_path}", *settings]))


def need(request: Request) -> DiskNeed:
    return disk_need(request.plan, request.config, list(request.plan.jobs))


def has_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Disk(10**12, 10**12 - free, free))
    monkeypatch.setattr(dry_run, "_LEAST", 0)


@pytest.mark.parametrize(
    ("settings", "each_round"),
    [
        (["algos=[DPO]"], 4),
        (["algos=[GRPO]"], 4 + 8),  # its optimizer too
        (["algos=[PITA]"], 4),
        (["algos=[GRPO-HF]"], 12 + 4 * 2),  # two reward models
        (["algos=[DPO]", "algos.DPO.lora.rank=4"], 0),
    ],
)
def test_models_take_four_bytes_a_weight(tmp_path: Path, model: str, settings: list[str], each_round: int) -> None:
    found = need(asked(tmp_path, model, *settings, "rounds_of_training=3"))
    assert found.made == 3 * each_round * WEIGHTS
    assert found.unknown == ()


def test_what_stays_follows_what_is_kept(tmp_path: Path, model: str) -> None:
    """Three chains of three rounds."""
    settings = (model, "algos=[DPO]", "experiment.seeds=[0,1,2]")
    one, found = 4 * WEIGHTS, {}
    for keep in ("all", "last", "best", "results"):
        found[keep] = need(asked(tmp_path, *settings, "rounds_of_training=3", f"execution.keep={keep}"))
    assert {keep: each.made for keep, each in found.items()} == dict.fromkeys(found, 9 * one)
    assert [each.stays // one for each in found.values()] == [9, 3, 3, 0]
    assert [each.least // one for each in found.values()] == [9, 3, 3, 1]


def test_what_is_not_known_is_said_and_refuses_nothing(tmp_path: Path) -> None:
    nameless = need(asked(tmp_path, "models.hf.path=owner/other", "algos=[DPO]"))
    assert (nameless.unknown, nameless.made) == (("models.hf",), 0)
    by_name = need(asked(tmp_path, "models.hf.path=owner/Other-70B", "algos=[DPO]", "rounds_of_training=1"))
    assert (by_name.made, by_name.least) == (4 * 70 * 10**9, 0)


def test_a_run_without_room_is_refused_before_it_starts_and_leaves_nothing(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_free(monkeypatch, 3 * WEIGHTS)
    request = asked(tmp_path / "outputs", model, "algos=[DPO]", "experiment.seeds=[0,1]")
    with pytest.raises(StoreError, match=r"3\.0 kB free.*16\.0 kB.*execution\.keep"):
        run_experiment(request.config, Terminal(file=io.StringIO()))
    assert not (tmp_path / "outputs").exists()
    dry_run.check_room(request, look_up(request, lambda _: None))  # what is stored does not count


def test_weights_that_go_before_the_first_job_are_room(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that a run has filled with weights of every round has room for the rest of it with another value."""
    has_free(monkeypatch, WEIGHTS)
    settings = (model, "algos=[DPO]", "rounds_of_training=4")
    first = asked(tmp_path, *settings)
    made = {job.key for job in first.plan.jobs.values() if job.round < 4}
    for job in first.plan.jobs.values():
        if job.key in made and job.weights:
            folder = first.store.begin(first.store.scratch("maker"), job.key, 1)
            (folder / "model.safetensors").touch()
            os.truncate(first.store.commit(job.key, folder, {}) / "model.safetensors", 4 * WEIGHTS)
    for keep, refused in {"all": True, "last": False, "results": False}.items():
        request = asked(tmp_path, *settings, f"execution.keep={keep}")
        stored = look_up(request, lambda key: None if key in made else NOT_STORED)
        assert {request.plan.jobs[job_id].round for job_id in stored.missing} == {4}
        with pytest.raises(StoreError) if refused else nullcontext():
            dry_run.check_room(request, stored)


STAGES = {(kind, stage.name): stage for kind in (DPO, GRPO, PITA, QSharp) for stage in kind.stages}
SENTIMENT = Scale(weights=134_515_008, tokens=24, prompt=32, prompts=256, samples=2, decided=1.0)
"""As `experiment=sentiment` had it when it was recorded."""
GENERATE = Stage("generate", shards="train", config=("generation", "data_collection"), seconds=0.5)
METRICS = Stage("metrics", loads_models=False, seconds=0.5)


@pytest.mark.parametrize(
    ("kind", "settings", "measured"),
    [
        (DPO, DPOConfig(epochs=1), (26.0, 259.0, 39.5)),
        (GRPO, GRPOConfig(beta=0.0), (55.1, 396.0, 46.9)),
        (PITA, PITAConfig(epochs=2), (134.6, 376.0, 35.1)),
        (QSharp, QSharpConfig(epochs=1), (47.0, 134.0, 20.5)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_model_of_135_million_weights_takes_what_was_recorded(
    kind: type, settings: AlgoConfig, measured: tuple[float, ...]
) -> None:
    if isinstance(settings, DPOConfig):
        settings.preferences.pairs_per_prompt = 1
    jobs = (("generate", 64, 8), ("train", 0, 1), ("evaluate", 64, 4))
    guess = sum(n * guess_seconds(STAGES[kind, stage], count, SENTIMENT, settings) for stage, count, n in jobs)
    took_s = sum(n * seconds for (*_, n), seconds in zip(jobs, measured, strict=True))
    assert took_s / 1.7 < guess < took_s * 1.7


def test_an_evaluation_takes_as_long_as_the_size_of_its_checkpoint_says(tmp_path: Path, model: str) -> None:
    config = quick_config(
        [*ASKED[:4], f"output_dir={tmp_path}", "model=tiny", "evaluation.also={it: owner/name-7B}"]
    )
    plan = prepare(config).plan
    took = {job.algo: job.size_s for job in plan.jobs.values() if job.stage == "evaluate"}
    assert took["it"] > 1000 * took["reference"]


def test_a_plan_counts_all_that_is_drawn_of_a_prompt() -> None:
    few = ["data_collection.prompts_per_round=10", "rounds_of_training=1", "algos.DPO.num_generations=3"]
    config = quick_config(["experiment.name=x", "algos=[PITA,DPO]", "data_collection.samples_per_example=2", *few])
    jobs = build_plan(config).jobs.values()
    drawn = {(job.algo, job.samples) for job in jobs if job.stage == "generate"}
    assert drawn == {("PITA", 20), ("DPO", 30)}


def test_the_size_of_a_model_on_the_hub_is_in_its_name() -> None:
    assert weights_in_name("HuggingFaceTB/SmolLM2-135M-Instruct") == 135_000_000
    assert weights_in_name("Qwen/Qwen2.5-1.5B") == 1_500_000_000
    assert weights_in_name("openai-community/gpt2") == 0
    assert count_weights(HFModelConfig(path="nobody/Model-7b-chat")) == 7_000_000_000
    assert 60_000 < count_weights(TinyModelConfig()) < 90_000


def test_prompts_and_decided_pairs_follow_from_the_dataset() -> None:
    config = quick_config(["experiment.name=x", "dataset=[addition,star_graph,movie_openings,gsm8k]"]).datasets
    tokens = {name: prompt_tokens(load_dataset(section)) for name, section in config.items()}
    assert tokens["addition"] == 9
    assert tokens["star_graph"] > 20
    assert decided_pairs(config["addition"]) == decided_pairs(config["gsm8k"]) == 0.5
    assert decided_pairs(config["movie_openings"]) == 1.0
    assert decided_pairs(DatasetConfig(kind="x", reward="somebodys.own")) == 1.0
