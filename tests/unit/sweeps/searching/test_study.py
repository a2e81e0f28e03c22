"""The journal for Optuna's tools: what they read of it, whatever became of its writer."""

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial

from pipeline.sweeps.reading.parameters import read_parameters
from pipeline.sweeps.searching.searches import make_search
from pipeline.sweeps.searching.study import StudyLog, open_study_log
from pipeline.sweeps.spec import Method, Metric, Sweep
from pipeline.sweeps.trials import Trial, TrialState
from tests.doubles.sweeps import EVERY

SWEEP = Sweep(
    name="s",
    method=Method.random,
    metric=Metric(name="loss"),
    parameters={each.name: each for each in read_parameters(EVERY)},
    program="train.py",
    command=(),
)


def trial(number: int, state: TrialState = TrialState.done, value: float | None = 0.5, **fields: Any) -> Trial:
    asked = make_search(SWEEP).ask([Trial(number=n, parameters={}) for n in range(number)])
    assert asked is not None
    times = {"started": 1.7e9 + number, "ended": 1.7e9 + number + 5, "attempts": 1}
    return Trial(number=number, parameters=asked, state=state, value=value, **{**times, **fields})


def read(path: Path) -> list[FrozenTrial]:
    """As `optuna-dashboard` does."""
    storage = optuna.storages.JournalStorage(JournalFileBackend(os.fspath(path)))
    return optuna.load_study(study_name="s", storage=storage).trials


@pytest.fixture
def log(tmp_path: Path) -> StudyLog:
    made = open_study_log(tmp_path / "optuna.log", SWEEP)
    assert made is not None
    return made


def test_trials_that_have_ended_are_there_as_they_were(log: StudyLog, tmp_path: Path) -> None:
    trials = [
        trial(0),
        trial(1, TrialState.stopped, 0.9),
        trial(2, TrialState.failed, None, reason="exit code 1"),
        trial(3, TrialState.done, math.nan),
        trial(4, TrialState.running, None),
    ]
    log.update(trials, {0: [0.7, None, 0.5]})
    found = read(tmp_path / "optuna.log")
    assert [each.state.name for each in found] == ["COMPLETE", "PRUNED", "FAIL", "FAIL"]
    assert (found[0].value, found[0].intermediate_values) == (0.5, {1: 0.7, 3: 0.5})
    assert found[2].user_attrs == {"trial": 2, "attempt": 1, "started": 1.7e9 + 2, "reason": "exit code 1"}
    for shown, given in zip(found, trials, strict=False):
        for name in ("lr", "x", "n", "width", "noise", "scale", "share"):
            assert shown.params[name] == given.parameters[name]
        assert shown.params["rare"] == given.parameters["rare"]
        assert shown.params["many"] == pytest.approx(given.parameters["many"])
        assert "seed" not in shown.params


def test_an_attempt_is_written_once_whoever_writes(log: StudyLog, tmp_path: Path) -> None:
    first, again = trial(0, TrialState.failed, None), trial(0, TrialState.done, 0.2, started=1.8e9, attempts=2)
    log.update([first])
    log.update([first, trial(1)])
    other = open_study_log(tmp_path / "optuna.log", SWEEP)
    assert other is not None
    other.update([again, trial(1)])
    log.update([again, trial(1), trial(2)])
    assert [(each.user_attrs["trial"], each.value) for each in read(tmp_path / "optuna.log")] == [
        (0, None),
        (1, 0.5),
        (0, 0.2),
        (2, 0.5),
    ]


@pytest.mark.parametrize(
    "left",
    [b'{"op_code": 4, "worker', b"\x00\x00", b"no journal at all\n", b'{"op_code": 99}\n', b"[1]\n"],
    ids=["torn line", "zeros", "garbage", "unknown operation", "no table"],
)
def test_what_a_killed_writer_left_is_mended(log: StudyLog, tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "optuna.log"
    log.update([trial(0)])
    path.write_bytes(path.read_bytes() + left)
    later = open_study_log(path, SWEEP)
    assert later is not None
    later.update([trial(0), trial(1)])
    assert [each.user_attrs["trial"] for each in read(path)] == [0, 1]


def test_a_log_that_cannot_be_written_costs_a_warning_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_study_log(tmp_path / "no folder" / "optuna.log", SWEEP)
    assert log is not None
    log.update([trial(0)])
    log.update([trial(0), trial(1)])
    assert len(caplog.records) == 1
    assert "is not written any more" in caplog.text


def test_a_long_curve_is_thinned_and_keeps_its_end(log: StudyLog, tmp_path: Path) -> None:
    log.update([trial(0)], {0: [float(step) for step in range(10_000)]})
    kept = read(tmp_path / "optuna.log")[0].intermediate_values
    assert len(kept) <= 200
    assert kept[10_000] == 9_999.0


def test_there_is_none_without_a_metric(tmp_path: Path) -> None:
    assert open_study_log(tmp_path / "optuna.log", replace(SWEEP, metric=None)) is None
