"""The journal of a sweep as those use it who run trials, and what an agent does while it owns it."""

import errno
import fcntl
import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError, StoreError
from pipeline.sweeps.agents.halting import SweepOrder, tell
from pipeline.sweeps.agents.orders import as_written
from pipeline.sweeps.agents.owner import Chooser, is_gone, note_lost, refuse_several
from pipeline.sweeps.record import Record, next_trial_number, present
from pipeline.sweeps.recorded import RecordedSweep
from pipeline.sweeps.spec import Goal, Method, Metric, Sweep
from pipeline.sweeps.trials import LAST_TRIAL, Trial, TrialState
from tests.doubles.sweeps import SweepOnPaper


class Listed:
    """A search that has these parameters, and remembers what it was shown."""

    def __init__(self, *parameters: Mapping[str, Any]) -> None:
        self.parameters, self.shown = parameters, list[list[Trial]]()

    def ask(self, trials: Sequence[Trial]) -> Mapping[str, Any] | None:
        self.shown.append(list(trials))
        return self.parameters[len(trials)] if len(trials) < len(self.parameters) else None

    def stops(self, trial: Trial, values: Mapping[int, Sequence[float]]) -> str | None:
        raise AssertionError


@pytest.fixture
def paper(tmp_path: Path) -> SweepOnPaper:
    return SweepOnPaper(tmp_path)


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


def chooser(record: Record, search: Listed, metric: Metric | None = None) -> Chooser:
    sweep = Sweep(name="lr", method=Method.grid, metric=metric, parameters={}, program="p", command=())
    return Chooser(record, sweep, search, each=1, logged=lambda _trial: [0.75, 0.125, 0.25, None])


def states(record: RecordedSweep) -> dict[int, str]:
    return {number: trial.state.value for number, trial in record.view.trials.items()}


def test_a_line_that_a_crash_cut_off_is_removed_before_the_next_one(paper: SweepOnPaper) -> None:
    with paper.folder.journal.open("a") as file:
        file.write('{"event": "TrialCreated", "tri')
    record = Record(paper.folder)
    with record.turn():
        record.write("TrialCreated", trial=0, parameters={"lr": 1})
    lines = [json.loads(line) for line in paper.folder.journal.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["SweepStarted", "TrialCreated"]


def test_a_turn_sees_what_others_have_written(paper: SweepOnPaper) -> None:
    record, other = Record(paper.folder), Record(paper.folder)
    with other.turn():
        other.write("TrialCreated", trial=0, parameters={"lr": 1})
    with record.turn():
        assert states(record) == {0: "waiting"}


def test_trials_of_an_agent_that_is_gone_are_lost_and_those_of_others_are_not(paper: SweepOnPaper) -> None:
    for number, agent in enumerate(("a1", "a2")):
        paper.tell("AgentJoined", agent=agent)
        paper.create(number, {})
        paper.start(number, agent=agent)
    record = Record(paper.folder)
    with present(paper.folder, {"a1"}), record.turn():
        assert [trial.number for trial in note_lost(record)] == [0]
        assert states(record) == {0: "lost", 1: "running"}
        assert list(record.view.agents) == ["a2"]
    with record.turn():
        note_lost(record)
    assert states(record) == {0: "lost", 1: "lost"}


def test_an_agent_whose_line_is_damaged_keeps_its_trials_and_its_id(paper: SweepOnPaper) -> None:
    paper.tell("AgentJoXned", agent="a1")
    paper.create(0, {})
    paper.start(0, agent="a1")
    record = Record(paper.folder)
    with present(paper.folder) as first, record.turn():
        assert note_lost(record) == []
        assert (first, record.living_agents(), record.state()) == ("a1", ["a1"], "running")
        with present(paper.folder, record.view.named) as second, present(paper.folder) as third:
            assert (second, third) == ("a2", "a3"), "neither waits for the first one, though it holds the sweep"
    with record.turn():
        assert [trial.number for trial in note_lost(record)] == [0]


def test_a_trial_with_which_agents_die_again_and_again_fails_in_the_end(paper: SweepOnPaper) -> None:
    paper.create(0, {})
    record = Record(paper.folder)
    for attempt in range(1, 6):
        paper.start(0, agent="a1", attempt=attempt)
        with record.turn():
            note_lost(record)
    assert states(record) == {0: "failed"}


def test_a_number_is_never_given_twice_though_its_line_is_damaged(paper: SweepOnPaper) -> None:
    paper.folder.trial(3).path.mkdir(parents=True)
    assert next_trial_number(paper.folder, {0}) == 4
    assert next_trial_number(paper.folder, {0, 6}) == 7


@pytest.mark.parametrize("name", ["20261122190000", "1000000001", "1000000000", "²", "٣٣٣٣", "12"])
def test_folders_of_others_among_those_of_trials_keep_no_sweep_from_going_on(
    name: str, paper: SweepOnPaper
) -> None:
    paper.folder.trial(0).path.parent.joinpath(name).mkdir(parents=True)
    record = Record(paper.folder)
    with record.turn():
        chosen = chooser(record, Listed({"a": 0})).next(4, new=True)
    assert chosen is not None
    assert (chosen.number, record.unreadable) == (0, 0)


def test_the_largest_number_in_the_journal_leaves_others(paper: SweepOnPaper) -> None:
    assert next_trial_number(paper.folder, {0, LAST_TRIAL}) == 1


def test_nothing_goes_on_where_what_was_written_is_not_read_back(paper: SweepOnPaper) -> None:
    record = Record(paper.folder)
    with record.turn(), pytest.raises(StoreError, match=r"not read back: TrialCreated\(trial=1000000001, par"):
        record.write("TrialCreated", trial=LAST_TRIAL + 1, parameters={})


def test_infinite_parameters_come_back_as_they_were(paper: SweepOnPaper) -> None:
    given = {"eta": float("inf"), "list": [1, {"a": -float("inf")}], "none": None}
    record = Record(paper.folder)
    with record.turn():
        record.write("TrialCreated", trial=0, num_gpus=1, **as_written(given))
        record.write("TrialCreated", trial=1, num_gpus=1, **as_written({"eta": 1.0}))
    assert RecordedSweep(paper.folder).view.trials[0].parameters == given
    assert b"exact" not in paper.folder.journal.read_bytes().splitlines()[-1]


@pytest.mark.parametrize(("goal", "best"), [(Goal.minimize, 0.125), (Goal.maximize, 0.75)])
def test_the_search_sees_the_last_and_the_best_that_a_running_trial_has_logged(
    paper: SweepOnPaper, goal: Goal, best: float
) -> None:
    paper.create(0, {"a": 0})
    paper.start(0)
    record, search = Record(paper.folder), Listed({"a": 0}, {"a": 1})
    with record.turn():
        chosen = chooser(record, search, Metric(name="val/loss", goal=goal)).next(4, new=True)
    assert chosen is not None
    assert (chosen.number, chosen.parameters) == (1, {"a": 1})
    shown = [(trial.state, trial.value, trial.best) for trial in search.shown[0]]
    assert shown == [(TrialState.running, 0.25, best)]
    assert (record.view.trials[0].value, record.view.trials[0].best) == (None, None)


def test_trials_for_which_there_are_too_few_devices_are_left_and_others_chosen(paper: SweepOnPaper) -> None:
    record, search = Record(paper.folder), Listed({"num_gpus": 8}, {"num_gpus": 4})
    with record.turn():
        choose = chooser(record, search)
        chosen = choose.next(4, new=True)
        assert chosen is not None
        assert chosen.num_gpus == 4
        record.write("TrialStarted", trial=1, attempt=1, agent="a1")
        assert choose.next(4, new=True) is None
        record.write("TrialEnded", trial=1, attempt=1, state="done")
        choose.finish()
    assert record.view.halted == "", "a trial is left, for an agent with more devices"


def test_a_sweep_is_finished_when_nothing_is_left_for_anybody(paper: SweepOnPaper) -> None:
    record, search = Record(paper.folder), Listed({})
    with record.turn():
        choose = chooser(record, search)
        assert choose.next(4, new=True) is not None
        choose.finish()
        assert record.view.halted == ""
        record.write("TrialStarted", trial=0, attempt=1, agent="a1")
        choose.finish()
        assert record.view.halted == "", "it may be lost yet"
        record.write("TrialEnded", trial=0, attempt=1, state="done")
        assert choose.next(4, new=True) is None
        choose.finish()
    assert record.view.halted == "finished"


def test_without_locks_one_agent_alone_works_and_a_dead_one_of_this_machine_is_known(
    paper: SweepOnPaper, without_locks: None
) -> None:
    paper.tell("AgentJoined", agent="a1")
    record = Record(paper.folder)
    with record.turn(), present(paper.folder):
        assert not record.has_locks
        assert not is_gone(record, "a1")
        with pytest.raises(ConfigError, match=r"without locks.*Wait for it; or if it is gone remove .*agents/a1"):
            refuse_several(record)
        paper.folder.agents.joinpath("a1").write_text(json.dumps({"pid": 2**22 + 1, "host": socket.gethostname()}))
        note_lost(record)
        refuse_several(record)


def test_words_to_a_sweep(paper: SweepOnPaper) -> None:
    assert "begins no more trials until it is resumed" in tell(paper.folder, SweepOrder.pause)
    with pytest.raises(ConfigError, match="paused already"):
        tell(paper.folder, SweepOrder.pause)
    assert "once an agent works on it" in tell(paper.folder, SweepOrder.resume)
    with pytest.raises(ConfigError, match="nothing to resume"):
        tell(paper.folder, SweepOrder.resume)
    assert tell(paper.folder, SweepOrder.stop) == "sweep lr begins no more trials"
    with pytest.raises(ConfigError, match="stopped: there is nothing to pause"):
        tell(paper.folder, SweepOrder.pause)
    assert "given up" in tell(paper.folder, SweepOrder.cancel)
    paper.tell("SweepFinished")
    for word in (SweepOrder.stop, SweepOrder.cancel):
        with pytest.raises(ConfigError, match="finished already"):
            tell(paper.folder, word)


def test_a_sweep_that_ends_its_trials_is_stopping_already(paper: SweepOnPaper) -> None:
    paper.create(0, {})
    paper.start(0)
    paper.folder.agents.mkdir()
    with present(paper.folder):
        assert "; 1 trial under way goes on to its end" in tell(paper.folder, SweepOrder.stop)
        with pytest.raises(
            ConfigError, match=r"stopping already: 1 trial under way goes on.*sweep cancel lr` ends"
        ):
            tell(paper.folder, SweepOrder.stop)
        assert "; 1 trial under way is ended" in tell(paper.folder, SweepOrder.cancel)


@pytest.mark.parametrize(
    ("run_cap", "state", "goes_on"),
    [(1, "done", False), (2, "done", True), (1, "failed", True)],
    ids=["nothing is left", "a higher run_cap", "a failed trial"],
)
def test_a_finished_sweep_is_resumed_only_where_something_is_left(
    run_cap: int, state: str, goes_on: bool, paper: SweepOnPaper
) -> None:
    paper.create(0, {"lr": 1})
    paper.start(0)
    paper.end(0, state, 0.5 if state == "done" else None)
    paper.tell("SweepFinished")
    asked = {"program": "t.py", "method": "random", "run_cap": run_cap, "parameters": {"lr": {"values": [1, 2]}}}
    paper.folder.file.write_text(json.dumps(asked))
    before = paper.folder.journal.read_bytes()
    if goes_on:
        tell(paper.folder, SweepOrder.resume)
        assert RecordedSweep(paper.folder).view.halted == ""
    else:
        with pytest.raises(
            ConfigError, match=r"sweep lr is finished: nothing is left to try\. Where its search has more"
        ):
            tell(paper.folder, SweepOrder.resume)
        assert paper.folder.journal.read_bytes() == before


def test_a_sweep_that_has_reached_its_target_is_not_resumed(paper: SweepOnPaper) -> None:
    paper.create(0, {"lr": 1})
    paper.start(0)
    paper.end(0, "done", 0.5)
    paper.tell("SweepFinished", reason="trial 0 has reached the target: val/loss 0.5")
    metric = {"name": "val/loss", "goal": "minimize", "target": 0.6}
    asked = {"program": "t.py", "method": "random", "metric": metric, "parameters": {"lr": {"values": [1, 2]}}}
    paper.folder.file.write_text(json.dumps(asked))
    with pytest.raises(ConfigError, match=r"sweep lr is finished \(trial 0 has reached the target"):
        tell(paper.folder, SweepOrder.resume)
