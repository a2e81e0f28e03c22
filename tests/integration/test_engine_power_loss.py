"""The machine loses power at any moment of a run: all that was not forced to disk is gone, and only time is lost.

Simulated by what was given to `fsync`: after every write of the journal all files are copied, each as long as it
was when it was forced last. A file that never was is empty, as journaling file systems leave what was renamed, or
its name is gone too.
"""

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.config.schema import Backend
from pipeline.engine.journal import Journal, JournalReader
from pipeline.engine.scheduler.state import JobStatus
from pipeline.engine.store import store as store_module
from pipeline.engine.workers import pool as pool_module
from tests.doubles.engine import Engine
from tests.integration.test_engine_crash_points import PLAN, outputs


class NoReaper:
    """There are no processes to reap."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


@dataclass
class Disk:
    """What of the files below a folder would be left."""

    forced: dict[tuple[int, int], int] = field(default_factory=dict)
    """File -> bytes that it had when it was forced."""

    def fsync(self, descriptor: int) -> None:
        """Note what is on disk from now on."""
        status = os.fstat(descriptor)
        self.forced[status.st_dev, status.st_ino] = status.st_size

    def after_loss(self, root: Path, copy: Path, *, names: bool) -> None:
        """Copy what is left: files that were never forced are empty, or gone where `names` are lost too."""
        copy.mkdir(parents=True)
        for path in sorted(root.rglob("*")):
            target, status = copy / path.relative_to(root), path.lstat()
            if stat.S_ISDIR(status.st_mode):
                target.mkdir(exist_ok=True)
            elif stat.S_ISLNK(status.st_mode):
                target.symlink_to(path.readlink())
            else:
                length = self.forced.get((status.st_dev, status.st_ino))
                if length is not None or not names:
                    target.write_bytes(path.read_bytes()[: length or 0])


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found = Disk()
    monkeypatch.setattr(os, "fsync", found.fsync)
    monkeypatch.setattr(pool_module, "Reaper", NoReaper)
    return found


CASES = list(itertools.product((0.0, 1e9), (False, True), range(3)))


@pytest.mark.parametrize(
    ("worth_s", "names", "first"),
    [
        # A third of the moments, another one in each case.
        *((worth_s, names, first) for worth_s, names, first in CASES if first == (worth_s > 0) + names),
        *(
            pytest.param(worth_s, names, first, marks=pytest.mark.exhaustive)
            for worth_s, names, first in CASES
            if first != (worth_s > 0) + names
        ),
    ],
)
def test_a_loss_of_power_costs_nothing_but_time(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, worth_s: float, names: bool, first: int
) -> None:
    """Worth forcing is all, or nothing; contents are lost, or names too; at each third moment from the first."""
    monkeypatch.setattr(store_module, "WORTH_FORCING_S", worth_s)
    calm, moments = Engine(tmp_path / "calm"), []

    def and_look(write: Callable[[Journal], None]) -> Callable[[Journal], None]:
        def look(journal: Journal) -> None:
            write(journal)
            moments.append(tmp_path / f"moment{len(moments)}")
            disk.after_loss(calm.root, moments[-1], names=names)

        return look

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "flush", and_look(Journal.flush))
        patched.setattr(Journal, "force", and_look(Journal.force))
        calm.run(*PLAN, backend=Backend.inline, workers=1)
    assert len(moments) > 9
    end = tmp_path / "end"
    disk.after_loss(calm.root, end, names=names)
    kept = 0
    for moment in [*moments[first::3], end]:
        journal = moment / "run1" / "journal.jsonl"
        told = list(JournalReader(journal).new_events()) if journal.exists() else []
        assert told == calm.journal[: len(told)], "whole lines, from the first on"
        engine = Engine(moment, runs=1)
        stored = [one.id for one in PLAN if engine.store.has(one.key)]
        kept += len(stored)
        outcome = engine.run(*PLAN, stored=stored, backend=Backend.inline, workers=1)
        assert set(outcome.jobs.values()) <= {JobStatus.done, JobStatus.stored}
        assert outputs(engine) == outputs(calm)
    assert bool(kept) == (worth_s == 0), "what was worth it is there"
    if worth_s == 0:
        assert len(stored) == len(PLAN), "nothing is made again that was forced"
