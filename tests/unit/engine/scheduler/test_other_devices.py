"""A run goes on with other devices: what leaves ends after its job, what comes takes jobs at once."""

from collections.abc import Collection

import pytest

from pipeline.engine.devices.select import Layout, Place
from pipeline.engine.scheduler import reactions
from pipeline.engine.workers.messages import FailureKind, WorkerWaits
from tests.doubles.engine import job
from tests.doubles.on_paper import OnPaper

A, B = job("a", seconds=9), job("b", seconds=8)
MORE = [job(f"more{at}") for at in range(4)]


def change(paper: OnPaper, *, back: Collection[int] = (), come: Collection[int] = ()) -> list[str]:
    reactions.change_devices(paper.run, {at: Place(label=f"device {at}") for at in come}, back)
    return paper.decided()


def states(paper: OnPaper) -> list[str]:
    return [worker.state for worker in paper.view.workers.values()]


def test_an_idle_device_is_given_back_once_its_process_has_ended() -> None:
    paper = OnPaper(A, B, *MORE)
    assert change(paper, back=[1]) == ["WorkerLeaves", "close 1"]
    assert paper.start() == ["send a to 0"]
    assert paper.ended(1, exit_code=0) == ["WorkerExited", "close 1", "give back 1"]
    assert states(paper) == ["idle", "given back"]
    paper.finish("a")
    assert paper.start() == ["send b to 0"]


@pytest.mark.parametrize("end", ["done", "raised", "lost"])
def test_a_device_leaves_after_its_job_however_that_ends(end: str) -> None:
    paper = OnPaper(A, B, *MORE)
    paper.start()
    assert change(paper, back=[0]) == ["WorkerLeaves"]
    if end == "done":
        assert "close 0" in paper.finish("a")
    elif end == "raised":
        assert "close 0" in paper.fail("a", FailureKind.transient)
    else:
        assert "give back 0" in paper.fail("a", FailureKind.lost)
    if end != "lost":
        assert paper.start() == []
        assert paper.ended(0, exit_code=0) == ["WorkerExited", "close 0", "give back 0"]
    paper.finish("b")
    (sent,) = paper.start()
    assert sent.endswith("to 1")
    assert "restart 0" not in paper.decided()


def test_what_is_still_starting_or_being_replaced_leaves_too() -> None:
    paper = OnPaper(A, workers=3)
    paper.start()
    paper.ended(1)  # another process starts
    assert change(paper, back=[1]) == ["WorkerLeaves", "close 1"]
    assert "give back 1" in paper.ended(1)
    change(paper, back=[0])
    paper.begin("a")
    assert "close 0" in paper.finish("a", left_changed="environment")
    assert "give back 0" in paper.ended(0)


def test_what_waits_for_a_place_takes_no_job_and_leaves_at_once() -> None:
    paper = OnPaper(A, B, *MORE, workers=1)
    change(paper, come=[1])
    assert paper.hear(1, WorkerWaits()) == ["WorkerWaits"]
    assert states(paper) == ["idle", "waiting"]
    assert paper.run.state.waiting_devices() == [1]
    paper.start()
    assert paper.start() == []
    assert change(paper, back=[1]) == ["WorkerLeaves", "close 1"]
    assert paper.ended(1) == ["WorkerExited", "close 1", "give back 1"]
    change(paper, come=[1])
    paper.hear(1, WorkerWaits())
    paper.ready(1)
    assert paper.run.state.waiting_devices() == []
    assert paper.start() == ["send b to 1"]


def test_devices_of_a_gang_leave_after_it() -> None:
    paper = OnPaper(job("wide", devices=2, seconds=9), *MORE, workers=3)
    paper.start()
    members = paper.run.state.jobs["wide"].workers
    change(paper, back=members)
    assert paper.finish("wide").count("give back 0") == 0
    given = [words for index in members for words in paper.ended(index) if words.startswith("give")]
    assert given == [f"give back {index}" for index in members]


def test_a_gang_runs_on_a_machine_that_has_come_even_by_numbers_of_one_that_has_left() -> None:
    paper = OnPaper(job("first", devices=2, seconds=9), job("wide", devices=2, needs=["first"]), workers=2)
    paper.start()
    change(paper, back=[0, 1])
    reactions.change_devices(paper.run, {2: Place(label="x", node=1)}, [])
    paper.ready(2)
    paper.finish("first")
    paper.ended(0, 1)
    reactions.change_devices(paper.run, {at: Place(label=f"y{at}", node=2) for at in (0, 1)}, [])
    paper.ready(0, 1)
    paper.start()
    assert paper.run.state.jobs["wide"].workers == (0, 1)


def test_all_slots_of_a_device_leave_and_come() -> None:
    layout = Layout(places=(Place(label="x"), Place(label="y")), slots=2)
    paper = OnPaper(*[job(f"long{at}", seconds=50 - at) for at in range(10)], layout=layout)
    paper.start()
    on_first = [paper.run.state.workers[index].job_id for index in (0, 2)]
    change(paper, back=[0], come=[2])
    assert [paper.run.state.layout.device_of(index) for index in range(6)] == [0, 1, 0, 1, 2, 2]
    paper.ready(4, 5)
    assert [words.rpartition(" ")[2] for words in paper.start()] == ["4", "5"]
    paper.finish(on_first[0])
    assert "give back 0" not in paper.ended(0)
    paper.finish(on_first[1])
    assert "give back 0" in paper.ended(2)
    assert paper.run.state.usable_devices() == [1, 2]


def test_a_new_device_takes_jobs_and_one_that_was_given_back_may_come_again() -> None:
    paper = OnPaper(A, B, *MORE, workers=1)
    paper.start()
    assert change(paper, come=[1]) == ["open 1"]
    assert paper.start() == []
    paper.ready(1)
    assert paper.start() == ["send b to 1"]
    change(paper, back=[0])
    paper.finish("a")
    paper.ended(0)
    assert change(paper, come=[0]) == ["DeviceReleased", "open 0"]
    paper.ready(0)
    assert [words.rpartition(" ")[2] for words in paper.start()] == ["0"]
    assert states(paper) == ["running", "running"] or paper.begin("b")


def test_a_device_that_comes_again_before_it_has_left_goes_on() -> None:
    paper = OnPaper(A, B, *MORE)
    paper.start()
    change(paper, back=[0, 1])
    assert change(paper, come=[0]) == ["DeviceReleased", "open 0"]
    paper.finish("a")
    assert [words.rpartition(" ")[2] for words in paper.start()] == ["0"]
    # Its process was asked to end already: another one follows.
    assert "close 1" in paper.finish("b")
    change(paper, come=[1])
    assert "give back 1" not in paper.ended(1, exit_code=0)
    paper.ready(1)
    assert [words.rpartition(" ")[2] for words in paper.start()] == ["1"]


def test_jobs_that_a_worker_was_given_ahead_are_its_last() -> None:
    short = [job(f"s{at:03}", seconds=0.001) for at in range(40)]
    paper = OnPaper(*short)
    for name in ("s000", "s001"):
        paper.start()
        paper.finish(name, run_s=0.001)
    while paper.start():
        pass
    ahead = list(paper.run.state.workers[0].ahead)
    assert ahead
    change(paper, back=[0])
    last = [paper.run.state.workers[0].job_id, *ahead]
    told = [words for name in last for words in paper.finish(name)]
    assert told.count("close 0") == 1
    assert not paper.run.state.workers[0].ahead


def test_a_device_that_is_used_no_more_comes_again_as_new() -> None:
    paper = OnPaper(A, B, *MORE)
    reactions.attempts.drop_worker(paper.run, 1, "it is broken")
    change(paper, back=[1])
    paper.ended(1)
    change(paper, come=[1])
    paper.ready(1)
    assert len(paper.start()) == 2
    assert paper.view.quarantined == []
