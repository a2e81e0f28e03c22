"""What follows from the trials so far, without any process."""

from typing import Any

import pytest

from pipeline.errors import ConfigError
from pipeline.sweeps.agents import turn
from pipeline.sweeps.spec import Goal, Method, Metric, Options, Sweep
from pipeline.sweeps.trials import SweepView, TrialState

LOSS = Metric(name="loss")
STARTED = {"event": "SweepStarted", "name": "x", "method": "grid", "time": 1.0}


def view_of(*ends: str, num_gpus: int = 1) -> SweepView:
    """A sweep whose trials have ended so; ``-`` for one that was not begun."""
    view = SweepView()
    view.feed([STARTED])
    for number, state in enumerate(ends):
        view.feed(
            [{"event": "TrialCreated", "trial": number, "parameters": {}, "num_gpus": num_gpus, "time": 2.0}]
        )
        if state != "-":
            end(view, number, state)
    return view


def end(view: SweepView, number: int, state: str, **fields: Any) -> None:
    attempt = view.trials[number].attempts + 1
    begun = {"event": "TrialStarted", "trial": number, "attempt": attempt, "agent": "a1", "time": 3.0}
    view.feed([begun])
    if state != "running":
        view.feed([{"event": "TrialEnded", "trial": number, "state": state, "time": 4.0, **fields}])


def sweep(**fields: Any) -> Sweep:
    given = {"name": "x", "method": Method.grid, "metric": LOSS, "parameters": {}, "program": "p", "command": ()}
    return Sweep(**{**given, **fields})


def test_what_was_lost_given_back_or_failed_is_begun_again_up_to_its_attempts() -> None:
    view = view_of("done", "lost", "waiting", "failed", "-", "stopped", "cancelled", "running")
    assert [trial.number for trial in turn.ready(view, 2)] == [1, 2, 3, 4]
    assert [trial.number for trial in turn.ready(view, 1)] == [1, 2, 4]


def test_what_ended_well_without_a_value_is_not_tried_again_unasked() -> None:
    view = view_of("-")
    end(view, 0, "failed", exit_code=0)
    assert turn.ready(view, 2) == []
    view.feed([{"event": "SweepResumed", "time": 5.0}])
    assert [trial.number for trial in turn.ready(view, 2)] == [0]


@pytest.mark.parametrize("event", ["SweepStarted", "SweepResumed"])
def test_whoever_begins_again_gives_what_failed_or_was_cancelled_another_chance(event: str) -> None:
    view = view_of("failed", "cancelled", "done")
    view.feed([{**STARTED, "event": event}])
    assert [trial.number for trial in turn.ready(view, 1)] == [0, 1]
    assert not view.failing
    end(view, 0, "failed")
    assert [trial.number for trial in turn.ready(view, 2)] == [0, 1], "with as many attempts as at first"


def test_a_large_trial_keeps_its_turn_and_one_that_is_too_large_does_not() -> None:
    view = view_of("-", "-", "-")
    for number, devices in enumerate((16, 8, 1)):
        view.trials[number].num_gpus = devices
    waiting = turn.ready(view, 2)
    first = turn.next_of(waiting, pool=8)
    assert first is not None
    assert first.number == 1, "though trial 2 would fit into less"
    assert [trial.number for trial in turn.too_large(waiting, pool=8)] == [0]
    assert turn.next_of(waiting[:1], pool=8) is None


def test_failures_of_one_trial_do_not_stop_a_sweep_those_of_several_in_a_row_do() -> None:
    view = view_of("failed", "failed")
    end(view, 0, "failed")
    assert turn.why_stop(view, 3) == ""
    end(view, 1, "done")
    assert not view.failing
    for number in (0, 1):
        end(view, number, "failed")
    view.feed([{"event": "TrialCreated", "trial": 2, "parameters": {}, "time": 5.0}])
    end(view, 2, "failed", reason="exit code 3")
    assert turn.why_stop(view, 3) == "3 trials in a row failed, the last of them trial 2: exit code 3"


def test_caps_of_the_file_and_of_the_command_both_count() -> None:
    view = view_of("done", "done")
    assert turn.may_create(view, sweep())
    assert not turn.may_create(view, sweep(run_cap=2))
    view.feed([{**STARTED, "count": 2}])
    assert not turn.may_create(view, sweep(run_cap=9))


@pytest.mark.parametrize(("goal", "value", "reached"), [("minimize", 0.1, True), ("maximize", 0.1, False)])
def test_a_target_is_reached_on_the_better_side(goal: str, value: float, reached: bool) -> None:
    view = view_of("-")
    end(view, 0, "done", value=value)
    said = turn.reached(view, Metric(name="loss", goal=Goal(goal), target=0.2))
    assert said == ("trial 0 has reached the target: loss 0.1" if reached else "")
    assert turn.reached(view, LOSS) == turn.reached(view, None) == ""


@pytest.mark.parametrize(
    ("curve", "exit_code", "asked", "state", "value", "reason"),
    [
        ([0.5, 0.3, 0.4], 0, None, "done", 0.4, ""),
        ([0.5], 3, None, "failed", None, "exit code 3"),
        ([0.5], 137, None, "failed", None, "signal 9 (SIGKILL)"),
        ([0.5], None, None, "failed", None, "exit code unknown"),
        ([], 0, None, "failed", None, "it ended well, but has told no value of loss. Known: acc. Set metric.name"),
        ([0.5, None], 0, None, "done", None, "loss was no finite number at the end"),
        ([0.5], 143, (TrialState.stopped, "hyperband"), "stopped", 0.5, "hyperband"),
        ([0.5], 143, (TrialState.waiting, "interrupted"), "waiting", None, "interrupted"),
        ([0.5], 0, (TrialState.waiting, "interrupted"), "done", 0.5, ""),
        ([0.5], 143, (TrialState.cancelled, "cancelled"), "cancelled", None, "cancelled"),
    ],
)
def test_ends(
    curve: list[float | None],
    exit_code: int | None,
    asked: tuple[TrialState, str] | None,
    state: str,
    value: float | None,
    reason: str,
) -> None:
    ended = turn.ending(LOSS, curve, {"acc": 1.0}, exit_code, asked)
    assert (ended.state.value, ended.value) == (state, value)
    assert ended.reason.startswith(reason)
    assert bool(ended.reason) == bool(reason)
    assert ended.best == (min((each for each in curve if each is not None), default=None))


def test_without_a_metric_a_program_that_logs_nothing_has_done_its_work() -> None:
    assert turn.ending(None, [], {}, 0, None).state is TrialState.done


@pytest.mark.parametrize(
    ("asked", "others", "code", "state", "reason"),
    [
        (None, [], 0, "done", ""),
        (None, ["lr=1 where"], 1, "failed", "it ran with other settings: W&B's file of it has lr=1 where"),
        (None, [], 1, "failed", "its run at W&B failed, with exit code 1"),
        ((TrialState.stopped, "early"), [], 255, "stopped", "early"),
        ((TrialState.stopped, "early"), ["lr=1 where"], 0, "failed", "other settings"),
        ((TrialState.cancelled, "c"), ["lr=1 where"], 1, "cancelled", "c"),
    ],
)
def test_a_trial_has_failed_that_wandb_knows_with_other_settings_or_as_failed(
    asked: tuple[TrialState, str] | None, others: list[str], code: int, state: str, reason: str
) -> None:
    """As one whose program goes on after an exception inside of ``with wandb.init()``."""
    ended = turn.as_given(turn.ending(LOSS, [1.0], {}, 0, asked), others, code)
    assert ended.state.value == state
    assert reason in ended.reason
    assert (ended.value is None) == (state in ("failed", "cancelled"))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", True, None, float("nan")])
def test_numbers_of_devices_that_are_none(wrong: object) -> None:
    with pytest.raises(ConfigError, match="how many devices a trial needs"):
        turn.devices_needed({"num_gpus": wrong}, 1)


def test_the_number_of_devices_of_a_trial() -> None:
    assert turn.devices_needed({"num_gpus": 4.0}, 1) == 4
    assert turn.devices_needed({}, Options().num_gpus) == 1
