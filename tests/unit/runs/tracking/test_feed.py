"""A tracker is told what it lacks, always in the same order, and is begun only if there is something to tell."""

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.runs.loaded import LoadedRun
from pipeline.runs.tracking.batches import Batch, TrackedChain
from pipeline.runs.tracking.feeder import Feed, ToldFiles
from tests.doubles.tracked import STEPS, TrackedRun, job_id


class Remembering:
    """A tracker in memory. What it does: ``begin``, ``add STAGE FIRST_ROW``, ``keep``, ``close``."""

    def __init__(self, run: TrackedRun, *, keeps: bool = True, fails_at: str = "", fails_after: int = 99) -> None:
        self.did: list[str] = []
        self._stage = {job.key: f"{job.stage} {job.round}" for job in run.plan.jobs.values()}
        self._keeps, self._fails_at, self._left = keeps, fails_at, fails_after

    def begin(self, chain: TrackedChain, name: str) -> Any:
        self.did.append(f"begin {name}")
        return self

    def add(self, batch: Batch, first_row: int, /) -> None:
        self._left -= 1
        if self._stage[batch.id] == self._fails_at or self._left < 0:
            raise RuntimeError("no")
        self.did.append(f"add {self._stage[batch.id]} from {first_row}")

    def keep(self) -> bool:
        return self._keeps

    def close(self) -> None:
        self.did.append("close")


def test_it_is_logged_before_it_is_done_so_that_a_log_says_what_takes_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = TrackedRun(tmp_path)
    run.make_round(1)
    with caplog.at_level(logging.INFO, "pipeline"), pytest.raises(RuntimeError):
        feed(run, Remembering(run, fails_after=0), tmp_path / "told").look()
    assert [record.message for record in caplog.records] == [
        "X/d/m/s0: tells what 2 jobs left",
        "loads the tracker",
        "X/d/m/s0: begins it",
    ]


def feed(run: TrackedRun, tracker: Remembering, told: Path) -> Feed:
    return Feed(LoadedRun(run.folder), lambda: tracker, ToldFiles(told), 8)


ALL = [
    "begin X/d/m/s0",
    "add train 1 from 0",
    f"add metrics 1 from {STEPS}",
    f"add train 2 from {STEPS + 1}",
    f"add metrics 2 from {2 * STEPS + 1}",
]


def test_batches_are_told_as_they_come_and_the_chain_is_closed_when_it_is_over(tmp_path: Path) -> None:
    run = TrackedRun(tmp_path)
    tracker = Remembering(run)
    feeding = feed(run, tracker, tmp_path / "told")
    feeding.look()
    assert tracker.did == []
    run.make_round(1)
    feeding.look()
    assert tracker.did == ALL[:3]
    feeding.look()
    assert tracker.did == ALL[:3]
    run.make_round(2)
    feeding.look()
    assert tracker.did == [*ALL, "close"]


@pytest.mark.parametrize("keeps", [True, False], ids=["keeps at once", "keeps when it is closed"])
def test_a_tracker_that_knows_everything_is_not_begun(tmp_path: Path, keeps: bool) -> None:
    run = TrackedRun(tmp_path)
    run.make_round(1)
    first = feed(run, Remembering(run, keeps=keeps), tmp_path / "told")
    first.look()
    first.close()
    again = Remembering(run)
    feeding = feed(run, again, tmp_path / "told")
    feeding.look()
    feeding.close()
    assert again.did == []


@pytest.mark.parametrize("fails_at", ["train 1", "metrics 1", "train 2", "metrics 2"])
def test_after_a_death_a_chain_is_told_from_its_begin_with_the_same_numbers(tmp_path: Path, fails_at: str) -> None:
    run = TrackedRun(tmp_path)
    run.make_round(1)
    run.make_round(2)
    with pytest.raises(RuntimeError):
        feed(run, Remembering(run, fails_at=fails_at), tmp_path / "told").look()
    again = Remembering(run)
    feed(run, again, tmp_path / "told").look()
    assert again.did == [*ALL, "close"]


def test_what_was_made_anew_late_is_told_after_what_came_first(tmp_path: Path) -> None:
    run = TrackedRun(tmp_path)
    run.make(1, "train")
    run.make(2, "train")
    first = feed(run, Remembering(run), tmp_path / "told")
    first.look()
    run.make(1, "metrics")
    run.make(2, "metrics")
    again = Remembering(run)
    feed(run, again, tmp_path / "told").look()
    assert again.did[1:-1] == [
        "add train 1 from 0",
        f"add train 2 from {STEPS}",
        f"add metrics 1 from {2 * STEPS}",
        f"add metrics 2 from {2 * STEPS + 1}",
    ]


@pytest.mark.properties
@given(lives=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=4), keeps=st.booleans())
def test_however_often_it_dies_every_row_keeps_its_number(
    tmp_path_factory: pytest.TempPathFactory, lives: list[tuple[int, int]], keeps: bool
) -> None:
    """In each life some jobs get done, and the tracker dies after so many batches."""
    folder = tmp_path_factory.mktemp("run")
    run, numbers = TrackedRun(folder), dict[str, set[str]]()
    left = [(1, "train"), (2, "train"), (1, "metrics"), (2, "metrics")]
    for jobs, batches in [*lives, (4, 99)]:
        for number, stage in left[:jobs]:
            run.make(number, stage)
        left = left[jobs:]
        tracker = Remembering(run, keeps=keeps, fails_after=batches)
        with suppress(RuntimeError):
            feed(run, tracker, folder / "told").look()
        for told in tracker.did:
            if told.startswith("add "):
                name, _, row = told.partition(" from ")
                numbers.setdefault(name, set()).add(row)
    assert len(numbers) == 4
    assert all(len(rows) == 1 for rows in numbers.values())
    last = Remembering(run)
    feed(run, last, folder / "told").look()
    assert last.did == [], "everything was told"


def test_a_chain_without_anything_to_tell_is_not_begun(tmp_path: Path) -> None:
    run = TrackedRun(tmp_path)
    for number in (1, 2):
        for stage in ("train", "metrics"):
            run.begin(job_id(number, stage), log=None)
            run.finish(job_id(number, stage))  # an output of an earlier version, or one that was removed
    tracker = Remembering(run)
    feeding = feed(run, tracker, tmp_path / "told")
    feeding.look()
    feeding.close()
    assert tracker.did == []
