"""How fast a run goes, and how long it will take, by what its engine tells."""

from typing import Any

import pytest

from pipeline.plan.graph import Job, Plan
from pipeline.runs.progress import LiveRun


class Told:
    """A run of four jobs of 2 s on two workers, the last of which reads the first; a test tells what happens."""

    def __init__(self, *stored: str, load_s: float = 0.0, plan: Plan | None = None) -> None:
        self.now = 0.0
        jobs = [
            Job(id=str(i), key=str(i), entry="m:f", payload={}, samples=10, seconds=2, algo="A") for i in range(4)
        ]
        plan = plan or Plan(jobs, [("0", "3")])
        jobs_left = len(plan.jobs) - len(stored)
        self.run = LiveRun(plan, stored, workers=2, load_s=load_s)
        self.tell("RunStarted", jobs=len(plan.jobs), unsettled=jobs_left, pid=1, host="here")
        for index in range(2):
            self.run.take({"event": "WorkerStarting", "worker": index})
            self.tell("WorkerStarted", worker=index, pid=7, device=f"cpu slot {index}")

    def tell(self, event: str, **fields: Any) -> None:
        self.run.take({"event": event, "time": self.now, **fields})

    def begin(self, job: str, worker: int = 0, attempt: int = 1, members: tuple[int, ...] = ()) -> None:
        self.tell("JobStarted", job=job, attempt=attempt, worker=worker, members=members)

    def progress(self, job: str, done: int, tokens: int = 0, worker: int = 0, total: int = 10) -> None:
        fields = {"attempt": 1, "worker": worker, "done": done, "total": total, "tokens": tokens}
        self.tell("JobProgress", job=job, **fields)

    def loads(self, job: str, loading: bool) -> None:
        self.tell("JobProgress", job=job, attempt=1, worker=0, loading=loading)

    def finish(self, job: str, worker: int = 0) -> None:
        self.tell("JobFinished", job=job, attempt=1, worker=worker, load_s=0, run_s=1, samples=10, tokens=100)

    def at(self, now: float) -> LiveRun:
        self.now = now
        self.run.tick(now)
        return self.run


def test_no_time_left_is_told_while_everything_still_loads() -> None:
    told = Told(load_s=5.0)
    told.begin("0")
    told.loads("0", loading=True)
    assert told.at(3.0).progress.remaining_s is None
    told.loads("0", loading=False)
    assert told.at(4.0).progress.remaining_s is None
    told.progress("0", 1)
    assert told.at(5.0).progress.remaining_s == told.run.remaining_s > 0
    told.tell("AttemptFailed", job="0", attempt=1, worker=0, kind="bug", reason="no")
    assert told.at(6.0).progress.remaining_s


def test_what_a_job_says_that_it_loads_is_no_work_however_long_it_takes() -> None:
    told = Told()
    told.begin("0")
    told.loads("0", loading=True)
    run = told.at(30.0)
    assert (run.part, run.remaining_s) == (0.0, pytest.approx(4.0))
    told.loads("0", loading=False)
    assert told.at(30.5).part < 0.07  # half a second of work
    told.progress("0", 5)
    assert 0.1 < told.at(31.0).part < 0.2


def test_the_time_left_follows_the_pace_so_far() -> None:
    told = Told()
    assert told.at(0.0).remaining_s == pytest.approx(4.0)
    told.begin("0")
    told.now = 4.0
    told.finish("0")
    # Three jobs of 2 s at half the planned pace, on two workers.
    assert told.at(4.0).remaining_s == pytest.approx(6.0)
    told.begin("1", worker=1)
    assert told.at(6.0).remaining_s == pytest.approx(5.0)


def test_the_time_left_is_that_of_the_longest_path_where_that_is_longer() -> None:
    told = Told()
    told.begin("1")
    told.now = 2.0
    told.finish("1")
    told.begin("2", worker=1)
    # What is left: 0 and then 3, while another worker is at 2.
    assert told.at(2.0).remaining_s == pytest.approx(4.0)
    told.begin("0")
    assert told.at(3.0).remaining_s == pytest.approx(3.0)
    told.finish("2", worker=1)
    told.finish("0")
    assert told.at(3.1).remaining_s == pytest.approx(2.0 * 4 / 6)


def test_how_far_a_run_is_is_told_in_parts_of_its_work() -> None:
    told = Told("1")
    assert told.at(0.0).part == 0.0
    told.begin("0")
    assert 0.1 < told.at(1.0).part <= 1 / 6
    told.now = 2.0
    told.finish("0")
    assert told.at(2.0).part == pytest.approx(1 / 3)
    told.begin("2")
    told.begin("3", worker=1)
    told.now = 4.0
    told.finish("2")
    told.finish("3", worker=1)
    run = told.at(4.0)
    assert (run.part, run.remaining_s) == (1.0, 0.0)


def test_the_progress_of_a_job_tells_more_than_its_estimate() -> None:
    told = Told("1", "2", "3")
    told.begin("0")
    told.now = 10.0
    told.progress("0", 5)
    # Half of it took five times as long as was planned for the whole.
    assert told.at(10.0).remaining_s == pytest.approx(10.0)
    assert told.at(10.0).part == pytest.approx(0.5)
