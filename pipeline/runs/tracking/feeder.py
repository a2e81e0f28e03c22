"""The process of one tracker: follows a run until it is told that the run has ended. Started by `feeders`."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from pipeline.engine.run_folder import RunFolder
from pipeline.errors import PipelineError
from pipeline.files import json_text, write_whole
from pipeline.foreign import ForeignDataError, read_json_file
from pipeline.locks import claim
from pipeline.machine.begin import begin
from pipeline.machine.channel import Channel
from pipeline.outputs.formats import Count
from pipeline.plan.graph import Job
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.run_view import JobView
from pipeline.runs.tracking.batches import Batch, BatchReader, TrackedChain, telling, tracked_chains
from pipeline.runs.tracking.trackers import Tracker, TrackerPlace, TrackerRun, make_tracker
from pipeline.runs.tracking.wandb_sweep import SweepTrial, left_values

if TYPE_CHECKING:
    from pipeline.runs.tracking.to_wandb import TrialRun


# -- feed --------------------------------------------------------------------------------------------------------
# Telling one tracker of the chains of a run: what is done, and what the tracker does not know yet.


# -- told --------------------------------------------------------------------------------------------------------
# What a tracker was told of a chain: a small file of ours, written before anything is sent and when it is
# safe. The order in which batches were first sent is kept for good, as trackers count what they are told: a
# row that is told once more has the same number.


_Key = Annotated[str, Meta(max_length=100)]


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a tracker was told of a chain.

    Attributes:
        name: What its run is called there.
        batches: Id and number of rows of every batch that was sent, in that order; some may not have arrived.
        kept: How many of these the tracker has for good.
    """

    name: str
    batches: Sequence[tuple[_Key, Count]] = field(default=())
    kept: Count = 0

    def lacks(self, ids: Iterable[str]) -> bool:
        """Whether the tracker may lack one of some batches."""
        return not set(ids) <= {known for known, _ in self.batches[: self.kept]}

    def extended(self, new: Iterable[Batch]) -> Told:
        """With batches that are about to be sent."""
        known = {name for name, _ in self.batches}
        added = [(batch.id, len(batch.rows)) for batch in new if batch.id not in known]
        return Told(name=self.name, batches=[*self.batches, *added], kept=self.kept)

    def all_kept(self) -> Told:
        """When everything that was sent is safe."""
        return Told(name=self.name, batches=self.batches, kept=len(self.batches))

    def first_row(self, batch_id: str) -> int:
        """How many rows were sent before a batch."""
        ids = [known for known, _ in self.batches]
        return sum(rows for _, rows in self.batches[: ids.index(batch_id)])


class ToldFiles:
    """What one tracker was told of all chains of an experiment: a file for each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, str] = {}
        """Names that are taken, as far as one was asked for: id of a chain -> its name."""

    def read(self, chain_id: str) -> Told | None:
        """What it was told of a chain; None where that is nothing, or not known any more."""
        try:
            return read_json_file(self._path(chain_id), Told)
        except (ForeignDataError, OSError):
            return None

    def write(self, chain_id: str, told: Told) -> None:
        """Note it, so that it outlives this process and the machine."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._names[chain_id] = told.name
        write_whole(self._path(chain_id), json_text(asdict(told)) + "\n")

    def free_name(self, chain_id: str, name: str) -> str:
        """The name of a chain, or with its id if that of other settings has it already."""
        for path in self._folder.glob("*.json"):
            if path.stem not in self._names and (told := self.read(path.stem)) is not None:
                self._names[path.stem] = told.name
        taken = {known for other, known in self._names.items() if other != chain_id}
        return f"{name}@{chain_id[:6]}" if name in taken else name

    def _path(self, chain_id: str) -> Path:
        return self._folder / f"{chain_id}.json"


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


_LOOK_S = 2.0
"""Seconds between two looks at the journal."""
_NOISE = 1 << 20
"""Bytes that are kept of what a tracker prints."""
_NICENESS = 10
_SAID = 500


def main() -> None:
    """Tell a tracker of a run; leaves at once when that is done, whatever threads the tracker has."""
    settings = begin()
    channel = Channel.inherited(settings.pop("fd"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this process says when it ends
    os.nice(_NICENESS)
    _log_to(_take_output())
    try:
        _follow(channel, **settings)
    except BaseException as error:
        log.exception("nothing more is told")
        _say(channel, problem=f"{type(error).__name__}: {error}"[:_SAID])
        os._exit(1)
    _say(channel, problem=None)
    os._exit(0)


def _follow(
    channel: Channel,
    run: str,
    tracker: str,
    place: Mapping[str, Any],
    samples: int,
    trial: Mapping[str, Any] | None,
) -> None:
    log.info("tells %s of run %s", tracker, run)
    recorded = LoadedRun(RunFolder(Path(run)))
    there = TrackerPlace(**{**place, "folder": Path(place["folder"])})
    feed = Feed(recorded, lambda: make_tracker(tracker, there), ToldFiles(there.told), samples)
    # Two processes that told the same chains would tell them twice.
    lock = there.told / f".{recorded.name}.lock"
    while (held := claim(tracker, lock)) is None:
        log.info("waits: another run of the experiment tells it right now")
        if _is_over(channel):
            raise PipelineError("another run of the experiment tells it right now")
        _wait(channel)
    with held:
        judged = _Judged(recorded, there, SweepTrial(**trial)) if trial else None
        is_over = False
        while not is_over:
            is_over = _is_over(channel)  # asked first, so that nothing is missed that was written before
            if is_over:
                log.info("the run has ended: tells what is left")
            feed.look()
            if judged is not None:
                judged.look()
            if not is_over:
                _wait(channel)
        if judged is not None:
            judged.close()
        feed.close()


class _Judged:
    """What W&B's sweep is told of this run, which is a trial of it."""

    def __init__(self, run: LoadedRun, place: TrackerPlace, trial: SweepTrial) -> None:
        self._folder, self._name, self._place, self._trial = run.folder.path, run.name, place, trial
        self._told = 0
        self._run: TrialRun | None = None

    def look(self) -> None:
        for judged in left_values(self._folder)[self._told :]:
            if self._run is None:
                from pipeline.runs.tracking.to_wandb import Wandb

                self._run = Wandb(self._place).begin_trial(self._trial, self._name)
            self._run.add(judged)
            self._told += 1

    def close(self) -> None:
        if self._run is not None:
            self._run.close()


def _is_over(channel: Channel) -> bool:
    return any(channel.receive()) or channel.closed


def _wait(channel: Channel) -> None:
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.poll(_LOOK_S * 1000)


def _say(channel: Channel, **said: Any) -> None:
    with suppress(OSError):  # nobody listens any more
        channel.send(json_text(said).encode())


def _take_output() -> int:
    """Have what is printed here go through a pipe that takes it all and writes its beginning to the log.

    Returns:
        The log, which this process was given as its output.
    """
    file = os.dup(1)
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    os.close(writing)
    threading.Thread(target=_drain, args=(reading, file), daemon=True).start()
    return file


def _drain(reading: int, file: int) -> None:
    left = _NOISE
    while noise := os.read(reading, 1 << 16):
        if left > 0:
            with suppress(OSError):
                os.write(file, noise[:left])
        left -= len(noise)


def _log_to(file: int) -> None:
    handler = logging.StreamHandler(
        os.fdopen(file, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


if __name__ == "__main__":
    main()
