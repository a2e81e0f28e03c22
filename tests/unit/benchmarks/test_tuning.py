"""The search for settings gives every method as many trials, of which the first is the default."""

from pathlib import Path

import pytest

from benchmarks import tuning
from benchmarks.tuning import (
    REFERENCES,
    SPACES,
    TRIALS,
    Score,
    Settings,
    overrides_of,
    tables,
    trials_of,
)
from pipeline.config.tables import ALGORITHMS
from tests.doubles.composing import quick_config


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "load_config", quick_config)


def test_every_method_has_the_same_number_of_trials_and_begins_with_its_default() -> None:
    # No task that ships has completions; RM is fitted as BestOfN; the others use what another method has learnt.
    assert set(SPACES) == set(ALGORITHMS) - {"SFT", "RM", "BlockSearch", "Distilled"}
    for method, space in list(SPACES.items())[::4]:
        trials = trials_of(method)
        assert len(trials) == TRIALS >= 8
        assert [set(trial.settings) for trial in trials] == [set(space)] * TRIALS
        assert trials == trials_of(method)
        assert trials_of(method, 3) == trials[:3]  # more trials keep those that have been run


@pytest.mark.parametrize("method", ["PITA", "GRPO-HF"])
def test_a_trial_is_a_run_on_validation_prompts_and_the_references_for_tuning(method: str, tmp_path: Path) -> None:
    trial = trials_of(method)[1]
    config = quick_config(overrides_of(trial, tmp_path))
    assert config.evaluation.split == "validation"
    assert tuple(config.models["tiny"].references) == REFERENCES
    assert not set(config.experiment.seeds) & set(range(5))
    (algo,) = (algo for algo in config.algos.values() if algo.enabled)
    assert algo.learning_rate == trial.settings["learning_rate"]


def test_the_best_trial_is_the_one_whose_worst_reference_gets_most() -> None:
    first: Settings = {"learning_rate": 1e-4, "head_learning_rate": 0.1, "epochs": 2, "batch_size": 64}
    scores = [
        Score("CD", 0, {**first, "head_learning_rate": None}, [0.9, 0.9, 0.1], 5.0),
        Score("CD", 1, first, [0.5, 0.4, 0.6], 7.0),
    ]
    assert tables(scores, ["DPO", "CD"]).splitlines() == [
        "### CD",
        "",
        "|  | `learning_rate` | `head_learning_rate` | `epochs` | `batch_size` "
        "| ref 0 | ref 1 | ref 2 | mean | worst | CPU s |",
        "|" + " --- |" * 11,
        "| former default | 0.0001 |  | 2 | 64 | 0.900 | 0.900 | 0.100 | 0.633 | 0.100 | 5 |",
        "| **1** | 0.0001 | 0.1 | 2 | 64 | 0.500 | 0.400 | 0.600 | 0.500 | 0.400 | 7 |",
    ]
