"""Distilled: whole chains with a guided teacher and with a model, and requests that are refused."""

import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.config.checks import config_problems
from pipeline.errors import ConfigError, JobError
from pipeline.learning.algos import online
from pipeline.learning.algos.distilled import Distilled
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.models.load import load_policy, save_tokenizer
from pipeline.learning.models.tiny import make_tokenizer
from pipeline.learning.training.sequences import Sequences
from pipeline.outputs import formats
from pipeline.plan import build, models, rewards
from tests.doubles.composing import quick_config
from tests.doubles.forked import forked
from tests.doubles.models import tiny_policy
from tests.unit.learning.algos.test_chain import SMALL, Chains

OWN = (
    "algos=[QSharp,Distilled]",
    "algos.Distilled.teacher=QSharp",
    "algos.Distilled.batch_size=8",
    "algos.Distilled.learning_rate=5e-4",
    "data_collection.prompts_per_round=24",
    "rounds_of_training=2",
    "evaluation.num_prompts=4",
    "training.checkpoint_every_steps=2",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Chains:
    return Chains(tmp_path_factory.mktemp("whole"), *OWN)


def job_of(chains: Chains, algo: str, number: int, stage: str) -> Any:
    (job,) = (
        one for one in chains.plan.jobs.values() if (one.algo, one.round, one.stage) == (algo, number, stage)
    )
    return job


def test_the_last_value_model_teaches_in_each_round_and_is_trained_once(whole: Chains) -> None:
    last = job_of(whole, "QSharp", 2, "train").key
    for number in (1, 2):
        assert job_of(whole, "Distilled", number, "train").inputs["teacher.train"] == (last,)
    alone = build.build_plan(quick_config([*SMALL, *OWN, "algos=[QSharp]", "algos.Distilled.enabled=false"]))
    own = {job.key for job in whole.plan.jobs.values() if job.algo == "QSharp"}
    assert own == {job.key for job in alone.jobs.values() if job.algo == "QSharp"}


def test_no_reward_is_asked_to_train_and_the_policy_comes_closer(whole: Chains) -> None:
    assert {job.stage for job in whole.plan.jobs.values() if job.algo == "Distilled"} == {
        "train",
        "evaluate",
        "metrics",
    }
    (folder,) = whole.folders("Distilled", 1, "train")
    about = json.loads((folder / "training.json").read_text())
    assert (len(about["loss"]), about["sequences"], about["tokens_generated"]) == (3, 24, 24 * 4)
    assert {"entropy", "length", "truncated"} <= formats.read_curve(folder)[0].extra.keys()
    assert "reward" not in formats.read_curve(folder)[0].extra
    (second,) = whole.folders("Distilled", 2, "train")
    losses = [json.loads((each / "training.json").read_text())["loss"] for each in (folder, second)]
    assert np.mean(losses[1]) < np.mean(losses[0])


def test_an_answer_costs_as_much_as_one_of_the_reference(whole: Chains) -> None:
    spent = {
        algo: whole.flops[job_of(whole, algo, number, "evaluate").id]
        for algo, number in (("reference", 0), ("Distilled", 2), ("QSharp", 2))
    }
    assert spent["Distilled"].get("guidance", 0) == 0 < spent["QSharp"]["guidance"]
    each = {algo: of["decoding"] for algo, of in spent.items()}
    assert each["Distilled"] == each["QSharp"]


def test_a_training_that_is_killed_goes_on_to_the_same_bytes(whole: Chains, tmp_path: Path) -> None:
    job = job_of(whole, "Distilled", 1, "train")
    shutil.copytree(whole.root, tmp_path / "store")
    out = tmp_path / "store" / job.key
    kept = {path.name: path.read_bytes() for path in out.iterdir()}
    shutil.rmtree(tmp_path / "store" / ".checkpoints" / job.key, ignore_errors=True)

    def attempt(killed: bool) -> None:
        if killed:
            left, before = [3], online.KeptBatches.first_fault

            def dies(*given: Any) -> str:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return before(*given)

            online.KeptBatches.first_fault = dies  # type: ignore[method-assign]
        again = Chains.__new__(Chains)
        again.__dict__ |= {**whole.__dict__, "root": tmp_path / "store", "memory": {}}
        shutil.rmtree(out)
        again.run(job)

    with forked("pipeline.learning.algos.online") as start:
        for killed in (True, False):
            process = start(attempt, killed)
            process.join()
            assert process.exitcode == (-signal.SIGKILL if killed else 0)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == kept


@pytest.mark.parametrize("given", [("head=v", "others=offset_zero"), ("atoms=11", "min_p=0.1")], ids=str)
def test_adapters_learn_from_any_guide(given: tuple[str, ...], tmp_path: Path) -> None:
    guide = [f"algos.QSharp.{setting}" for setting in given]
    own = ("algos.Distilled.lora.rank=2", "algos.Distilled.eta=0.09", "algos.Distilled.beta=0.5")
    chains = Chains(tmp_path, *OWN, *guide, *own, "rounds_of_training=1")
    (folder,) = chains.folders("Distilled", 1, "train")
    assert json.loads((folder / formats.ADAPTERS).read_text())["rounds"] == [1]
    assert np.isfinite(json.loads((folder / "training.json").read_text())["loss"]).all()


def teacher(folder: Path, *, tokens: bool = True, outputs: int | None = None) -> Path:
    """Save a random GPT-2 with the tokens of addition, or with others."""
    dataset = load_dataset(next(iter(quick_config(SMALL).datasets.values())))
    folder.mkdir()
    if not tokens:
        dataset.vocabulary = (*dataset.vocabulary[:-1], "#")
    tokenizer = make_tokenizer(dataset)
    model = tiny_policy()
    assert len(tokenizer) == model.config.vocab_size
    if outputs is not None:
        model.resize_token_embeddings(outputs)
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return folder


def test_a_model_teaches_too(tmp_path: Path) -> None:
    folder = teacher(tmp_path / "large")
    only = ("algos=[Distilled]", "algos.QSharp.enabled=false", f"algos.Distilled.teacher={folder}")
    config = quick_config([*SMALL, *OWN, *only])
    models.check_models(config)
    rewards.check_tokenizers(config)
    chains = Chains(tmp_path / "store", *OWN, *only, "rounds_of_training=1", "algos.Distilled.learning_rate=1e-2")
    (trained,) = chains.folders("Distilled", 1, "train")
    losses = json.loads((trained / "training.json").read_text())["loss"]
    assert losses[-1] < losses[0]
    taught, policy = (load_policy(place, config.system, "cpu") for place in (folder, trained))
    ids = torch.tensor([[10, 1, 2, 3, 11]])
    assert taught(ids).logits.shape == policy(ids).logits.shape
    sources = [models.read_sources(config)["algos.Distilled"] for _ in range(2)]
    assert sources[0] == sources[1]
    assert sources[0]["content of settings"]["teacher"]["files"] > 0


def test_a_model_with_other_tokens_is_refused_before_anything_starts(tmp_path: Path) -> None:
    folder = teacher(tmp_path / "other", tokens=False)
    config = quick_config([*SMALL, *OWN, "algos=[Distilled]", f"algos.Distilled.teacher={folder}"])
    with pytest.raises(ConfigError, match="its tokens differ from those of the reference"):
        rewards.check_tokenizers(config)
    with pytest.raises(JobError, match="its tokens differ from those of the reference"):
        Chains(tmp_path / "store", *OWN, f"algos.Distilled.teacher={folder}", "rounds_of_training=1")


def test_a_token_that_a_model_cannot_read_is_told(tmp_path: Path) -> None:
    folder = teacher(tmp_path / "narrow", outputs=3)
    only = ("algos=[Distilled]", "algos.QSharp.enabled=false", f"algos.Distilled.teacher={folder}")
    with pytest.raises(JobError, match="the teacher reads only those below 3"):
        Chains(tmp_path / "store", *OWN, *only, "rounds_of_training=1")


def test_a_token_that_a_guide_cannot_read_is_told(tmp_path: Path) -> None:
    Sequences.of([[1, 2, 7]], [2], [0.0]).save(tmp_path)
    algorithm, asked = Distilled(), SimpleNamespace(teacher="QSharp")
    algorithm._teacher = SimpleNamespace(model=tiny_policy(), value=SimpleNamespace(vocabulary=7))  # type: ignore[assignment]
    context: Any = SimpleNamespace(algo="Distilled", settings=lambda _: asked)
    with pytest.raises(JobError, match=r"drew token 7, .* reads only those below 7"):
        algorithm.training_set(context, tiny_policy(), [tmp_path])


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    config = quick_config([*SMALL, *OWN, f"algos.Distilled.teacher={tmp_path / 'nowhere'}"])
    with pytest.raises(ConfigError, match=r"algos.Distilled.teacher=.*nowhere: there is no such file or folder"):
        models.check_models(config)


REFUSED: dict[str, tuple[str, ...]] = {
    "algos.Distilled.teacher=null: no method": ("algos.Distilled.teacher=null",),
    "algos.Distilled.teacher=PITA: no method of the run that guides": (
        "algos.Distilled.teacher=PITA",
        "algos.PITA.enabled=false",
    ),
    "teacher=Distilled: no method of the run that guides": ("algos.Distilled.teacher=Distilled",),
    "others=dropped gives most tokens no probability": ("algos.QSharp.others=dropped",),
    "algos.Distilled.eta=0.03: must be nearer": ("algos.Distilled.eta=0.03",),
    "sampling=round: must be online": ("algos.Distilled.sampling=round",),
    "dynamic_sampling=3: must be 1": ("algos.Distilled.dynamic_sampling=3",),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_request_that_cannot_work_is_one_message(message: str) -> None:
    try:
        found = config_problems(quick_config([*SMALL, *OWN, *REFUSED[message]]))
    except ConfigError as error:
        found = str(error).splitlines()
    assert [message in one for one in found] == [True]
