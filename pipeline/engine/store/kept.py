"""Which weights other experiments hold, whose runs use the same store and may be over: what their plans say.

A run that ended keeps what its `execution.keep` says, and one that was cut off what its unfinished jobs will read.
Of each experiment the newest run that has an output speaks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from pipeline.config.schema import Keep
from pipeline.engine.store.run_refs import RunReference, find_runs
from pipeline.engine.store.store import Store
from pipeline.engine.store.store_lock import users
from pipeline.errors import PlanError, StoreError
from pipeline.files import open_plain
from pipeline.plan.graph import Job
from pipeline.plan.keeping import free, kept, scores_of
from pipeline.plan.recorded import RecordedPlan, parse_plan


def held_by_runs(
    store: Store,
    output_dirs: Iterable[Path],
    besides: Path,
    keys: Collection[str],
    score_of: Callable[[Job], float | None],
) -> set[str]:
    """Keys of outputs whose weights other experiments hold.

    Args:
        store: The store.
        output_dirs: Where runs lie, besides those places that the store knows of.
        besides: Folder of the experiment that asks, whose own runs do not count.
        keys: What is asked about.
        score_of: How well a policy evaluates, of the job that measures it.

    Raises:
        StoreError: A plan cannot be read, so that it is not known what its run holds.
    """
    places = dict.fromkeys([*output_dirs, *users(store.root)])
    own, held = besides.resolve(), set[str]()
    unsaid: dict[Path, set[str]] = {}
    for run in reversed(find_runs(places, store.root)):
        if (experiment := run.folder.path.parent) != own:
            # A later run may be of other seeds, other settings or of less, and says nothing of these then.
            asked = unsaid.setdefault(experiment, set(keys))
            if not asked.isdisjoint(run.keys):
                held |= asked & _held(store, run, score_of)
                asked -= run.keys
    return held


def _held(store: Store, run: RunReference, score_of: Callable[[Job], float | None]) -> set[str]:
    try:
        with open_plain(run.folder.plan, follow=True) as file:
            plan = parse_plan(file.read())
    except (OSError, PlanError) as error:
        raise StoreError(f"cannot read {run.folder.plan} ({error}), so what its run needs is unknown") from error
    if plan.keep is None or plan.keep is Keep.all:
        return set(run.keys)
    there = {job.id for job in plan.jobs.values() if store.is_committed(job.key)}
    removed = {job.id for job in plan.jobs.values() if job.weights and store.is_removed(job.key)}
    scores = scores_of((plan.jobs[job_id] for job_id in there), score_of)
    stay = kept(plan.jobs.values(), plan.keep, scores, removed)
    gone = set(free(plan.jobs, _readers(plan).__getitem__, there, stay))
    return {job.key for job in plan.jobs.values() if job.weights and job.id not in gone}


def _readers(plan: RecordedPlan) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {job_id: [] for job_id in plan.jobs}
    for upstream, downstream in plan.edges:
        found[upstream].append(downstream)
    return found
