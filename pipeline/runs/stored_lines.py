"""What the stored outputs of a run's jobs have line by line: evaluated completions, and the steps of trainings.

A file that cannot be read costs itself alone: where many files make the whole, the others still tell.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pipeline.engine.store.store import Store
from pipeline.foreign import ForeignDataError
from pipeline.outputs.curves import CURVES, TrainingStep, read_curve
from pipeline.outputs.formats import METRICS, SAMPLES, Sample
from pipeline.outputs.reading import count_lines, problem_in_words, read_lines
from pipeline.plan.graph import Job

log = logging.getLogger("pipeline")


def stored_samples(store: Store, jobs: Iterable[Job], most_each: int | None) -> Iterator[tuple[Job, Sample]]:
    """The evaluated completions of some jobs, in their order.

    Args:
        store: The store.
        jobs: The jobs; those that evaluate nothing have none.
        most_each: Completions of each job after which no further prompt is begun; None for all.
    """
    for job in jobs:
        output = store.path(job.key)
        if (output / METRICS).exists():
            continue  # what it has are those picked for people, of the same completions
        with _passing_over(job, SAMPLES):
            for sample in _first_prompts(read_lines(output / SAMPLES, Sample), most_each):
                yield job, sample


def count_samples(store: Store, jobs: Iterable[Job]) -> int:
    """How many completions of some jobs are stored."""
    found = 0
    for job in jobs:
        with _passing_over(job, SAMPLES):
            found += count_lines(store.path(job.key) / SAMPLES)
    return found


def stored_curves(store: Store, jobs: Iterable[Job]) -> list[tuple[Job, list[TrainingStep]]]:
    """The steps of every training that is stored, in the order of the jobs."""
    found: list[tuple[Job, list[TrainingStep]]] = []
    for job in jobs:
        with _passing_over(job, CURVES):
            if steps := read_curve(store.path(job.key)):
                found.append((job, steps))
    return found


def told(job: Job, said: str) -> None:
    """Log what cannot be read of a job's stored output."""
    log.warning("%s: %s", job.id, said)


def _first_prompts(found: Iterable[Sample], most: int | None) -> Iterator[Sample]:
    """Those to the first prompts, to each of them all: at least so many where there are."""
    row = None
    for number, sample in enumerate(found):
        if most is not None and number >= most and sample.row != row:
            return
        row = sample.row
        yield sample


@contextmanager
def _passing_over(job: Job, name: str) -> Iterator[None]:
    """Pass over a file that cannot be read; most jobs have none of its name."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        return
    except (ForeignDataError, OSError) as error:
        told(job, f"its stored {name} cannot be read: {problem_in_words(error)}")
