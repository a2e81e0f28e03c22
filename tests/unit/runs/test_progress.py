"""How far a run is: the same for those who hear its engine and for those who look from another terminal."""

import fcntl
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, Group

from pipeline.plan.graph import Job, Plan, duration_name
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.progress import LiveRun, ProgressFile
from pipeline.runs.report.screen import PlainLines, headline, live_screen, worker_table
from pipeline.runs.report.status import run_headline, run_json, watched_run
from tests.doubles.runs import CHAIN, START, WrittenRun, chain_plan
from tests.unit.runs.report.test_report import printed

FIRST, SECOND = (f"{CHAIN}/r1/generate/{shard:03}" for shard in range(2))
THIRD = f"{CHAIN}/r1/train"


class Engine:
    """An engine that tells its live view everything, its journal all but progress, and leaves the file."""

    def __init__(self, output_dir: Path) -> None:
        self.written = WrittenRun(output_dir, chain_plan(2))
        self.live = LiveRun(self.written.plan, (), workers=2, load_s=3.0)
        self.file = ProgressFile(self.written.folder)
        self.take("RunStarted", jobs=6, unsettled=6, pid=1, host="nowhere")
        for index in range(2):
            self.written.worker(index, f"cpu slot {index}")
            self.take("WorkerStarted", worker=index, pid=7, device=f"cpu slot {index}")

    def take(self, event: str, **fields: Any) -> None:
        self.live.take({"event": event, "time": self.written.now, **fields})

    def begin(self, job: str, worker: int) -> None:
        self.take("JobStarted", job=job, attempt=1, worker=worker)
        self.written.begin(job, worker=worker, log=None)

    def progress(self, job: str, worker: int, **fields: Any) -> None:
        self.take("JobProgress", job=job, attempt=1, worker=worker, **fields)

    def tick(self, now: float) -> None:
        self.live.tick(now)
        self.file.update(self.live.progress, now)


@contextmanager
def alive(run: WrittenRun) -> Iterator[LoadedRun]:
    """Look at a run whose engine lives."""
    with run.folder.journal.open("ab") as engine:
        fcntl.flock(engine, fcntl.LOCK_EX)
        yield LoadedRun(run.folder)


def test_status_says_what_the_live_view_says(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.begin(FIRST, worker=0)
    engine.begin(SECOND, worker=1)
    engine.progress(FIRST, worker=0, done=30, total=100, tokens=900, numbers={"loss": 0.5})
    engine.progress(SECOND, worker=1, loading=True)
    now = START + 40
    engine.tick(now)
    with alive(engine.written) as run:
        assert headline(run.view, run.progress) == headline(engine.live.view, engine.live.progress)
        assert " ".join(headline(run.view, run.progress)[:3]).rstrip(",") in run_headline(run, now, True).plain
        attempts = [run.view.running()[job] for job in (FIRST, SECOND)]
        assert attempts == [engine.live.view.running()[job] for job in (FIRST, SECOND)]
        told = printed(worker_table(run.view, list(run.view.workers.values()), now, live=False), 120)
        for text in (told, printed(Group(*live_screen(engine.live, 120, 40)), 120)):
            (first,) = [line for line in text.splitlines() if FIRST in line]
            (second,) = [line for line in text.splitlines() if SECOND in line]
            assert "30 %" in first
            assert "loading" in second
            assert "%" not in second
        data = run_json(run, now)
        assert data["progress"]["part"] == pytest.approx(engine.live.part, abs=1e-4)
        assert [job["done"] for job in data["running_jobs"]] == [30, 0]
        # What is told of an attempt that is over by now is passed over.
        engine.written.finish(FIRST)
        run.refresh()
        assert list(run.view.running()) == [SECOND]
        assert run.view.jobs[FIRST].attempts[-1].outcome == "done"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"part": 2, "remaining_s": 1}', '{"part": NaN, "remaining_s": 1}', '{"part": 0.5}']
)
def test_a_file_that_is_damaged_or_absent_costs_a_percentage(text: str, tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    for make in (lambda path: None, lambda path: path.write_text(text)):
        make(engine.written.folder.progress)
        with alive(engine.written) as run:
            assert run.progress is None
            assert "\n0/6 jobs done" in run_headline(run, START, True).plain


def test_what_a_run_waits_for_and_a_store_that_is_away_are_said_wherever_it_is_looked_at(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.begin(FIRST, worker=0)
    for job in (SECOND, THIRD):
        fields = {"job": job, "reason": "another machine (node7, since 15:02) computes it"}
        engine.take("JobWaits", **fields)
        engine.written.write("JobWaits", **fields)
    engine.live.shared_store = away = "the shared store cannot be reached since 15:04 (no route): going on"
    engine.tick(START)
    waits = f"waiting for {SECOND}: another machine (node7, since 15:02) computes it; and for 1 more job of others"
    plain = PlainLines(Console(), every_s=9e9)
    with alive(engine.written) as run:
        assert plain.new(run.view, run.progress, START) == [waits, away]
        assert plain.new(run.view, run.progress, START + 1) == []  # told once
        assert f"\n{away}" in run_headline(run, START, True).plain
        assert run_json(run, START)["shared_store_away"] == away
        for parts in (live_screen(engine.live, 160, 40), watched_run(run, START, 160, 40)):
            assert {waits, away} <= {line.rstrip() for line in printed(Group(*parts), 160).splitlines()}
        for job, event in ((SECOND, "JobFoundStored"), (THIRD, "JobStarted")):
            engine.take(event, job=job, worker=1, attempt=1)
            engine.written.write(event, job=job, worker=1, attempt=1)
        engine.live.shared_store = ""
        engine.tick(START + 5)
        run.refresh()
        assert plain.new(run.view, run.progress, START + 2) == []
        assert "waiting" not in printed(Group(*live_screen(engine.live, 160, 40)), 160)


# -- test live run -----------------------------------------------------------------------------------------------
# How fast a run goes, and how long it will take, by what its engine tells.


class Told:
    """A run of four jobs of 2 s on two workers, the last of which reads the first; a test tells what happens."""

    def __init__(
        self, *stored: str, load_s: float = 0.0, plan: Plan | None = None, timed: Collection[str] = ()
    ) -> None:
        self.now = 0.0
        jobs = [
            Job(id=str(i), key=str(i), entry="m:f", payload={}, samples=10, seconds=2, algo="A") for i in range(4)
        ]
        plan = plan or Plan(jobs, [("0", "3")])
        jobs_left = len(plan.jobs) - len(stored)
        self.run = LiveRun(plan, stored, workers=2, load_s=load_s, timed=timed)
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
    assert told.at(6.0).progress.remaining_s is None  # nothing is known of that kind any more


def test_no_time_left_is_told_before_most_of_the_work_is_of_kinds_that_were_timed() -> None:
    jobs = [
        Job(id=stage, key=stage, entry="m:f", payload={}, seconds=seconds, algo="A", stage=stage)
        for stage, seconds in (("train", 2.0), ("generate", 3.0), ("metrics", 0.2))
    ]
    plan = Plan(jobs, [("train", "generate"), ("generate", "metrics")])
    told = Told(plan=plan)
    told.begin("train")
    # A first job that takes a hundred times the guess, and tells nothing of how far it is.
    for now in (1.0, 2.0, 200.0):
        shown = told.at(now).progress
        assert shown.remaining_s is None
        assert not {"%", "left"} & set(
            " ".join(headline(told.run.view, shown)).replace("left unknown", "").split()
        )
    told.finish("train")
    assert told.at(200.0).progress.remaining_s is None  # the other kinds may have another pace
    told.begin("generate")
    told.progress("generate", 5)
    assert told.at(210.0).progress.remaining_s is not None
    known = Told(plan=plan, timed=[duration_name(jobs[0]), duration_name(jobs[1])])
    assert known.at(0.0).progress.remaining_s == pytest.approx(5.2)


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
