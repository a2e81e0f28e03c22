"""What jobs want a reader of the results to know: the ``note`` in the file that a training leaves.

The notes come from stored outputs, so equal runs have equal ones, whenever their jobs ran.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.foreign import ForeignDataError, read_json
from pipeline.plan.job import Job
from pipeline.results.store import Store

FILES = ("reward.json", "training.json")
_LONGEST = 500


@dataclass(frozen=True, kw_only=True)
class _Noted:
    note: str | None = None


def collect_notes(store: Store, jobs: Iterable[Job]) -> list[str]:
    """One line for every chain and note, with the rounds that it is about."""
    rounds: dict[tuple[str, str], list[int]] = {}
    for job in sorted(jobs, key=lambda job: (job.chain, job.round, job.stage)):
        for note in _notes_of(store, job):
            rounds.setdefault((job.chain, note), []).append(job.round)
    return [f"{chain}, {_rounds(numbers)}: {note}" for (chain, note), numbers in rounds.items()]


def _notes_of(store: Store, job: Job) -> Iterable[str]:
    for name in FILES:
        try:
            note = read_json((store.path(job.key) / name).read_bytes(), _Noted).note
        except (
            OSError,
            ForeignDataError,
        ):  # not there, or the file of an algorithm that puts something else in it
            continue
        if note:
            yield " ".join(note.split())[:_LONGEST]


def _rounds(numbers: list[int]) -> str:
    return f"round{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
