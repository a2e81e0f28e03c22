"""The record of a sweep, and what becomes of it when files are damaged or agents die."""

import errno
import fcntl
import json
import math
import pickle
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pipeline.errors import ConfigError, StoreError
from pipeline.sweeps.agent import begin_sweep, tell
from pipeline.sweeps.file import read_sweep
from pipeline.sweeps.storage import MAX_LOSSES, Record, best_trial, choose_sweep, sweeps_in
from tests.doubles.sweeps import SweepOnPaper


@pytest.fixture
def paper(tmp_path: Path) -> SweepOnPaper:
    return SweepOnPaper(tmp_path)


def states(record: Record) -> dict[int, str]:
    return {number: trial.state for number, trial in record.trials.items()}


def note_lost(record: Record) -> list[int]:
    with record.turn():
        return [trial.number for trial in record.note_lost()]


def test_a_turn_sees_what_others_have_written_and_cuts_off_what_a_crash_left(paper: SweepOnPaper) -> None:
    record = Record(paper.folder)
    paper.create(0, {"lr": 1})
    with paper.folder.journal.open("a") as file:
        file.write('{"op_code": 4, "wor')
    assert states(Record(paper.folder)) == {0: "waiting"}, "who only looks reads up to there"
    with record.turn():
        assert states(record) == {0: "waiting"}
        record.create({"lr": 2})
    assert all(json.loads(line) for line in paper.folder.journal.read_text().splitlines())
    assert states(Record(paper.folder)) == {0: "waiting", 1: "waiting"}


@pytest.mark.parametrize("line", ["x", '{"op_code": 4}', "[1]", ""])
def test_a_record_that_is_damaged_is_one_message(paper: SweepOnPaper, line: str) -> None:
    paper.create(0, {"lr": 1})
    text = paper.folder.journal.read_text()
    changed = text + line + "\n{}\n" if line else text.replace('"attempt":1', '"attempt":"x"')
    paper.folder.journal.write_text(changed)
    with pytest.raises(StoreError, match=r"optuna\.log is damaged"):
        Record(paper.folder)


def test_a_link_in_the_place_of_a_record_is_not_followed(paper: SweepOnPaper, tmp_path: Path) -> None:
    other, journal = tmp_path / "other", paper.folder.journal
    other.write_bytes(journal.read_bytes() + b"of somebody else")
    before = other.read_bytes()
    journal.unlink()
    journal.symlink_to(other)
    with pytest.raises(StoreError, match="a link"), paper.record.turn():
        pass
    with pytest.raises(StoreError, match="a link"):
        Record(paper.folder)
    assert other.read_bytes() == before


def test_nothing_of_a_record_is_unpickled(paper: SweepOnPaper, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> NoReturn:
        raise AssertionError

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    for number in range(105):  # where other backends of Optuna's write a snapshot
        paper.create(number, {"lr": number})
    assert len(Record(paper.folder).trials) == 105


def test_settings_come_back_as_they_were_infinite_ones_too(paper: SweepOnPaper) -> None:
    given = {"eta": math.inf, "list": [1, {"a": -math.inf}], "none": None, "on": True, "n": 1, "x": 1.0}
    paper.create(0, given)
    assert repr(Record(paper.folder).trials[0].parameters) == repr(given)


def test_an_attempt_goes_from_waiting_to_its_end_and_a_further_one_begins_anew(paper: SweepOnPaper) -> None:
    paper.create(0, {"lr": 1}, num_gpus=2)
    with paper.at_work():
        paper.start(0, devices=["GPU 0 GPU-a"])
        trial = Record(paper.folder).trials[0]
        assert (trial.state, trial.attempts, trial.agent, trial.devices) == ("running", 1, "a1", ["GPU 0 GPU-a"])
        paper.end(0, "failed", reason="exit code 1")
        assert [each.failures for each in paper.record.ready(2)] == [1]
        assert paper.record.ready(1) == []
        assert paper.record.failing == [0]
        paper.start(0)
        paper.end(0, "done", 0.5)
    trial = Record(paper.folder).trials[0]
    assert (trial.state, trial.attempts, trial.value, trial.num_gpus) == ("done", 2, 0.5, 2)
    assert paper.record.failing == []
    assert best_trial(paper.record.trials, "minimize") == trial


def test_trials_of_an_agent_that_is_gone_are_lost_and_fail_when_agents_die_again_and_again(
    paper: SweepOnPaper,
) -> None:
    record = Record(paper.folder)
    paper.create(0, {})
    paper.create(1, {})
    with record.present() as here:
        paper.start(1, agent=here)
        for losses in range(1, MAX_LOSSES + 1):
            paper.start(0, agent="gone")
            record.refresh()
            lost = "lost" if losses < MAX_LOSSES else "failed"
            assert states(record) == {0: lost, 1: "running"}, "also where nobody has written so"
            assert note_lost(record) == [0]
            assert note_lost(record) == []
            assert states(record) == {0: lost, 1: "running"}
        assert record.ready(99) == []
        assert record.agents() == [here] == [path.name for path in paper.folder.agents.iterdir()]
    assert note_lost(record) == [1]
    assert record.agents() == []


def test_without_locks_there_are_no_sweeps(paper: SweepOnPaper, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreError, match="without locks"), paper.record.turn():
        pass


def test_words_to_a_sweep(paper: SweepOnPaper) -> None:
    def told(word: str) -> str:
        tell(paper.folder, word)
        return Record(paper.folder).state()

    for word, state, refused in (
        ("pause", "paused", "pause"),
        ("resume", "idle", "resume"),
        ("stop", "stopped", "pause"),
    ):
        assert told(word) == state
        with pytest.raises(ConfigError, match="already"):
            told(refused)
    assert told("cancel") == "cancelled"


def test_resuming_gives_what_has_failed_another_chance_and_is_refused_where_nothing_has(
    paper: SweepOnPaper,
) -> None:
    for number, state in enumerate(("done", "failed", "cancelled")):
        paper.create(number, {})
        paper.start(number)
        paper.end(number, state, 0.5 if state == "done" else None)
        paper.tell(halted="finished")
        if state == "done":
            with pytest.raises(ConfigError, match="finished already: there is nothing to resume"):
                tell(paper.folder, "resume")
    tell(paper.folder, "resume")
    record = Record(paper.folder)
    assert states(record) == {0: "done", 1: "waiting", 2: "waiting"}
    assert [trial.number for trial in record.ready(1)] == [1, 2]
    assert record.failing == []


FILE = "program: train.py\nmethod: random\nparameters: {lr: {min: 1.0, max: 2.0}}\n"


def test_a_sweep_begins_once_and_another_of_its_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lr.yaml"

    def begin(text: str, most: int | None = None) -> Record:
        path.write_text(text)
        return Record(begin_sweep(read_sweep(path), path, tmp_path / "out", most=most))

    begun = begin(FILE).about
    with begin(FILE).present():
        joined = begin(FILE, 7).about
        assert (joined.round, joined.count) == (begun.round + 1, begin(FILE).about.count) == (2, 7)
    again = begin(FILE.replace("1.0", "1") + "run_cap: 9\n").about
    assert (again.started, again.round, again.count) == (begun.started, joined.round + 1, None)
    with pytest.raises(ConfigError, match="begun with other parameters"):
        begin(FILE.replace("2.0", "3.0"))
    assert sweeps_in(tmp_path / "out") == ["lr"]
    with pytest.raises(ConfigError, match="Did you mean 'lr'"):
        choose_sweep(tmp_path / "out", "l")
