"""What jobs want a reader of the results to know: the ``note`` in the file that a training leaves.

The notes come from stored outputs, so equal runs have equal ones, whenever their jobs ran.
"""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.engine.store.store import Store
from pipeline.foreign import ForeignDataError
from pipeline.outputs.formats import REWARD, TRAINING
from pipeline.outputs.reading import read_reward_fit, read_training
from pipeline.plan.job import Job

_LONGEST = 500


def collect_notes(store: Store, jobs: Iterable[Job]) -> list[str]:
    """One line for every chain and note, with the rounds that it is about."""
    rounds: dict[tuple[str, str], list[int]] = {}
    for job in sorted(jobs, key=lambda job: (job.chain, job.round, job.stage)):
        for note in _notes_of(store, job):
            rounds.setdefault((job.chain, note), []).append(job.round)
    return [f"{chain}, {_rounds(numbers)}: {note}" for (chain, note), numbers in rounds.items()]


def _notes_of(store: Store, job: Job) -> Iterable[str]:
    for name, read in ((REWARD, read_reward_fit), (TRAINING, read_training)):
        try:
            note = read(store.path(job.key) / name).note
        except (OSError, ForeignDataError):  # not there, or of an older version that did not look
            continue
        if note:
            yield " ".join(note.split())[:_LONGEST]


def _rounds(numbers: list[int]) -> str:
    return f"round{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
