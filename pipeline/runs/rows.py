"""What the stage `metrics` left in the store, read back: rows, what was measured by prompt, samples for people.

An output that holds something else costs its own rows, and is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store import Store
from pipeline.files import json_text, write_whole
from pipeline.foreign import ForeignDataError
from pipeline.outputs.formats import METRICS, PROMPTS, SAMPLES, problem_in_words, read_metrics, read_shown_samples
from pipeline.outputs.prompts import PromptMeasures, read_prompts
from pipeline.plan.graph import Job
from pipeline.runs.record import Place, ResultRow, place_of

METRICS_STAGE = "metrics"
Told = Callable[[Job, str], None]
"""Takes what cannot be read of a job's stored output, in words."""


def collect_rows(store: Store, jobs: Iterable[Job], tell: Told | None = None) -> list[ResultRow]:
    """Read the rows of every metrics job whose output is stored, sorted.

    Args:
        store: The store.
        jobs: Jobs of a plan; those of other stages have no rows.
        tell: Called for an output that has rows, but none that can be read.
    """
    rows: list[ResultRow] = []
    for job, output in _metrics_outputs(store, jobs):
        where = (job.algo, job.dataset, job.model, job.seed or 0, job.round)
        with _telling(job, METRICS, tell):
            rows += [
                ResultRow(*where, row.metric, row.value, row.ci_low, row.ci_high, row.n, reference=job.reference)
                for row in read_metrics(output).rows
            ]
    return sorted(rows, key=lambda row: (*place_of(row), row.metric))


def prompt_reader(
    store: Store, jobs: Iterable[Job], tell: Told | None = None
) -> Callable[[Place], PromptMeasures | None]:
    """What says of a chain and round what was measured prompt by prompt, or None where a stage does not say it.

    Args:
        store: The store.
        jobs: Jobs of a plan.
        tell: As in `collect_rows`.
    """
    outputs = {place_of(job): (job, output) for job, output in _metrics_outputs(store, jobs)}

    def read(place: Place) -> PromptMeasures | None:
        job, output = outputs[place]
        found: list[PromptMeasures] = []
        with _telling(job, PROMPTS, tell):
            found.append(read_prompts(output))
        return found[0] if found else None

    return read


def write_samples(run: RunFolder, store: Store, jobs: Iterable[Job], tell: Told | None = None) -> None:
    """Write ``samples.jsonl``: the samples that each metrics job picked, with where they come from.

    Args:
        run: Where to.
        store: The store.
        jobs: Jobs of a plan.
        tell: As in `collect_rows`.
    """
    lines: list[str] = []
    ordered = sorted(jobs, key=place_of)
    for job, output in _metrics_outputs(store, ordered):
        where: dict[str, Any] = {
            "algo": job.algo,
            "dataset": job.dataset,
            "model": job.model,
            "reference": job.reference,
            "seed": job.seed,
            "round": job.round,
        }
        with _telling(job, SAMPLES, tell):
            found = read_shown_samples(output)
            lines += [json_text({**where, **sample, **where}, ensure_ascii=False) for sample in found]
    write_whole(run.samples, "".join(line + "\n" for line in lines))


def _metrics_outputs(store: Store, jobs: Iterable[Job]) -> Iterator[tuple[Job, Path]]:
    """Jobs of the stage that measures, with where their output is if it is stored."""
    for job in jobs:
        if job.stage == METRICS_STAGE:
            yield job, store.path(job.key)


@contextmanager
def _telling(job: Job, name: str, tell: Told | None) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        return  # not stored yet, or a stage that writes no such file
    except (ForeignDataError, OSError, RecursionError) as error:
        if tell is not None:
            said = str(error) if isinstance(error, RecursionError) else problem_in_words(error)
            tell(job, f"its stored {name} cannot be read: {said}")
