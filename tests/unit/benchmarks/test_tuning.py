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
    before = trials_of("RAFT")
    drawn = before[3]

    config = quick_config(["experiment.name=t", "algos=[RAFT]"])
    config.algos["RAFT"] = replace(config.algos["RAFT"], **drawn.settings)
    monkeypatch.setattr("benchmarks.tuning.load_config", lambda _: config)
    after = trials_of("RAFT")
    assert after[0].settings == drawn.settings
    assert len(after) == TRIALS
    assert drawn not in after
    numbers = {trial.number: trial.settings for trial in before[1:]}
    assert [one.settings for one in after[1:] if one.number in numbers] == [
        settings for number, settings in numbers.items() if number != drawn.number
    ]


def test_more_trials_than_there_are_configurations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPACES, "RAFT", {"epochs": lambda draw: int(draw.integers(1, 3))})
    assert len(trials_of("RAFT", 2)) == 2
    with pytest.raises(SystemExit, match="RAFT: no more than 2 configurations"):
        trials_of("RAFT", 3)


def test_methods_draw_apart_from_each_other() -> None:
    assert trials_of("PITA")[1].settings != trials_of("QSharp")[1].settings


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


@pytest.mark.parametrize("method", list(SPACES))
def test_a_trial_that_was_run_is_known_again(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same command line, so there is no need to plan it here."""
    monkeypatch.setattr(tuning, "plan_of", lambda trial, out: " ".join(overrides_of(trial, out)))
    file = tmp_path / "trials.jsonl"
    scores = [
        Score(method, one.number, one.settings, [0.5] * 3, 1.0, tuning.plan_of(one, tmp_path))
        for one in trials_of(method)
    ]
    for score in scores:
        append(file, score)
    assert read_trials(file, tmp_path) == scores


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


def test_of_the_lines_of_one_trial_the_newest_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "plan_of", lambda trial, out: "")
    file = tmp_path / "trials.jsonl"
    (trial,) = trials_of("RAFT", 1)
    for value in (0.5, 0.7):
        append(file, Score("RAFT", 0, trial.settings, [value] * 3, 1.0))
    assert [one.scores[0] for one in read_trials(file, tmp_path)] == [0.7]


def test_a_search_that_has_not_begun_has_no_trials(tmp_path: Path) -> None:
    assert read_trials(tmp_path / "trials.jsonl", tmp_path) == []


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
