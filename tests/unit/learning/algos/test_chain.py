"""Whole chains in this process: what stages write, and that it depends on nothing but their inputs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from pipeline.engine.workers.work import Work
from pipeline.errors import JobError
from pipeline.learning.algos.stage_entry import run_stage
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.evaluation.metrics import read_samples
from pipeline.learning.training.sequences import Sequences
from pipeline.learning.training.value import held_out
from pipeline.outputs.prompts import read_prompts
from pipeline.plan import build, estimates
from pipeline.plan.graph import Job
from tests.doubles.composing import quick_config
from tests.doubles.judges import digits_right

SMALL = (
    "experiment.name=t",
    "datasets.addition.reward=tests.doubles.judges.digits_right",
    "datasets.addition.grading.correct_by=tests.doubles.judges.digits_right",
    "algos.QSharp.atoms=11",
    "datasets.addition.grading.isolated=false",  # graders of their own would import this module, and torch with it
    "models.tiny.steps=40",
    "models.tiny.batch_size=32",
    "models.tiny.n_embd=32",
    "data_collection.prompts_per_round=60",
    "execution.shard_size=30",
    "evaluation.num_prompts=16",
    "evaluation.bootstrap_samples=50",
    "algos.PITA.epochs=1",
    "algos.QSharp.epochs=1",
)


class Chains:
    """A plan whose jobs have been run one after the other; of a reference that others have made, a copy."""

    _references: ClassVar[dict[str, Chains]] = {}
    """Who has made the output of a key."""

    def __init__(self, root: Path, *overrides: str) -> None:
        self.root = root
        self.config = quick_config([*SMALL, *overrides])
        self.plan = build.build_plan(self.config)
        self.memory: dict[str, Any] = {}
        self.flops: dict[str, Mapping[str, float]] = {}
        self.tokens: dict[str, int] = {}
        self.answers: dict[str, int] = {}
        self.told: dict[str, list[tuple[int, int, int]]] = {}
        waiting = dict(self.plan.jobs)
        while waiting:
            job = waiting.pop(next(name for name in waiting if not self.sources(name) & waiting.keys()))
            if other := self._references.get(job.key):
                self.copy(job, other)
            else:
                self.run(job)
            if job.round == 0:
                self._references[job.key] = self

    def sources(self, name: str) -> set[str]:
        needed = {key for keys in self.plan.jobs[name].inputs.values() for key in keys}
        return {name for name, job in self.plan.jobs.items() if job.key in needed}

    def copy(self, job: Job, other: Chains) -> None:
        for folder in (Path(job.key), Path(".checkpoints") / job.key):
            if (other.root / folder).exists():
                shutil.copytree(other.root / folder, self.root / folder)
        (theirs,) = (name for name, one in other.plan.jobs.items() if one.key == job.key)
        self.told[job.id], self.flops[job.id] = other.told[theirs], other.flops[theirs]
        self.tokens[job.key], self.answers[job.id] = other.tokens[job.key], other.answers[theirs]

    def run(self, job: Job) -> None:
        out = self.root / job.key
        out.mkdir(parents=True)
        told = self.told[job.id] = []
        inputs = {name: tuple(self.root / key for key in keys) for name, keys in job.inputs.items()}
        work = Work(
            job_id=job.id,
            attempt=1,
            payload=json.loads(json.dumps(job.payload)),
            inputs=inputs,
            out=out,
            device="cpu",
            checkpoints=self.root / ".checkpoints" / job.key,
            hints=self.root / ".hints",
            memory=self.memory,
            report=lambda done, total, tokens, _: told.append((done, total, tokens)),
        )
        run_stage(work)
        self.flops[job.id], self.tokens[job.key], self.answers[job.id] = work.flops, work.tokens, work.answers

    def folders(self, algo: str, number: int, stage: str) -> list[Path]:
        return [
            self.root / job.key
            for job in self.plan.jobs.values()
            if (job.algo, job.round, job.stage) == (algo, number, stage)
        ]

    def metrics(self, algo: str, number: int) -> dict[str, float]:
        (folder,) = self.folders(algo, number, "metrics")
        return {row["metric"]: row["value"] for row in json.loads((folder / "metrics.json").read_bytes())["rows"]}

    def disk(self) -> tuple[int, int]:
        """Bytes of all models that are trained, as reckoned before and as they are."""
        trained = [self.root / job.key for job in self.plan.jobs.values() if job.stage in ("train", "reward")]
        models = sum(path.stat().st_size for folder in trained for path in folder.rglob("*.safetensors"))
        return estimates.disk_need(self.plan, self.config, list(self.plan.jobs)).made, models


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> Chains:
    return Chains(tmp_path_factory.mktemp("chains"))


def test_models_take_the_disk_that_was_reckoned(chains: Chains) -> None:
    reckoned, taken = chains.disk()
    assert reckoned == pytest.approx(taken, rel=0.2)


def test_no_pickle_is_written(chains: Chains) -> None:
    kinds = {path.suffix for path in chains.root.rglob("*") if path.is_file()}
    assert kinds <= {".json", ".jsonl", ".safetensors", ".jinja"}


def test_qsharp_labels_the_tail_with_the_reward_of_the_text(chains: Chains) -> None:
    data = Sequences.load(chains.folders("QSharp", 1, "score"))
    dataset = load_dataset(next(iter(chains.config.datasets.values())))
    assert len(data) == 60
    assert set(data.lengths.tolist()) == {13}
    assert set(data.starts.tolist()) == {9, 10, 11, 12}
    for ids, label in zip(data.ids.tolist(), data.labels, strict=True):
        row = dataset.row(int("".join(map(str, [*ids[3:0:-1], *ids[7:4:-1]]))))
        text = "".join(dataset.vocabulary[token] for token in ids[9:13]).replace(dataset.bos_token, "")
        assert label == pytest.approx(digits_right([text], [row.columns["solution"]])[0])


def test_a_reward_that_turns_out_to_be_graded_ends_a_single_probability_before_it_is_trained(
    tmp_path: Path,
) -> None:
    small = ("rounds_of_training=1", "data_collection.prompts_per_round=10", "algos.PITA.enabled=false")
    with pytest.raises(JobError, match=r"a reward of 0\.\d+ lies .* Set algos.QSharp.atoms=11"):
        Chains(tmp_path, "algos.QSharp.atoms=1", *small)


def test_pita_labels_both_sides_of_a_pair_that_share_their_prefix(chains: Chains) -> None:
    for number in (1, 2):
        data = Sequences.load(chains.folders("PITA", number, "score"))
        assert len(data) % 2 == 0
        assert len(data) >= 20
        for first in range(0, len(data), 2):
            start = data.starts[first]
            assert data.starts[first + 1] == start
            assert data.ids[first, :start].tolist() == data.ids[first + 1, :start].tolist()
            assert data.ids[first].tolist() != data.ids[first + 1].tolist()
            assert sorted(data.labels[first : first + 2].tolist()) == [0, 1]


def test_value_models_are_held_against_prompts_that_no_round_trains_on(chains: Chains) -> None:
    for algo, number in (("PITA", 1), ("QSharp", 2)):
        folders = [folder for each in range(1, number + 1) for folder in chains.folders(algo, each, "score")]
        data = Sequences.load(folders)
        apart = held_out(data.prompts, seed=0, share=0.1)
        operands = data.ids[:, [3, 2, 1, 7, 6, 5]] @ (10 ** np.arange(5, -1, -1))
        assert data.prompts.tolist() == operands.tolist()
        (folder,) = chains.folders(algo, number, "train")
        told = json.loads((folder / "training.json").read_bytes())
        assert told["sequences"] == len(data) - apart.sum()
        assert told["calibration"]["prompts"] == len(set(data.prompts[apart].tolist())) > 0
        assert 0 < told["calibration"]["brier"] < 1


def test_infinite_eta_is_the_reference_to_the_byte(tmp_path: Path) -> None:
    small = ("rounds_of_training=1", "data_collection.prompts_per_round=10")
    endless = Chains(tmp_path, "algos.PITA.eta=inf", "algos.QSharp.eta=inf", *small)
    reference = endless.folders("reference", 0, "evaluate")
    for algo in ("PITA", "QSharp"):
        for one, other in zip(reference, endless.folders(algo, 1, "evaluate"), strict=True):
            assert (one / "samples.jsonl").read_bytes() == (other / "samples.jsonl").read_bytes()
    assert not [key for key in endless.memory["models"]._kept if key[0] == "value"]


def test_strengths_are_tried_on_validation_prompts_and_the_best_is_tested(tmp_path: Path) -> None:
    sweep = Chains(
        tmp_path,
        "evaluation.etas=[0.05,2,inf]",
        "evaluation.kl_limit=0",
        "training.warmup_steps=0",  # four steps in all: values must differ by more than draws do
        "algos.PITA.enabled=false",
        "rounds_of_training=1",
        "data_collection.prompts_per_round=20",
    )
    found = sweep.metrics("QSharp", 1)
    kl = [found[f"kl_per_sequence/eta={eta}"] for eta in ("0.05", "2", "inf")]
    assert kl[0] > kl[1] > kl[2] == 0
    assert found["front/eta=inf"] == 1  # nothing has less divergence
    taken = {name: value for name, value in found.items() if name.startswith("chosen/")}
    assert len(taken) == 4  # the method's own strength is tried too
    assert [name for name, value in taken.items() if value] == ["chosen/eta=inf"]  # within the limit of KL
    (test,), (tried,) = (sweep.folders("QSharp", 1, stage)[:1] for stage in ("evaluate", "sweep"))
    (reference,) = sweep.folders("reference", 0, "evaluate")[:1]
    assert (test / "samples.jsonl").read_bytes() == (reference / "samples.jsonl").read_bytes()
    tested, validated = ({sample.row for sample in read_samples([at])} for at in (test, tried / "eta=2"))
    assert not tested & validated
    (metrics,) = sweep.folders("QSharp", 1, "metrics")
    measures = read_prompts(metrics)
    sides = {name: measures.rows[measures.sums[name][1] > 0] for name in ("reward", "reward/eta=2")}
    assert len(set(measures.texts.tolist())) == len(measures.rows)
    assert tested <= set(sides["reward"].tolist())
    assert validated <= set(sides["reward/eta=2"].tolist())
    assert not set(sides["reward"]) & set(sides["reward/eta=2"])
