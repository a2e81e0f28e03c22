"""Telling one tracker of the chains of a run: what is done, and what the tracker does not know yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from pipeline.plan.graph import Job
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.run_view import JobView
from pipeline.runs.tracking.batches import Batch, BatchReader, telling
from pipeline.runs.tracking.chains import TrackedChain, tracked_chains
from pipeline.runs.tracking.told import Told, ToldFiles
from pipeline.runs.tracking.trackers import Tracker, TrackerRun

_THERE = ("done", "stored")

log = logging.getLogger("pipeline")


class Feed:
    """Tells a tracker what is new in a run, each time that it is asked to look."""

    def __init__(self, run: LoadedRun, make: Callable[[], Tracker], told: ToldFiles, samples: int) -> None:
        """Prepare.

        Args:
            run: The run.
            make: Makes the tracker, which takes long; called when there is something to tell.
            told: What the tracker was told before.
            samples: How many samples a round may show.

        Raises:
            PlanError: The run has no plan that can be read.
        """
        self._run, self._make, self._files, self._samples = run, make, told, samples
        self._tracker: Tracker | None = None
        self._left = tracked_chains(run.plan, run.name)
        self._begun: dict[str, _Telling] = {}

    def look(self) -> None:
        """Tell what is new; whatever the tracker raises comes out of this."""
        self._run.refresh()
        for chain in self._left:
            self._look_at(chain)
        over = [chain for chain in self._left if all(self._view(job).settled for job in chain.jobs)]
        self._left = [chain for chain in self._left if chain not in over]
        for chain in over:
            self._close(chain)

    def close(self) -> None:
        """Nothing more will be told."""
        for chain in self._left:
            self._close(chain)
        if self._tracker is not None:
            self._tracker.close()

    def _look_at(self, chain: TrackedChain) -> None:
        telling_of = self._begun.get(chain.id)
        if telling_of is None:
            told = self._files.read(chain.id)
            ready = [job.key for job in telling(chain) if self._is_there(job)]
            if not ready or (told is not None and not told.lacks(ready)):
                return
            told = told or Told(name=self._files.free_name(chain.id, chain.name))
            reader = BatchReader(chain, self._run.store, self._samples)
            telling_of = self._begun[chain.id] = _Telling(chain, told, self._files, reader, self._begin)
        telling_of.tell(list(telling_of.reader.new(self._is_there)))

    def _close(self, chain: TrackedChain) -> None:
        if (telling_of := self._begun.pop(chain.id, None)) is not None:
            telling_of.close()

    def _begin(self, chain: TrackedChain, name: str) -> TrackerRun:
        if self._tracker is None:
            log.info("loads the tracker")
            self._tracker = self._make()
        log.info("%s: begins it", name)
        return self._tracker.begin(chain, name)

    def _is_there(self, job: Job) -> bool:
        return self._view(job).status in _THERE

    def _view(self, job: Job) -> JobView:
        return self._run.view.jobs[job.id]


class _Telling:
    """One chain that the tracker is being told of."""

    def __init__(
        self,
        chain: TrackedChain,
        told: Told,
        files: ToldFiles,
        reader: BatchReader,
        begin: Callable[[TrackedChain, str], TrackerRun],
    ) -> None:
        self.reader = reader
        self._chain, self._told, self._files, self._begin = chain, told, files, begin
        self._run: TrackerRun | None = None

    def tell(self, new: Sequence[Batch]) -> None:
        """Send batches, in the order in which they were sent the first time."""
        if not new:
            return
        log.info("%s: tells what %d jobs left", self._told.name, len(new))
        self._note(self._told.extended(new))
        order = {name: place for place, (name, _) in enumerate(self._told.batches)}
        for batch in sorted(new, key=lambda batch: order[batch.id]):
            if batch.rows or batch.samples:
                self._run = self._run or self._begin(self._chain, self._told.name)
                self._run.add(batch, self._told.first_row(batch.id))
        if self._run is None or self._run.keep():
            self._note(self._told.all_kept())

    def close(self) -> None:
        """Nothing more follows."""
        if self._run is not None:
            log.info("%s: closes it", self._told.name)
            self._run.close()
            self._note(self._told.all_kept())

    def _note(self, told: Told) -> None:
        if told != self._told:
            self._files.write(self._chain.id, told)
            self._told = told
