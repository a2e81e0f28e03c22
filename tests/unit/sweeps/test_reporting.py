"""What a program logs for the sweep that runs it."""

import json
import logging
from pathlib import Path

import pytest

from pipeline import sweeps
from pipeline.sweeps import reporting


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(reporting, "_told", set())
    monkeypatch.delenv("RANK", raising=False)
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setenv(reporting.VARIABLE, str(path))
    return path


def lines(path: Path) -> list[tuple[int, dict[str, float | None]]]:
    return [(line["step"], line["values"]) for line in map(json.loads, path.read_text().splitlines())]


def test_each_call_is_a_line(file: Path) -> None:
    sweeps.log(loss=0.5)
    sweeps.log({"val/loss": 0.25, "n": 3}, step=7)
    sweeps.log(loss=float("nan"), acc=True)
    assert lines(file) == [(1, {"loss": 0.5}), (7, {"val/loss": 0.25, "n": 3.0}), (8, {"loss": None, "acc": 1.0})]


def test_of_several_ranks_the_first_alone_is_heard(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    sweeps.log(loss=0.5)
    assert not file.exists()
    monkeypatch.setenv("RANK", "0")
    sweeps.log(loss=0.5)
    assert len(lines(file)) == 1


def test_what_is_no_number_is_refused_at_once(file: Path) -> None:
    with pytest.raises(TypeError, match=r"log\(loss='low'\): a number is needed"):
        sweeps.log(loss="low")  # type: ignore[arg-type]
    assert not file.exists()


def test_a_file_that_cannot_be_written_is_told_once_and_costs_the_program_nothing(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert file.parent == tmp_path
    monkeypatch.setenv(reporting.VARIABLE, str(tmp_path / "missing" / "metrics.jsonl"))
    with caplog.at_level(logging.WARNING, logger="pipeline"):
        for _ in range(2):
            sweeps.log(loss=0.5)
    assert caplog.text.count("cannot be written") == 1


def test_outside_of_a_sweep_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reporting, "_told", set())
    monkeypatch.delenv(reporting.VARIABLE, raising=False)
    with caplog.at_level(logging.DEBUG, logger="pipeline"):
        for _ in range(2):
            sweeps.log(loss=0.5)
    assert caplog.text.count("there is no sweep") == 1
    assert reporting.own_trial() is None
