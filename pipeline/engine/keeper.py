"""Removes the weights that `execution.keep` does not ask for, as soon as the jobs of a run are done with them.

    events of the run --> what is there now --> `plan.keeping`: which weights nothing needs --> `store.removal`

Nothing here is needed for a result, so whatever goes wrong is told and costs the room alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config.schema import Keep
from pipeline.engine.journal import Event
from pipeline.engine.store.gc import held_by_runs
from pipeline.engine.store.removal import leftover_weights, remove_weights, tell_needs, weights_size
from pipeline.engine.store.store import Store
from pipeline.errors import StoreError
from pipeline.plan.graph import Job, Plan
from pipeline.plan.keeping import free, kept, measures, place_of

log = logging.getLogger("pipeline")


@dataclass(kw_only=True)
class Keeper:
    """Of one run.

    Attributes:
        plan: What is carried out.
        keep: Which weights stay.
        there: Ids of the jobs that are done, or need not run.
        store: The store.
        scratch: The run's folder there, open for as long as it needs weights.
        experiment: Folder of the experiment's runs.
        output_dir: Folder of all runs.
        score_of: How well a policy evaluates, of the job that measures it; asked once that is done.
        is_needed: Whether the output of a key must stay whole for now, as it is being uploaded.
        number: Outputs whose weights this run has removed.
        freed: Their bytes.
        stuck: Why no further weights are removed, or "".
        lacking: Chains of which the weights that are to stay were removed before, by a run with another `keep`;
            those stay that come next.
        bare: Those of them of which no weights are left at all.
        before: Ids of the jobs whose weights were gone when the run began.
    """

    plan: Plan
    keep: Keep
    there: set[str]
    store: Store
    scratch: Path
    experiment: Path
    output_dir: Path
    score_of: Callable[[Job], float | None]
    is_needed: Callable[[str], bool] = lambda _: False
    number: int = 0
    freed: int = 0
    stuck: str = ""
    lacking: set[str] = field(default_factory=set)
    bare: set[str] = field(default_factory=set)
    before: set[str] = field(default_factory=set)
    _chains: dict[str, list[Job]] = field(default_factory=dict)
    _scores: dict[tuple[str, int], float | None] = field(default_factory=dict)
    _stay: set[str] = field(default_factory=set)
    _needed: set[str] = field(default_factory=set)
    _held: set[str] = field(default_factory=set)
    _held_when: int = -1

    def __post_init__(self) -> None:
        trained = [job for job in self.plan.jobs.values() if job.weights]
        for job in trained:
            self._chains.setdefault(job.chain, []).append(job)
        for job_id in self.there if self.keep is Keep.best else ():
            self._measured(self.plan.jobs[job_id])
        for chain in self._chains:
            self.before |= self._decide(chain)
        self._needed = {job.key for job in trained}

    def take(self, event: Event) -> None:
        """Something has happened in the run."""
        if self.keep is Keep.all or event.get("job") not in self.plan.jobs:
            return
        job = self.plan.jobs[event["job"]]
        if event["event"] in ("JobFinished", "JobFoundStored"):
            self.there.add(job.id)
            about = {job.id, *self.plan.inputs(job.id)}
            if self.keep is Keep.best and measures(job):
                self._measured(job)
                about |= {one.id for one in self._chains.get(job.chain, ())}
            elif job.chain in self.lacking and job.weights:  # which are made again after all
                self._decide(job.chain)
                about |= {one.id for one in self._chains[job.chain]}
            self._remove(about)
        elif event["event"] == "JobReopened":
            self.there.discard(job.id)
            self._needed |= keys_of_weights(self.plan.jobs[one] for one in {job.id, *self.plan.inputs(job.id)})
            self._tell()

    def remove_unneeded(self) -> None:
        """Remove everything that nothing needs now, also what an earlier run has left to be removed."""
        if self.keep is not Keep.all:
            self._held_when, self.stuck = -1, ""  # a disk that was full may have room by now
            self._remove(self.plan.jobs)

    def removable(self) -> int:
        """Bytes that `remove_unneeded` would free now, unless a run that lives needs them; nothing is written."""
        found = free(self.plan.jobs, self.plan.readers, self.there, self._stay)
        try:
            held = self._held_by_runs() if found else set()
        except (StoreError, OSError):
            return 0
        jobs = [self.plan.jobs[job_id] for job_id in found]
        return sum(weights_size(self.store, job.key, job.weights) for job in jobs if job.key not in held)

    def _measured(self, job: Job) -> None:
        if measures(job) and self.store.is_committed(job.key):
            self._scores[place_of(job)] = self.score_of(job)
            self._decide(job.chain)

    def _decide(self, chain: str) -> set[str]:
        """Choose what stays of a chain; the ids of the jobs whose weights are gone already."""
        jobs = self._chains.get(chain, [])
        stay = kept(jobs, self.keep, self._scores)
        self.lacking.discard(chain)
        self.bare.discard(chain)
        if not stay.isdisjoint(removed := self._removed(jobs)):
            self.lacking.add(chain)
            stay = kept(jobs, self.keep, self._scores, removed)
            self.bare |= set() if stay else {chain}
        self._stay -= {job.id for job in jobs}
        self._stay |= stay
        return removed

    def _removed(self, jobs: Iterable[Job]) -> set[str]:
        """Those whose weights were removed, by this run or an earlier one, and are not to be made again."""
        return {job.id for job in jobs if self.is_gone(job.id)}

    def is_gone(self, job_id: str) -> bool:
        """Whether weights were removed, and are not made again."""
        return job_id in self.there and self.store.is_removed(self.plan.jobs[job_id].key)

    def _remove(self, about: Collection[str]) -> None:
        found = free(self.plan.jobs, self.plan.readers, self.there, self._stay, about)
        if not found or self.stuck:
            return
        with suppress(OSError):  # once no job runs any more, those who clean up after workers have removed it
            self.scratch.mkdir(exist_ok=True)
        self._needed -= {self.plan.jobs[job_id].key for job_id in found}
        if not self._tell():
            return
        for job in map(self.plan.jobs.__getitem__, found):
            try:
                self._remove_one(job)
            except (StoreError, OSError) as error:
                self.stuck = str(error)
                log.warning("execution.keep=%s: no further weights are removed: %s", self.keep.name, error)
                return

    def _remove_one(self, job: Job) -> None:
        if self.store.is_removed(job.key) and not leftover_weights(self.store, job.key):
            return
        if self.is_needed(job.key):
            return
        why = f"execution.keep={self.keep.name}"
        freed = remove_weights(
            self.store, job.key, job.weights, why, self.scratch, lambda: job.key not in self._held_by_runs()
        )
        if freed:
            self.number, self.freed = self.number + 1, self.freed + freed
            log.info("%s: its weights were removed, %s bytes (%s)", job.id, f"{freed:,}", why)

    def _held_by_runs(self) -> set[str]:
        """What other experiments hold: looked at again only where a run began or ended meanwhile."""
        when = self.scratch.parent.stat().st_mtime_ns
        if when != self._held_when:
            keys = {job.key for jobs in self._chains.values() for job in jobs}
            self._held = held_by_runs(self.store, [self.output_dir], self.experiment, keys, self.score_of)
            self._held_when = when
        return self._held

    def _tell(self) -> bool:
        try:
            tell_needs(self.store, self.scratch, self._needed)
        except StoreError as error:
            self.stuck = str(error)
            log.warning("execution.keep=%s: no weights are removed: %s", self.keep.name, error)
        return not self.stuck


def keys_of_weights(jobs: Iterable[Job]) -> set[str]:
    """Keys of the outputs that hold weights which jobs have trained: what a run may read, until it has looked."""
    return {job.key for job in jobs if job.weights}
