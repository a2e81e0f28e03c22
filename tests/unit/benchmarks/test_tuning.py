"""The search for settings gives every method as many trials, of which the first is the default."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks import tuning
from benchmarks.tuning import (
    REFERENCES,
    SPACES,
    TRIALS,
    Score,
    Settings,
    append,
    overrides_of,
    plan_of,
    read_trials,
    tables,
    trials_of,
)
from pipeline.config.tables import ALGORITHMS
from pipeline.files import json_text
from pipeline.plan import contents
from tests.doubles.composing import quick_config


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "load_config", quick_config)


def test_every_method_has_the_same_number_of_trials_and_begins_with_its_default() -> None:
    assert set(SPACES) == set(ALGORITHMS) - {"SFT"}  # no task that ships has completions to imitate
    for method, space in list(SPACES.items())[::4]:
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


@pytest.mark.parametrize("method", list(SPACES))
def test_the_first_trial_is_the_run_without_settings(method: str, tmp_path: Path) -> None:
    first = trials_of(method)[0]
    assert quick_config(overrides_of(first, tmp_path)) == quick_config(
        overrides_of(replace(first, settings={}), tmp_path)
    )


@pytest.mark.parametrize("method", list(SPACES))
def test_a_trial_is_a_run_on_validation_prompts_and_the_references_for_tuning(method: str, tmp_path: Path) -> None:
    trial = trials_of(method)[1]
    config = quick_config(overrides_of(trial, tmp_path))
    assert config.evaluation.split == "validation"
    assert tuple(config.models["tiny"].references) == REFERENCES
    assert not set(config.experiment.seeds) & set(range(5))
    (algo,) = (algo for algo in config.algos.values() if algo.enabled)
    assert algo.learning_rate == trial.settings["learning_rate"]


def test_a_trial_is_known_by_what_it_would_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = trials_of("RAFT", 2)
    assert plan_of(first, tmp_path / "a") == plan_of(replace(first, number=5), tmp_path / "b")
    before = plan_of(first, tmp_path)
    assert plan_of(second, tmp_path) != before
    monkeypatch.setattr(contents, "TRAINING", contents.TRAINING + 1)
    assert plan_of(first, tmp_path) != before


def test_lines_that_are_no_trial_of_today_are_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trials.jsonl"
    good, other = (
        Score("RAFT", trial.number, trial.settings, [0.5] * 3, 1.0, plan_of(trial, tmp_path))
        for trial in trials_of("RAFT", 2)
    )
    plain = asdict(good)
    bad = [
        {**plain, "scores": None},
        {**plain, "scores": []},
        {**plain, "scores": [0.5, None, 0.5]},
        {**plain, "method": "Gone"},
        {**plain, "settings": {**good.settings, "gone": 1}},
        {**plain, "settings": {"learning_rate": 1e-4}},
        {**plain, "settings": {**good.settings, "epochs": -1}},
    ]
    texts = [json_text(plain), *map(json_text, bad), "garbage \udcff", json_text(asdict(other))[:-9]]
    file.write_bytes("\n".join(texts).encode(errors="surrogateescape"))
    append(file, other)  # not glued to the half line
    assert read_trials(file, tmp_path) == [good, other]
    told = capsys.readouterr().err.splitlines()
    assert [line.split(", is passed over: ")[0] for line in told] == [f"{file}, line {at}" for at in range(2, 11)]
    assert all("passed over: " in line for line in told)


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
