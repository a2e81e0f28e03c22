"""The search for settings gives every method as many trials, of which the first is the default."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from benchmarks.tuning import (
    REFERENCES,
    SPACES,
    TRIALS,
    Score,
    Settings,
    Trial,
    overrides_of,
    plan_of,
    tables,
    trials_of,
)
from pipeline.config.load import load_config
from pipeline.config.schema import ALGO_SCHEMAS
from pipeline.files import json_text
from pipeline.outputs.formats import read_lines
from pipeline.plan import versions


def test_every_method_has_the_same_number_of_trials_and_begins_with_its_default() -> None:
    assert set(SPACES) == set(ALGO_SCHEMAS)
    for method, space in SPACES.items():
        trials = trials_of(method)
        assert len(trials) == TRIALS >= 8
        assert [set(trial.settings) for trial in trials] == [set(space)] * TRIALS
        assert trials == trials_of(method)
        assert trials_of(method, 3) == trials[:3]  # more trials keep those that have been run


@pytest.mark.parametrize("method", list(SPACES))
def test_no_two_trials_of_a_method_are_alike(method: str) -> None:
    """Though a default may be one of the draws, as those are that an earlier search has found."""
    settings = [trial.settings for trial in trials_of(method)]
    assert all(one not in settings[:place] for place, one in enumerate(settings))


def test_draws_keep_their_numbers_whatever_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    before = trials_of("SFT")
    drawn = before[3]

    @dataclass
    class Found(ALGO_SCHEMAS["SFT"]):  # type: ignore[misc]
        learning_rate: float = drawn.settings["learning_rate"]  # type: ignore[assignment]
        epochs: int = drawn.settings["epochs"]  # type: ignore[assignment]

    monkeypatch.setitem(ALGO_SCHEMAS, "SFT", Found)
    after = trials_of("SFT")
    assert after[0].settings == drawn.settings
    assert len(after) == TRIALS
    assert drawn not in after
    numbers = {trial.number: trial.settings for trial in before[1:]}
    assert [one.settings for one in after[1:] if one.number in numbers] == [
        settings for number, settings in numbers.items() if number != drawn.number
    ]


def test_more_trials_than_there_are_configurations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPACES, "SFT", {"epochs": lambda draw: int(draw.integers(1, 3))})
    assert len(trials_of("SFT", 2)) == 2
    with pytest.raises(SystemExit, match="SFT: no more than 2 configurations"):
        trials_of("SFT", 3)


def test_methods_draw_apart_from_each_other() -> None:
    assert trials_of("PITA")[1].settings != trials_of("QSharp")[1].settings


@pytest.mark.parametrize("method", list(SPACES))
def test_the_first_trial_is_the_run_without_settings(method: str, tmp_path: Path) -> None:
    first = trials_of(method)[0]
    assert load_config(overrides_of(first, tmp_path)) == load_config(
        overrides_of(replace(first, settings={}), tmp_path)
    )


@pytest.mark.parametrize("method", list(SPACES))
def test_a_trial_is_a_run_on_validation_prompts_and_the_references_for_tuning(method: str, tmp_path: Path) -> None:
    trial = trials_of(method)[1]
    config = load_config(overrides_of(trial, tmp_path))
    assert config.evaluation.split == "validation"
    assert tuple(config.models["tiny"].references) == REFERENCES
    assert not set(config.experiment.seeds) & set(range(5))
    (algo,) = (algo for algo in config.algos.values() if algo.enabled)
    assert algo.learning_rate == trial.settings["learning_rate"]


def test_a_trial_is_known_by_what_it_would_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = trials_of("SFT", 2)
    assert plan_of(first, tmp_path / "a") == plan_of(replace(first, number=5), tmp_path / "b")
    before = plan_of(first, tmp_path)
    assert plan_of(second, tmp_path) != before
    monkeypatch.setattr(versions, "TRAINING", versions.TRAINING + 1)
    assert plan_of(first, tmp_path) != before


@pytest.mark.parametrize("method", list(SPACES))
def test_a_trial_that_was_run_is_known_again(method: str, tmp_path: Path) -> None:
    file = tmp_path / "trials.jsonl"
    trials = trials_of(method)
    scores = [Score(method, trial.number, trial.settings, [0.5], 1.0) for trial in trials]
    file.write_text("".join(json_text(asdict(score)) + "\n" for score in scores))
    found = [Trial(one.method, one.number, one.settings) for one in read_lines(file, Score)]
    assert [overrides_of(trial, tmp_path) for trial in found] == [
        overrides_of(trial, tmp_path) for trial in trials
    ]


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
