"""Remove weights that `execution.keep` does not ask for, as soon as the jobs of a run are done with them.

    events of the run --> what is there now --> `plan.keeping`: which weights nothing needs --> tombstone --> gone

No result depends on this, so an error is reported and costs only disk space. The rest of an output stays, and a
tombstone tells it from a damaged one:

    claim the key -> decide, with the lock of `deciding` -> tombstone, forced to disk -> remove the files

A process killed before the tombstone has its name has changed nothing. If it is killed afterwards, the output
counts as removed although some files are still there; the next one to remove it, or `store gc`, deletes them.
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
from pipeline.engine.store.store import DECIDING, KEY, REMEDY, Store, living, users
from pipeline.errors import PlanError, StoreError, explaining
from pipeline.files import Claim, claim, fsync, open_plain, write_whole
from pipeline.foreign import ForeignDataError, read_plain
from pipeline.outputs.manifest import REMOVED, TOMBSTONE, NotAnOutputError, entomb, read_manifest, read_tombstone
from pipeline.plan.graph import Job, Plan
from pipeline.plan.keeping import free, kept, measures, place_of, scores_of
from pipeline.plan.recorded import RecordedPlan, parse_plan

# -- needs -------------------------------------------------------------------------------------------------------
# Retention: which weights the live runs are still going to read, so that no run deletes what another one needs.
#
#     a run begins:      publish all keys that its plan could read -> check what is stored
#                        -> publish fewer as jobs finish
#     removing weights:  take the lock -> does a live run need them? -> tombstone -> free the lock -> delete
#
# So either the remover sees what the other run publishes, or the other run finds the tombstone when it checks.
# `<root>/.tmp/<run>/needs` lists keys, one a line; it is ignored once the run's lock is free (`Scratch`).


NEEDS = "needs"
_LIMIT = 1 << 28


def tell_needs(store: Store, scratch: Path, keys: Iterable[str]) -> None:
    """Publish which weights must stay while this run lives; replaces the list that it published before.

    Args:
        store: The store.
        scratch: The run's folder there, which is open (`Scratch`).
        keys: Keys of outputs, stored or still to be made.

    Raises:
        StoreError: The list could not be written.
    """
    with explaining(StoreError, f"could not write {scratch / NEEDS}", REMEDY), deciding(store):
        write_whole(scratch / NEEDS, "".join(f"{key}\n" for key in sorted(keys)), durable=False)


def needed_by_others(store: Store, scratch: Path) -> set[str]:
    """Return the keys that all other live runs need. Call this with the lock held.

    Args:
        store: The store.
        scratch: The scratch folder of the calling run.

    Raises:
        StoreError: A run's list cannot be read, so nothing may be removed.
    """
    keys: set[str] = set()
    for folder in living(store.root):
        if folder.name != scratch.name:
            keys |= _read_keys(folder / NEEDS)
    return keys


def deciding(store: Store) -> Claim:
    """Take the lock under which runs publish their needs, and under which weights are chosen for removal.

    Raises:
        OSError: The lock cannot be opened, or the file system has none.
    """
    lock = claim(store.root / DECIDING, wait=True, strict=True)
    assert lock is not None
    return lock


def _read_keys(path: Path) -> set[str]:
    try:
        keys = read_plain(path, _LIMIT).decode("ascii").splitlines()
    except FileNotFoundError:  # another kind of folder, or a run that has not checked the store yet
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
    """Remove the weights of an output, unless a live run needs them, or is making or reading them.

    Args:
        store: The store.
        key: The output.
        patterns: Name patterns of weight files, in any folder of the output.
        why: Reason of the removal, for people.
        scratch: The run's folder in the store.
        is_free: Called last, with the lock held; returns whether nobody else needs the weights.

    Returns:
        Number of bytes freed; 0 where nothing can be removed now.

    Raises:
        StoreError: It could not be decided whether to remove them, or removing them failed.
    """
    claim = store.claim(key)
    if claim is None:
        return 0
    with claim, explaining(StoreError, f"could not remove the weights of {store.path(key)}", REMEDY):
        try:
            folder = os.open(store.path(key), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return 0
        try:
            with deciding(store):
                if key in needed_by_others(store, scratch) or not is_free():
                    return 0
                files = _entombed(store, key, patterns, why, scratch)
            return _unlink(files, folder)
        except NotAnOutputError:  # damaged: the next job that needs it sets it aside
            return 0
        finally:
            os.close(folder)


def weights_size(store: Store, key: str, patterns: Collection[str]) -> int:
    """Return the bytes of an output's weights on disk, including those whose removal was interrupted."""
    size = 0
    with suppress(NotAnOutputError):
        for name in read_manifest(key, store.path(key))["files"]:
            if _is_weights(name, patterns):
                with suppress(OSError):
                    size += (store.path(key) / name).lstat().st_size
    return size


def _entombed(store: Store, key: str, patterns: Collection[str], why: str, scratch: Path) -> Sequence[str]:
    """Write the tombstone, force it to disk, and return the files to remove."""
    problem, folder = store.problem(key, checksums=False), store.path(key)
    manifest = read_manifest(key, folder)
    if problem == REMOVED:
        return sorted(read_tombstone(key, folder, manifest))
    names = sorted(name for name in manifest["files"] if _is_weights(name, patterns))
    if problem is not None or not names:
        return []
    # not inside the output, where the remains of a killed run would count as damage
    written = scratch / f"{key}.{TOMBSTONE}"
    written.write_bytes(entomb(key, folder, names, why))
    fsync(written)
    written.rename(folder / TOMBSTONE)
    fsync(folder, folder=True)
    return names


def _unlink(names: Sequence[str], folder: int) -> int:
    """Delete files of an open folder, even if the folder is moved meanwhile."""
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
    """Removes weights that no job of a run needs any more.

    Attributes:
        plan: The plan that runs.
        keep: Which weights to keep.
        there: Ids of the jobs that are done, or need not run.
        store: The store.
        scratch: The run's folder in the store, open as long as the run needs weights.
        experiment: Folder of the experiment's runs.
        output_dir: Folder of all runs.
        score_of: Returns the score of a policy, given the job that evaluates it; called once that job is done.
        is_needed: Returns whether the output of a key must stay whole for now because it is being uploaded.
        number: Number of outputs whose weights this run has removed.
        freed: Bytes of these weights.
        stuck: Why no further weights are removed, or "".
        lacking: Chains whose weights to keep were removed earlier, by a run with another `keep`; the next best
            ones are kept instead.
        before: Ids of the jobs whose weights were already gone when the run began.
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
    _held_keys: set[str] = field(default_factory=set)
    _held_when: int = -1

    def __post_init__(self) -> None:
        trained = [job for job in self.plan.jobs.values() if job.weights]
        for job in trained:
            self._chains.setdefault(job.chain, []).append(job)
        for job_id in self.there:
            self._note_score(self.plan.jobs[job_id])
        for chain in self._chains:
            self._decide(chain)
        self.before = {job.id for job in trained if self.is_gone(job.id)}
        self._needed = {job.key for job in trained}

    def take(self, event: Event) -> None:
        """Handle an event of the run."""
        if self.keep is Keep.all or event.get("job") not in self.plan.jobs:
            return
        job = self.plan.jobs[event["job"]]
        if event["event"] in ("JobFinished", "JobFoundStored"):
            self.there.add(job.id)
            among = {job.id, *self.plan.inputs(job.id)}
            self._note_score(job)
            if job.chain in self._chains and (job.weights or measures(job)):
                self._decide(job.chain)
                among |= {member.id for member in self._chains[job.chain]}
            self._remove(among)
        elif event["event"] == "JobReopened":
            self.there.discard(job.id)
            self._needed |= keys_of_weights(map(self.plan.jobs.__getitem__, {job.id, *self.plan.inputs(job.id)}))
            self._tell()

    def remove_unneeded(self) -> None:
        """Remove all weights that nothing needs now, including what an earlier run has left to be removed."""
        if self.keep is not Keep.all:
            self._held_when, self.stuck = -1, ""  # a disk that was full may have space by now
            self._remove(self.plan.jobs)

    def removable(self) -> int:
        """Return the bytes that `remove_unneeded` would free now if no other run needs them.

        Nothing is written.
        """
        free_ids = free(self.plan.jobs, self.plan.readers, self.there, self._stay)
        try:
            held_keys = self._held_by_runs() if free_ids else set()
        except (StoreError, OSError):
            return 0
        jobs = [self.plan.jobs[job_id] for job_id in free_ids]
        return sum(weights_size(self.store, job.key, job.weights) for job in jobs if job.key not in held_keys)

    def _note_score(self, job: Job) -> None:
        if self.keep is Keep.best and measures(job) and self.store.is_committed(job.key):
            self._scores[place_of(job)] = self.score_of(job)

    def _decide(self, chain: str) -> None:
        """Choose which weights of a chain to keep."""
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
        """Return whether the weights of a job were removed and not made again."""
        return job_id in self.there and self.store.is_removed(self.plan.jobs[job_id].key)

    def _remove(self, among: Collection[str]) -> None:
        free_ids = free(self.plan.jobs, self.plan.readers, self.there, self._stay, among)
        if not free_ids or self.stuck:
            return
        # once no job runs any more, the processes that clean up after workers have removed it
        with suppress(OSError):
            self.scratch.mkdir(exist_ok=True)
        self._needed -= {self.plan.jobs[job_id].key for job_id in free_ids}
        if not self._tell():
            return
        for job in map(self.plan.jobs.__getitem__, free_ids):
            try:
                self._remove_one(job)
            except (StoreError, OSError) as error:
                self.stuck = str(error)
                log.warning("execution.keep=%s: no further weights are removed: %s", self.keep.name, error)
                return

    def _remove_one(self, job: Job) -> None:
        is_done = self.store.is_removed(job.key) and not self.store.leftover_weights(job.key)
        if is_done or self.is_needed(job.key):
            return
        why = f"execution.keep={self.keep.name}"
        freed = remove_weights(
            self.store, job.key, job.weights, why, self.scratch, lambda: job.key not in self._held_by_runs()
        )
        if freed:
            self.number, self.freed = self.number + 1, self.freed + freed
            log.info("%s: its weights were removed, %s bytes (%s)", job.id, f"{freed:,}", why)

    def _held_by_runs(self) -> set[str]:
        """Return the keys that other experiments keep; reread only when a run began or ended meanwhile."""
        when = self.scratch.parent.stat().st_mtime_ns
        if when != self._held_when:
            keys = {job.key for jobs in self._chains.values() for job in jobs}
            self._held_keys = held_by_runs(self.store, [self.output_dir], self.experiment, keys, self.score_of)
            self._held_when = when
        return self._held_keys

    def _tell(self) -> bool:
        try:
            tell_needs(self.store, self.scratch, self._needed)
        except StoreError as error:
            self.stuck = str(error)
            log.warning("execution.keep=%s: no weights are removed: %s", self.keep.name, error)
        return not self.stuck


def keys_of_weights(jobs: Iterable[Job]) -> set[str]:
    """Return the keys of outputs with trained weights: what a run may read, until it has checked the store."""
    return {job.key for job in jobs if job.weights}


# -- kept --------------------------------------------------------------------------------------------------------
# Which weights other experiments keep. Their runs use the same store and may be over, so their plans are read. A
# finished run keeps what its `execution.keep` says; an interrupted run keeps what its unfinished jobs will read.
# For each output of an experiment, the experiment's newest run that has this output decides.


def held_by_runs(
    store: Store,
    output_dirs: Iterable[Path],
    besides: Path,
    keys: Collection[str],
    score_of: Callable[[Job], float | None],
) -> set[str]:
    """Return the keys of outputs whose weights other experiments keep.

    Args:
        store: The store.
        output_dirs: Folders of runs, in addition to those that the store knows of.
        besides: Folder of the calling experiment, whose own runs are ignored.
        keys: Keys to look for.
        score_of: Returns the score of a policy, given the job that evaluates it.

    Raises:
        StoreError: A plan cannot be read, so it is unknown what its run keeps.
    """
    places = dict.fromkeys([*output_dirs, *users(store.root)])
    own, held_keys = besides.resolve(), set[str]()
    unsaid: dict[Path, set[str]] = {}
    for run in reversed(find_runs(places, store.root)):
        if (experiment := run.folder.path.parent) != own:
            # A later run may have other seeds or settings, or fewer jobs; then it says nothing about these
            # outputs.
            open_keys = unsaid.setdefault(experiment, set(keys))
            if not open_keys.isdisjoint(run.keys):
                held_keys |= open_keys & _keys_held_by(store, run, score_of)
                open_keys -= run.keys
    return held_keys


def _keys_held_by(store: Store, run: RunReference, score_of: Callable[[Job], float | None]) -> set[str]:
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
    readers: dict[str, list[str]] = {job_id: [] for job_id in plan.jobs}
    for upstream, downstream in plan.edges:
        readers[upstream].append(downstream)
    return readers
