from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.sweeps.recorded import RecordedSweep, choose_sweep, sweeps_in
from pipeline.sweeps.report.status import elapsed_s, row_of, sweep_json
from pipeline.sweeps.spec import Goal
from pipeline.sweeps.trials import Trial, TrialState, best_trial
from tests.doubles.sweeps import BEGAN, SweepOnPaper

NO_AGENTS = ["", "a0", "b1", ".hid", "../../../../x", "a\\u0000b", "\\ud800", "a1\\n", "a" + "1" * 300]


def test_a_sweep_is_told_by_its_journal_up_to_the_last_whole_line(tmp_path: Path) -> None:
    sweep = SweepOnPaper(tmp_path, goal="maximize")
    sweep.create(0, {"lr": 0.1})
    recorded = RecordedSweep(sweep.folder)
    assert (recorded.view.method, recorded.view.metric, recorded.view.goal) == ("bayes", "val/loss", Goal.maximize)
    assert recorded.view.started == BEGAN + 1
    sweep.start(0)
    with sweep.folder.journal.open("a") as file:
        file.write('{"event": "TrialEnded", "tri')
    with sweep.at_work():
        recorded.refresh()
    assert [trial.state for trial in recorded.view.trials.values()] == [TrialState.running]
    assert recorded.unreadable == 0, "a line without its end may still be written"


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "TrialCreated", "time": 1}',
        '{"event": "TrialCreated", "trial": "0", "parameters": {}, "time": 1}',
        '{"event": "TrialEnded", "trial": 0, "attempt": 1, "state": "tired", "time": 1}',
        '{"event": "TrialStarted", "trial": 0, "attempt": 1, "agent": "a1", "time": 1, "devices": 3}',
        '{"event": "TrialStarted", "trial": 0, "attempt": 1, "agent": "../../x", "time": 1}',
        *(f'{{"event": "AgentJoined", "agent": "{id_}", "time": 1}}' for id_ in NO_AGENTS),
        '{"event": "SweepStarted", "name": "x", "method": "luck", "time": 1}',
        '{"event": "WinnerTested", "results": 3}',
        "[]",
    ],
)
def test_a_line_that_is_no_event_costs_itself_alone(tmp_path: Path, line: str) -> None:
    sweep = SweepOnPaper(tmp_path)
    sweep.create(0, {"lr": 0.1})
    with sweep.folder.journal.open("a") as file:
        file.write(line + "\n")
    sweep.tell("TrialEnded", trial=99, attempt=1, state="done", value=1.0)
    sweep.tell("Unheard", of="it")
    sweep.start(0)
    with sweep.at_work():
        recorded = RecordedSweep(sweep.folder)
    assert recorded.unreadable == 1
    assert {number: trial.state for number, trial in recorded.view.trials.items()} == {0: TrialState.running}


def test_the_state_of_a_sweep_says_whether_anything_will_happen(tmp_path: Path) -> None:
    sweep = SweepOnPaper(tmp_path)
    assert RecordedSweep(sweep.folder).state() == "idle"
    sweep.tell("AgentJoined", agent="a1", devices=["cpu"])
    sweep.create(0, {"lr": 0.1})
    sweep.start(0, agent="a1")
    with sweep.at_work():
        assert RecordedSweep(sweep.folder).state() == "running"
        sweep.tell("SweepStopped", reason="three failures in a row")
        assert RecordedSweep(sweep.folder).state() == "stopping"
    assert RecordedSweep(sweep.folder).state() == "stopped", "who holds no lock any more is gone"


def test_trials_of_an_agent_that_is_gone_are_lost_before_anybody_has_written_so(tmp_path: Path) -> None:
    sweep = SweepOnPaper(tmp_path)
    for number, agent in enumerate(("a1", "a2")):
        sweep.create(number, {"lr": 0.1})
        sweep.start(number, agent)
    last = sweep.time
    with sweep.at_work("a2"):
        recorded = RecordedSweep(sweep.folder)
        lost, runs = recorded.view.trials.values()
        assert (lost.state, lost.ended, lost.reason) == (TrialState.lost, last, "agent a1 is gone")
        assert runs.state is TrialState.running
        sweep.end(0, "lost")
        sweep.start(0, "a2", attempt=2)
        recorded.refresh()
        assert (lost.state, lost.ended, lost.losses) == (TrialState.running, None, 1), (
            "another one has taken it up"
        )
    told = sweep_json(RecordedSweep(sweep.folder), sweep.time + 3600)
    assert (told["state"], told["running"], told["lost"]) == ("idle", 0, 2)
    assert [trial["seconds"] for trial in told["all_trials"]] == [0, sweep.time - last], "no time goes by any more"


def test_a_sweep_that_is_over_is_not_made_longer_by_a_look(tmp_path: Path) -> None:
    sweep = SweepOnPaper(tmp_path)
    sweep.create(0, {"lr": 0.1})
    sweep.start(0)
    sweep.end(0, "done", 1.0)
    sweep.tell("SweepFinished")
    took = row_of(RecordedSweep(sweep.folder), now=sweep.time).elapsed_s
    sweep.tell("SweepStarted", 3600.0, name="lr", method="bayes")
    sweep.tell("AgentJoined", agent="a2")
    sweep.tell("SweepFinished")
    sweep.tell("AgentLeft", agent="a2")
    assert row_of(RecordedSweep(sweep.folder), now=sweep.time).elapsed_s <= took + 2.0, "an agent came and left"


def test_the_time_of_a_sweep_is_that_in_which_agents_worked_on_it(tmp_path: Path) -> None:
    sweep = SweepOnPaper(tmp_path)
    sweep.tell("AgentJoined", agent="a1")
    for number, halt in enumerate(("SweepPaused", "SweepStopped", "")):
        sweep.create(number, {"lr": 0.1})
        sweep.start(number)
        if halt:
            sweep.tell(halt, 10.0)
        sweep.end(number, "done", 0.5)
        if halt == "SweepStopped":
            sweep.tell("AgentLeft", agent="a1")
        if halt:
            sweep.tell("SweepResumed", 3600.0)
    sweep.tell("AgentJoined", 3600.0, agent="a2")
    sweep.create(3, {"lr": 0.1})
    sweep.start(3, "a2")
    sweep.tell("TrialEnded", 3600.0, trial=3, attempt=1, state="lost")
    sweep.tell("AgentLeft", agent="a2")
    sweep.tell("SweepFinished")
    recorded = RecordedSweep(sweep.folder)
    assert recorded.view.rested_s >= 4 * 3600
    assert 110 < elapsed_s(recorded, "finished", sweep.time + 3600) < 130, "three trials, and some moments"


def test_sweeps_are_found_by_name(tmp_path: Path) -> None:
    SweepOnPaper(tmp_path, "lr")
    (tmp_path / "run" / "latest").mkdir(parents=True)
    assert sweeps_in(tmp_path) == ["lr"]
    with pytest.raises(ConfigError, match="Did you mean 'lr'"):
        choose_sweep(tmp_path, "lrs")
    with pytest.raises(ConfigError, match="there is no folder"):
        sweeps_in(tmp_path / "none")


def test_the_best_trial_is_the_first_of_those_that_came_to_their_end() -> None:
    values = {0: 2.0, 1: 1.0, 2: 1.0, 3: float("nan"), 4: None}
    trials = [Trial(number=at, parameters={}, value=value, state=TrialState.done) for at, value in values.items()]
    trials.append(Trial(number=5, parameters={}, value=0.0, state=TrialState.stopped))
    for goal, number in ((Goal.minimize, 1), (Goal.maximize, 0)):
        best = best_trial(trials, goal)
        assert best is not None
        assert best.number == number
    assert best_trial(trials[3:], Goal.minimize) is None
