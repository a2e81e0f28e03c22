"""What jobs want a reader of the results to know: the ``note`` that a job leaves, a dataset short of rows.

The notes come from stored outputs, so equal runs have equal ones, whenever their jobs ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

from pipeline.config.schema import EvaluationConfig
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store import Store
from pipeline.foreign import ForeignDataError
from pipeline.outputs import formats
from pipeline.plan.graph import Job
from pipeline.runs.record import MANY_CUT
from pipeline.runs.report.format import count, logs_command

_LONGEST = 500


def collect_notes(store: Store, jobs: Iterable[Job]) -> list[str]:
    """One line for every chain and note, with the rounds that it is about; one where texts lack something."""
    rounds: dict[tuple[str, str], list[int]] = {}
    ordered = sorted(jobs, key=lambda job: (job.chain, job.round, job.stage))
    for job in ordered:
        for note in _notes_of(store, job):
            rounds.setdefault((job.chain, note), []).append(job.round)
    notes = [f"{chain}, {_rounds(numbers)}: {note}" for (chain, note), numbers in rounds.items()]
    return [*notes, *_of_texts(store, ordered)]


def prepared_rows(store: Store, jobs: Iterable[Job]) -> dict[str, formats.PreparedRows]:
    """What became of the rows of each dataset that is read rather than made."""
    found: dict[str, formats.PreparedRows] = {}
    for job in jobs:
        if job.round:
            continue
        with suppress(OSError, ForeignDataError):  # of another kind of job, or not there
            found[job.dataset] = formats.read_prepared_rows(store.path(job.key) / formats.DATASET)
    return dict(sorted(found.items()))


def warnings_of_rows(store: Store, jobs: Iterable[Job]) -> list[str]:
    """What datasets that are stored were warned of when they were prepared, as a run warns that prepares them."""
    found = prepared_rows(store, jobs).items()
    return [f"datasets.{name}: {warning}" for name, rows in found for warning in rows.warnings]


def short_of_rows(
    store: Store, jobs: Iterable[Job], evaluation: EvaluationConfig, told: Collection[str] = ()
) -> list[str]:
    """One line for every dataset that has fewer rows than were asked for, or has left some out.

    Args:
        store: The store.
        jobs: Jobs of a plan.
        evaluation: On how many prompts policies were to be evaluated.
        told: Warnings of the run when it began; what they say of a dataset is not said again.
    """
    lines = []
    for dataset, prepared in prepared_rows(store, jobs).items():
        if said := [*prepared.warnings, *_fewer_prompts(prepared, evaluation)]:
            known = [warning for warning in told if warning.startswith(f"datasets.{dataset}: ")]
            new = [each for each in said if not any(each in warning for warning in known)]
            rest = f": {'; '.join(new)}" if new else ""
            lines.append(f"{dataset}: {prepared} (datasets.{dataset}.test_size, validation_size){rest}")
    return lines


def _fewer_prompts(prepared: formats.PreparedRows, evaluation: EvaluationConfig) -> list[str]:
    """That policies are evaluated on fewer prompts than were asked for; what is stored knows nothing of that."""
    there = prepared.rows.get(evaluation.split)
    if there is None or there >= evaluation.num_prompts:
        return []
    has = f"{evaluation.split} has {count(there, 'prompt')}"
    return [f"evaluation.num_prompts={evaluation.num_prompts}: {has}, and evaluation uses all of them"]


def _notes_of(store: Store, job: Job) -> Iterable[str]:
    for name, read in (
        (formats.TOKENIZED, formats.read_tokenized),
        (formats.REWARD, formats.read_reward_fit),
        (formats.TRAINING, formats.read_training),
    ):
        with suppress(OSError, ForeignDataError):  # not there
            if note := read(store.path(job.key) / name).note:
                yield " ".join(note.split())[:_LONGEST]


def _of_texts(store: Store, jobs: Iterable[Job]) -> Iterator[str]:
    """One line for every dataset and model of which many completions are cut off, or whose texts lack tokens."""
    most: dict[str, tuple[float, str]] = {}
    lost: Counter[str] = Counter()
    for job in jobs:
        place = f"{job.dataset}/{job.model}"
        with suppress(OSError, ForeignDataError):
            for row in formats.read_metrics(store.path(job.key)).rows:
                if row.metric == "truncated" and (row.value or 0) >= MANY_CUT:
                    cut = (row.value or 0, f"{job.algo}, round {job.round}")
                    most[place] = max(most.get(place, (0.0, "")), cut, key=lambda each: each[0])
                if row.metric == "skipped_tokens":
                    lost[place] += int(row.value or 0)
    for place, (share, where) in most.items():
        yield (
            f"{place}: up to {share:.0%} of completions ({where}) are cut off at generation.max_new_tokens before "
            "they end, and judged as they are (cut off in the table): allow more, or name what they end with "
            "(generation.stop)"
        )
    for place, number in lost.items():
        if number:
            yield (
                f"{place}: {count(number, 'special token')} of completions, none an end, left out of the texts "
                "that rewards and samples have: generation.skip_special_tokens=false keeps what means something "
                "to a reward, as a token that begins thinking or calls a tool"
            )


def failed_rewards(store: Store, jobs: Iterable[Job], run: RunFolder) -> list[str]:
    """One line for every chain and round at whose completions a reward failed: how often, why, how to read more.

    Args:
        store: The store.
        jobs: Jobs of a plan.
        run: Of the jobs.
    """
    found: dict[tuple[str, int], list[tuple[Job, formats.Faults]]] = {}
    for job in sorted(jobs, key=lambda job: (job.chain, job.round, job.stage, job.id)):
        with suppress(OSError, ForeignDataError):
            faults = formats.read_faults(store.path(job.key) / formats.FAULTS)
            found.setdefault((job.chain, job.round), []).append((job, faults))
    return [f"{chain}, {_rounds([number])}: {_failed(own, run)}" for (chain, number), own in found.items()]


def _failed(own: list[tuple[Job, formats.Faults]], run: RunFolder) -> str:
    counts: dict[str, Counter[str]] = {}
    for job, faults in own:
        counts.setdefault(job.stage, Counter()).update(failed=faults.failed, of=faults.completions, jobs=1)
    parts = [
        f"{number['failed']:,} of {number['of']:,} completions of {count(number['jobs'], 'job')} ({stage})"
        for stage, number in counts.items()
    ]
    first, faults = own[0]
    said = " ".join(faults.first.split())[:_LONGEST]
    log = logs_command(run.path.parent.parent, run.experiment, first.id)
    return f"a reward failed at {', '.join(parts)}, which have no score; first {said} ({log})"


def _rounds(numbers: list[int]) -> str:
    return f"round{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
