"""How far a run is: the same for those who hear its engine and for those who look from another terminal."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, Group

from pipeline.runs.loaded import LoadedRun
from pipeline.runs.progress import LiveRun, ProgressFile
from pipeline.runs.report.screen import PlainLines, headline, live_screen, worker_table
from pipeline.runs.report.status import run_headline, run_json, watched_run
from tests.doubles.runs import CHAIN, START, WrittenRun, chain_plan
from tests.unit.runs.report.test_tables import printed

FIRST, SECOND = (f"{CHAIN}/r1/generate/{shard:03}" for shard in range(2))
THIRD = f"{CHAIN}/r1/train"


class Engine:
    """An engine that tells its live view everything, its journal all but progress, and leaves the file."""

    def __init__(self, output_dir: Path) -> None:
        self.written = WrittenRun(output_dir, chain_plan(2))
        self.live = LiveRun(self.written.plan, workers=2, load_s=3.0)
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
        for text in (
            printed(Group(*live_screen(engine.live, 160, 40)), 160),
            printed(Group(*watched_run(run, START, 160, 40)), 160),
        ):
            assert [line.rstrip() for line in text.splitlines() if line.rstrip() in (waits, away)] != []
            assert waits in text
            assert away in text
        small = printed(Group(*live_screen(engine.live, 80, 10)), 80).splitlines()
        assert len(small) < 10
        for job, event in ((SECOND, "JobFoundStored"), (THIRD, "JobStarted")):
            engine.take(event, job=job, worker=1, attempt=1)
            engine.written.write(event, job=job, worker=1, attempt=1)
        engine.live.shared_store = ""
        engine.tick(START + 5)
        run.refresh()
        assert plain.new(run.view, run.progress, START + 2) == []
        assert "waiting" not in printed(Group(*live_screen(engine.live, 160, 40)), 160)
