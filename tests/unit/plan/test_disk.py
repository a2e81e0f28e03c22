"""What a plan takes of the disk: known before anything runs, and a run without room is refused.

That small runs take what is reckoned, stage by stage, is held by `learning/algos/test_chain.py` and
`test_post_training.py`. Here the same figures are asked for of models that nobody has here.
"""

import io
import json
import os
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline.commands import disk_room
from pipeline.commands.request import Request, look_up, prepare
from pipeline.commands.run import run_experiment
from pipeline.engine.store.store import NOT_STORED
from pipeline.errors import StoreError
from pipeline.learning.datasets.base import load_dataset
from pipeline.plan.disk import DiskNeed, disk_need
from pipeline.plan.model_size import ModelSize, reference_size
from pipeline.terminal.console import Terminal
from tests.doubles.composing import quick_config

LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
WEIGHTS = 8_030_261_248
OUTPUT = 128256 * 4096
HEAD_Q, HEAD_V = 128256 * 4097, 4097
ASKED = ("experiment.name=x", "device=cpu", "execution.workers=2", "dataset=star_graph", "model=hf")
_Disk = namedtuple("_Disk", "total used free")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a model of which the cache has the configuration, and no weights."""
    repo = tmp_path / "hub" / "models--owner--name"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("c0ffee")
    (repo / "snapshots" / "c0ffee").mkdir(parents=True)
    (repo / "snapshots" / "c0ffee" / "config.json").write_text(json.dumps(LLAMA_8B))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return "models.hf.path=owner/name"


def asked(tmp_path: Path, *settings: str) -> Request:
    return prepare(quick_config([*ASKED, f"output_dir={tmp_path}", *settings]))


def need(request: Request) -> DiskNeed:
    return disk_need(request.plan, request.config, list(request.plan.jobs), 2)


def test_a_large_model_takes_what_its_shape_says(tmp_path: Path, hub: str) -> None:
    """Three methods over three rounds: every stage that saves models is the weights of these, in float32.

    One of them draws while it trains, and leaves an optimizer too.
    """
    found = need(asked(tmp_path, hub, "algos=[PITA,DPO,GRPO-HF]", "rounds_of_training=3"))
    assert not found.guessed
    assert not found.unknown
    whole, backbone = 4 * WEIGHTS, 4 * (WEIGHTS - OUTPUT)
    expected = {
        ("DPO", "train"): 3 * whole,
        ("GRPO-HF", "train"): 3 * 3 * whole,
        ("GRPO-HF", "reward"): 3 * 2 * (backbone + 4 * HEAD_V),
        ("PITA", "train"): 3 * (backbone + 4 * HEAD_Q),
    }
    models = {place: size for place, size in found.stages.items() if size > 10**9}
    assert models == pytest.approx(expected, rel=0.01)
    assert found.stages["reference", "train"] < 1000  # it stays where it is
    assert found.total == pytest.approx(sum(expected.values()), rel=0.01)


def test_checkpoints_make_the_peak(tmp_path: Path, hub: str) -> None:
    settings = (hub, "algos=[DPO]", "rounds_of_training=1")
    often = need(asked(tmp_path, *settings))
    assert often.checkpoints == pytest.approx(2 * 12 * WEIGHTS - 4 * WEIGHTS, rel=0.01)
    assert often.peak == often.total + often.checkpoints
    assert need(asked(tmp_path, *settings, "training.checkpoint_every_minutes=0")).checkpoints == 0
    adapters = need(asked(tmp_path, *settings, "algos.DPO.lora.rank=16"))
    width = 32 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))
    beside = often.stages["DPO", "train"] - 4 * WEIGHTS
    assert adapters.stages["DPO", "train"] == pytest.approx(4 * 16 * width + beside, rel=0.01)
    assert adapters.checkpoints == pytest.approx(2 * 12 * 16 * width - 4 * 16 * width, rel=0.05)


def test_adapters_of_some_layers_take_less(tmp_path: Path, hub: str) -> None:
    settings = (hub, "algos=[DPO]", "rounds_of_training=1", "algos.DPO.lora.rank=256")
    every = need(asked(tmp_path, *settings)).stages["DPO", "train"]
    some = need(asked(tmp_path, *settings, "algos.DPO.lora.target_modules=[q_proj,model.v_proj]"))
    others = 32 * ((4096 + 4096) + (4096 + 1024) + 3 * (4096 + 14336))
    assert every - some.stages["DPO", "train"] == pytest.approx(4 * 256 * others)


def test_adapters_of_a_round_are_stored_with_those_before_it(tmp_path: Path, hub: str) -> None:
    settings = (hub, "algos=[DPO]", "algos.DPO.lora.rank=16", "rounds_of_training=3")
    anew = need(asked(tmp_path, *settings, "algos.DPO.warm_start=false"))
    going_on = need(asked(tmp_path, *settings))
    each = anew.stages["DPO", "train"] / 3
    assert going_on.stages["DPO", "train"] == pytest.approx(6 * each, rel=0.05)
    assert going_on.least == pytest.approx(6 * each, rel=0.05)


def test_the_peak_follows_what_is_kept(tmp_path: Path, hub: str) -> None:
    """Six chains of three rounds on two workers: one round of each chain, and what two trainings are making.

    GRPO draws while it trains, so each of its rounds leaves an optimizer, which is twice its weights.
    """
    settings = (hub, "algos=[DPO,GRPO]", "experiment.seeds=[0,1,2]", "training.checkpoint_every_minutes=0")
    each, found = 4 * WEIGHTS, {}
    for keep in ("all", "last", "best", "results"):
        found[keep] = need(asked(tmp_path, *settings, "rounds_of_training=3", f"execution.keep={keep}"))
    assert {keep: one.total for keep, one in found.items()} == dict.fromkeys(found, found["all"].total)
    about = {keep: (round(one.peak / each), round(one.stays / each)) for keep, one in found.items()}
    assert about == {"all": (36, 36), "last": (18, 12), "best": (18, 12), "results": (18, 0)}
    sure = {keep: round(one.least / each) for keep, one in found.items()}
    assert sure == {"all": 36, "last": 12, "best": 12, "results": 3}
    once = need(asked(tmp_path, *settings, "rounds_of_training=1", "execution.keep=results"))
    assert round(once.peak / each) == 10


def test_what_is_not_known_is_said_and_refuses_nothing(tmp_path: Path) -> None:
    nameless = need(asked(tmp_path, "models.hf.path=owner/other", "algos=[DPO]"))
    assert nameless.unknown == ("models.hf",)
    assert nameless.total < 10**9
    by_name = need(asked(tmp_path, "models.hf.path=owner/Other-70B", "algos=[DPO]"))
    assert by_name.guessed == ("models.hf",)
    assert by_name.total > 4 * 70 * 10**9
    assert by_name.least == 0
    assert by_name.stages["reference", "train"] < 1000  # it goes to the cache of the hub


def test_a_run_without_room_is_refused_before_it_starts(
    tmp_path: Path, hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Disk(10**12, 10**12 - 5 * 10**10, 5 * 10**10))
    request = asked(tmp_path, hub, "algos=[DPO]", "experiment.seeds=[0,1]")
    with pytest.raises(
        StoreError,
        match=r"has 50\.0 GB free, and this run needs .* of outputs and .* of checkpoints meanwhile; most of it, "
        r"128\.\d GB, is what DPO train leaves.*execution\.store=FOLDER.*fewer experiment\.seeds \(2\)",
    ):
        run_experiment(request.config, Terminal(file=io.StringIO()))
    assert not [path for path in tmp_path.iterdir() if path.name not in ("hub", ".store")]
    stored = look_up(request, lambda _: None)
    disk_room.check_room(request, stored)  # what is stored does not count


def test_weights_that_go_before_the_first_job_are_room(
    tmp_path: Path, hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that a run has filled with weights of every round has room for the rest of it with another value."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Disk(10**12, 10**12 - 10**10, 10**10))
    settings = (hub, "algos=[DPO]", "rounds_of_training=4")
    made = {job.key for job in asked(tmp_path, *settings).plan.jobs.values() if job.round < 4}
    store = asked(tmp_path, *settings).store
    for job in asked(tmp_path, *settings).plan.jobs.values():
        if job.key in made and job.weights:
            folder = store.begin(store.scratch("maker"), job.key, 1)
            (folder / "model.safetensors").touch()
            os.truncate(store.commit(job.key, folder, {}) / "model.safetensors", 4 * WEIGHTS)
    for keep, refused in {"all": True, "last": False, "results": False}.items():
        request = asked(tmp_path, *settings, f"execution.keep={keep}")
        stored = look_up(request, lambda key: None if key in made else NOT_STORED)
        assert {request.plan.jobs[job_id].round for job_id in stored.missing} == {4}
        assert (disk_room.no_room(request, stored, disk_room.need_of(request, stored)) is not None) == refused, (
            keep
        )


def test_texts_and_checkpoints_refuse_nothing(tmp_path: Path, hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long texts get, and whether a training lasts until its first checkpoint, is an estimate."""
    request = asked(tmp_path, hub, "algos=[DPO]", "generation.max_new_tokens=4000")
    known = need(request)
    free = known.least + 1
    assert known.peak > known.total > free
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Disk(10**12, 10**12 - free, free))
    disk_room.check_room(request, look_up(request, lambda _: None))


def test_a_dry_run_shows_it_by_stage(tmp_path: Path, hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Disk(10**12, 10**12 - 10**11, 10**11))
    out = io.StringIO()
    settings = [*ASKED, f"output_dir={tmp_path}", hub, "algos=[DPO]", "dry_run=true"]
    assert run_experiment(quick_config(settings), Terminal(file=out, width=200)) == 0
    assert "64.3 GB" in out.getvalue()
    assert "100.0 GB are free" in out.getvalue()
    assert "warning: it would start, and may fill the disk." in out.getvalue()
    keeping = [*settings, "execution.keep=results", "rounds_of_training=2"]
    assert run_experiment(quick_config(keeping), Terminal(file=out, width=200)) == 0
    assert "stay (execution.keep=results), and " in out.getvalue()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Disk(10**12, 10**12 - 10**9, 10**9))
    assert run_experiment(quick_config(settings), Terminal(file=out, width=200)) == 0
    assert "warning: this would not start: the disk of" in out.getvalue()


def test_a_run_that_is_refused_for_lack_of_room_leaves_no_folder(
    tmp_path: Path, hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Disk(10**12, 10**12 - 10**9, 10**9))
    config = quick_config([*ASKED, f"output_dir={tmp_path / 'outputs'}", hub, "algos=[DPO]"])
    with pytest.raises(StoreError, match=r"the disk of .* has 1\.0 GB free"):
        run_experiment(config, Terminal(file=io.StringIO()))
    assert not (tmp_path / "outputs").exists()


def test_weights_are_counted_in_files_where_they_are_there(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**LLAMA_8B, "model_type": "a kind without a formula"}))
    tensors = {"model.a": np.zeros([10, 20]), "lm_head.weight": np.zeros([5, 4])}
    save_file(tensors, folder / "model.safetensors")
    config = quick_config([*ASKED, f"models.hf.path={folder}"])

    def size() -> ModelSize | None:
        (dataset,) = config.datasets.values()
        return reference_size(config.models["hf"], load_dataset(dataset))

    found = size()
    assert found is not None
    assert (found.weights, found.output) == (220, 20)
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    named = {"model.a": "model-1.safetensors", "model.b": "model-2.safetensors"}
    index = {"metadata": {}, "weight_map": named}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert size() is None  # half of it is not there
