"""Removes the weights that `execution.keep` does not ask for, as soon as the jobs of a run are done with them.

    events of the run --> what is there now --> `plan.keeping`: which weights nothing needs --> tombstone --> gone

Nothing here is needed for a result, so whatever goes wrong is told and costs the room alone.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from pipeline.config.schema import Keep
from pipeline.engine.journal import Event
from pipeline.engine.store.gc import RunReference, find_runs
from pipeline.engine.store.store import DECIDING, KEY, Store, explained, living, users
from pipeline.errors import PlanError, StoreError
from pipeline.files import Claim, claim, fsync, open_plain, write_whole
from pipeline.foreign import ForeignDataError, read_plain
from pipeline.outputs.manifest import REMOVED, TOMBSTONE, NotAnOutputError, entomb, read_manifest, read_tombstone
from pipeline.plan.graph import Job, Plan
from pipeline.plan.keeping import free, kept, measures, place_of, scores_of
from pipeline.plan.recorded import RecordedPlan, parse_plan

# -- removal -----------------------------------------------------------------------------------------------------
# The weights of an output go and all else of it stays: an output like that is told from a damaged one.
#
#     claim the key -> decide, with the lock of `deciding` -> tombstone, forced to disk -> remove the files
#
# Killed before the tombstone has its name, nothing has happened. Killed after, the output counts as removed
# although some files are still there; whoever removes it next, or `store gc`, finishes that.


# -- needs -------------------------------------------------------------------------------------------------------
# Which weights the runs that live are still going to read, so that none of them loses what another removes.
#
#     a run begins:    tell all that its plan could read -> look at what is stored -> tell less, as jobs are done
#     weights may go:  hold the lock -> does nobody who lives tell of them? -> tombstone -> free the lock -> remove
#
# So either the one that removes sees what the other tells, or the other finds the tombstone when it looks.
# `<root>/.tmp/<run>/needs` has keys, one a line; of no meaning once the run's lock is free (`Scratch`).


NEEDS = "needs"
_LIMIT = 1 << 28


def tell_needs(store: Store, scratch: Path, keys: Iterable[str]) -> None:
    """Tell other runs which weights are not to be removed while this one lives; replaces what was told before.

    Args:
        store: The store.
        scratch: The run's folder there, which is open (`Scratch`).
        keys: Of outputs, stored or still to be made.

    Raises:
        StoreError: It could not be written.
    """
    try:
        with deciding(store):
            write_whole(scratch / NEEDS, "".join(f"{key}\n" for key in sorted(keys)), durable=False)
    except OSError as error:
        raise explained(f"could not write {scratch / NEEDS}", error) from error


def needed_by_others(store: Store, scratch: Path) -> set[str]:
    """What all other runs tell that live. To be asked with the lock held.

    Args:
        store: The store.
        scratch: The folder of the run that asks.

    Raises:
        StoreError: What one of them tells cannot be read, so that nothing may be removed.
    """
    found: set[str] = set()
    for folder in living(store.root):
        if folder.name != scratch.name:
            found |= _told(folder / NEEDS)
    return found


def deciding(store: Store) -> Claim:
    """Hold the lock under which needs are told, and under which it is decided what nobody needs.

    Raises:
        OSError: The lock cannot be opened, or the file system has none.
    """
    held = claim(store.root / DECIDING, wait=True, strict=True)
    assert held is not None
    return held


def _told(path: Path) -> set[str]:
    try:
        keys = read_plain(path, _LIMIT).decode("ascii").splitlines()
    except FileNotFoundError:  # a folder of another use, or a run that has not looked at what is stored
        return set()
    except (OSError, ForeignDataError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read {path} ({error}), so what its run needs is unknown") from error
    if not all(map(KEY.fullmatch, keys)):
        raise StoreError(f"cannot read {path}: it holds what is no key, so what its run needs is unknown")
    return set(keys)


def remove_weights(
    store: Store,
    key: str,
    patterns: Collection[str],
    why: str,
    scratch: Path,
    is_free: Callable[[], bool] = lambda: True,
) -> int:
    """Remove the weights of an output, unless a run that lives needs them, or makes or reads them now.

    Args:
        store: The store.
        key: The output.
        patterns: Names of files of weights, in whatever folder of the output.
        why: What asked for it, for people.
        scratch: The run's folder in the store.
        is_free: Asked last, with the lock held: whether nobody else needs them.

    Returns:
        Bytes that were freed; 0 where there is nothing to remove, or not now.

    Raises:
        StoreError: It could not be decided, or not be done.
    """
    claim = store.claim(key)
    if claim is None:
        return 0
    with claim:
        try:
            folder = os.open(store.path(key), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise explained(f"could not open {store.path(key)}", error) from error
        try:
            with deciding(store):
                if key in needed_by_others(store, scratch) or not is_free():
                    return 0
                files = _entombed(store, key, patterns, why, scratch)
            return _unlink(files, folder)
        except NotAnOutputError:  # damaged: whoever needs it sets it aside
            return 0
        except OSError as error:
            raise explained(f"could not remove the weights of {store.path(key)}", error) from error
        finally:
            os.close(folder)


def weights_size(store: Store, key: str, patterns: Collection[str]) -> int:
    """Bytes of the weights of an output that are there, also of those whose removal was cut short."""
    size = 0
    with suppress(NotAnOutputError):
        for name in read_manifest(key, store.path(key))["files"]:
            if _is_weights(name, patterns):
                with suppress(OSError):
                    size += (store.path(key) / name).lstat().st_size
    return size


def _entombed(store: Store, key: str, patterns: Collection[str], why: str, scratch: Path) -> Sequence[str]:
    """The files to remove, once that is on disk."""
    problem, folder = store.problem(key, checksums=False), store.path(key)
    manifest = read_manifest(key, folder)
    if problem == REMOVED:
        return sorted(read_tombstone(key, folder, manifest))
    names = sorted(name for name in manifest["files"] if _is_weights(name, patterns))
    if problem is not None or not names:
        return []
    written = scratch / f"{key}.{TOMBSTONE}"  # not in the output, where what a killed run left would be damage
    written.write_bytes(entomb(key, folder, names, why))
    fsync(written)
    written.rename(folder / TOMBSTONE)
    fsync(folder, folder=True)
    return names


def _unlink(names: Sequence[str], folder: int) -> int:
    """Remove files of an open folder, wherever that has been moved to meanwhile."""
    freed = 0
    for name in names:
        with suppress(FileNotFoundError):
            size = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
            os.unlink(name, dir_fd=folder)
            freed += size
    return freed


def _is_weights(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(PurePosixPath(name).name, pattern) for pattern in patterns)


log = logging.getLogger("pipeline")


@dataclass(kw_only=True)
class Keeper:
    """Removes weights that nothing in a run needs any more.

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
        for job_id in self.there:
            self._measured(self.plan.jobs[job_id])
        for chain in self._chains:
            self._decide(chain)
        self.before = {job.id for job in trained if self.is_gone(job.id)}
        self._needed = {job.key for job in trained}

    def take(self, event: Event) -> None:
        """Something has happened in the run."""
        if self.keep is Keep.all or event.get("job") not in self.plan.jobs:
            return
        job = self.plan.jobs[event["job"]]
        if event["event"] in ("JobFinished", "JobFoundStored"):
            self.there.add(job.id)
            about = {job.id, *self.plan.inputs(job.id)}
            self._measured(job)
            if job.chain in self._chains and (job.weights or measures(job)):
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
        if self.keep is Keep.best and measures(job) and self.store.is_committed(job.key):
            self._scores[place_of(job)] = self.score_of(job)

    def _decide(self, chain: str) -> None:
        """Choose what stays of a chain."""
        jobs = self._chains[chain]
        removed = {job.id for job in jobs if self.is_gone(job.id)}
        stay = kept(jobs, self.keep, self._scores)
        self.lacking.discard(chain)
        if not stay.isdisjoint(removed):
            self.lacking.add(chain)
            stay = kept(jobs, self.keep, self._scores, removed)
        self._stay -= {job.id for job in jobs}
        self._stay |= stay

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
        if self.store.is_removed(job.key) and not self.store.leftover_weights(job.key):
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


# -- kept --------------------------------------------------------------------------------------------------------
# Which weights other experiments hold, whose runs use the same store and may be over: what their plans say. A
# run that ended keeps what its `execution.keep` says, and one that was cut off what its unfinished jobs will
# read. Of each experiment the newest run that has an output speaks for it.


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
