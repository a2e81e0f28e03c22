"""A training that had next to nothing to learn from says so, and why."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.store.store import Store
from pipeline.learning.algos.base import shortage, teaching, uninformed
from pipeline.outputs.formats import Calibration, Tally
from pipeline.runs.notes import collect_notes
from tests.unit.learning.algos.test_chain import Chains


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (0, "trained on nothing (0 sequences); of 20 pairs 18 scored equal, 2 had no score"),
        (1, "trained on 1 sequence, fewer than one batch of 64; of 20 pairs 18 scored equal, 2 had no score"),
        (63, "trained on 63 sequences, fewer than one batch of 64; of 20 pairs 18 scored equal, 2 had no score"),
        (64, None),
    ],
)
def test_less_than_a_batch_is_told(kept: int, said: str | None) -> None:
    assert shortage(kept, 64, Tally("pairs", 20, unscored=2, equal=18)) == said


@pytest.mark.parametrize(
    ("about", "sequences"),
    [
        ({"sequences": 5}, 5),
        ({"pairs": 5}, 10),
        ({"groups": 5, "groups_without_signal": 3}, 8),
        ({"groups": 5}, 20),
        ({"loss": []}, None),
        ({"sequences": "many"}, None),
    ],
)
def test_what_could_teach_is_counted_for_every_family(about: dict[str, Any], sequences: int | None) -> None:
    assert teaching(about, group_size=4) == sequences


FINE = Calibration(
    prompts=20, tokens=50, base_rate=0.4, auc=0.7, auc_se=0.05, brier=0.2, brier_skill=0.1, ece=0.05
)
NO_BETTER = "the value model is no better than the base rate on 20 held-out prompts "


@pytest.mark.parametrize(
    ("calibration", "said"),
    [
        (None, None),
        (FINE, None),
        (replace(FINE, auc=0.551), None),
        (replace(FINE, auc=0.549), NO_BETTER + "(AUC 0.549 +- 0.050, Brier skill 0.100)"),
        (replace(FINE, brier_skill=-0.01), NO_BETTER + "(AUC 0.700 +- 0.050, Brier skill -0.010)"),
        (replace(FINE, auc=0.4, auc_se=None), None),
        (replace(FINE, auc_se=None, brier_skill=-0.01), NO_BETTER + "(AUC 0.700, Brier skill -0.010)"),
        (replace(FINE, auc=None, auc_se=None), None),
        (replace(FINE, auc=None, auc_se=None, brier_skill=0.0), NO_BETTER + "(Brier skill 0.000)"),
        (replace(FINE, prompts=19, auc=0.4, brier_skill=-1.0), None),
        (replace(FINE, auc=None, auc_se=None, brier_skill=None), None),
        (
            Calibration(prompts=20, tokens=50, base_rate=0.4),
            "the value model predicts what is no number on 20 held-out prompts: its training has diverged",
        ),
    ],
    ids=[
        "nothing held out",
        "fine",
        "just above chance",
        "within the error of chance",
        "worse than the base rate",
        "too few of a label to say",
        "too few of a label, no better",
        "graded",
        "graded, no better",
        "too few to say",
        "labels all equal",
        "diverged",
    ],
)
def test_a_value_model_that_has_learnt_nothing_is_told(calibration: Calibration | None, said: str | None) -> None:
    assert uninformed(calibration) == said


ALGOS = ("GRPO-HF", "PITA", "QSharp")


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> Chains:
    """One round in which every completion is wrong."""
    return Chains(
        tmp_path_factory.mktemp("chains"),
        f"algos=[{','.join(ALGOS)}]",
        "datasets.addition.reward=tests.doubles.judges.never",
        "datasets.addition.grading.correct_by=tests.doubles.judges.never",
        "rounds_of_training=1",
        "models.tiny.steps=1",
        "data_collection.prompts_per_round=6",
        "execution.shard_size=3",
        "evaluation.num_prompts=3",
        "evaluation.bootstrap_samples=20",
        "algos.QSharp.epochs=1",
        "algos.QSharp.held_out=0",
    )


@pytest.mark.parametrize(
    ("algo", "file", "said"),
    [
        ("GRPO-HF", "reward.json", "the reward model was fitted to nothing (0 sequences); of 6 prompts 6 scored"),
        ("GRPO-HF", "training.json", "trained on nothing (0 sequences); of 6 prompts 6 scored equal"),
        ("PITA", "training.json", "trained on nothing (0 sequences); of 6 pairs 6 scored equal"),
        (
            "QSharp",
            "training.json",
            "trained on 6 sequences, fewer than one batch of 128; 6 completions were drawn",
        ),
    ],
)
def test_every_method_notes_that_it_trained_on_nothing(chains: Chains, algo: str, file: str, said: str) -> None:
    (folder,) = chains.folders(algo, 1, "reward" if file == "reward.json" else "train")
    assert json.loads((folder / file).read_bytes())["note"].startswith(said)


def test_a_reference_that_has_not_learnt_says_so(chains: Chains) -> None:
    (folder,) = chains.folders("reference", 0, "train")
    about = json.loads((folder / "training.json").read_bytes())
    losses = about["held_out_nats_per_token"]
    assert losses["corpus"] < losses["guessing"] < losses["loss"]
    assert about["note"].startswith(
        f"the reference of seed 0 has not learnt: held-out loss {losses['loss']:.2f} nats a token"
    )


def test_the_notes_of_a_run_name_chain_and_round(chains: Chains, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for job in chains.plan.jobs.values():
        store.path(job.key).parent.mkdir(parents=True, exist_ok=True)
        store.path(job.key).symlink_to(chains.root / job.key)
    notes = collect_notes(store, chains.plan.jobs.values())
    assert [note.split(":")[0] for note in notes] == [
        "addition/tiny/any/reference, round 0",
        *sorted(f"addition/tiny/s0/{algo}, round 1" for algo in (*ALGOS, "GRPO-HF")),
    ]
    assert notes == collect_notes(store, list(chains.plan.jobs.values())[::-1])
    assert any(
        note == "addition/tiny/s0/PITA, round 1: trained on nothing (0 sequences); of 6 pairs 6 scored equal"
        for note in notes
    )
