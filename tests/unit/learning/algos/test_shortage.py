"""A training that had next to nothing to learn from says so, and why."""

import json
from dataclasses import replace

import pytest

from pipeline.learning.algos.base import shortage, teaching, uninformed
from pipeline.outputs.formats import Calibration, Tally
from tests.unit.learning.algos.test_chain import Chains


@pytest.mark.parametrize(("kept", "told"), [(0, True), (63, True), (64, False)])
def test_less_than_a_batch_is_told(kept: int, told: bool) -> None:
    said = shortage(kept, 64, Tally("pairs", 20, unscored=2, equal=18)) or ""
    assert ("18 scored equal, 2 had no score" in said and str(kept) in said) is told


def test_what_could_teach_is_counted_for_every_family() -> None:
    told = [{"sequences": 5}, {"pairs": 5}, {"groups": 5, "groups_without_signal": 3}, {"groups": 5}, {"loss": []}]
    assert [teaching(about, group_size=4) for about in told] == [5, 10, 8, 20, None]


FINE = Calibration(
    prompts=20, tokens=50, base_rate=0.4, auc=0.7, auc_se=0.05, brier=0.2, brier_skill=0.1, ece=0.05
)


@pytest.mark.parametrize(
    ("told", "calibration"),
    [
        (False, None),
        (False, FINE),
        (False, replace(FINE, auc=0.551)),
        (True, replace(FINE, auc=0.549)),  # within the error of chance
        (True, replace(FINE, brier_skill=-0.01)),  # worse than the base rate
        (False, replace(FINE, auc=0.4, auc_se=None)),  # too few of a label to say
        (True, replace(FINE, auc=None, auc_se=None, brier_skill=0.0)),  # graded, and no better
        (False, replace(FINE, prompts=19, auc=0.4, brier_skill=-1.0)),  # too few to say
        (False, replace(FINE, auc=None, auc_se=None, brier_skill=None)),  # labels all equal
        (True, Calibration(prompts=20, tokens=50, base_rate=0.4)),  # diverged
    ],
)
def test_a_value_model_that_has_learnt_nothing_is_told(told: bool, calibration: Calibration | None) -> None:
    assert (uninformed(calibration) is not None) is told


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
