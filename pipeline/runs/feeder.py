"""Follow a run for one tracker until told of its end, in a process that `Feeders` starts.

A chain of the plan is a run of the tracker, and an output that has something for it is a batch, always the same:

    a job that trains     a row for each step that its curve has, over the steps of all rounds
    a job that measures   a row for the round: results with intervals, time and throughput; and a few samples
"""

import hashlib
import json
import logging
import math
import os
import select
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store import Store
from pipeline.errors import PipelineError
from pipeline.files import Claim, claim, json_text, write_whole
from pipeline.foreign import ForeignDataError, read_json_file
from pipeline.machine.children import Channel
from pipeline.machine.descendants import begin
from pipeline.outputs import formats
from pipeline.outputs.manifest import MANIFEST
from pipeline.plan.graph import Job
from pipeline.plan.recorded import RecordedPlan
from pipeline.runs import trackers
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.record import METRICS_STAGE, grouped, reading
from pipeline.terminal.streams import printable

_NAMES = ("name", "class_path", "_schema_")
"""Keys of a section besides its settings."""
_TEXT = 2000
"""Characters of a prompt or a completion that a table of samples has."""
_LOOK_S = 2.0
"""Seconds between two looks at the journal."""
_PROBLEM = 500
"""Characters of a problem that the engine hears."""
_Begin = Callable[[trackers.TrackedChain, str], Any]
_Plain = Mapping[str, Any]
_Key = Annotated[str, Meta(max_length=100)]

log = logging.getLogger("pipeline")


# -- chains ----------------------------------------------------------------------------------------------------


def tracked_chains(plan: RecordedPlan, experiment: str) -> list[trackers.TrackedChain]:
    """Return the chains of a plan, in its order; references are chains too."""
    by_chain = grouped((job.chain, job) for job in plan.jobs.values())
    return [
        trackers.TrackedChain(
            id=_id(experiment, chain, jobs),
            # The algorithm first, so that trackers group by it; what all seeds share has none.
            name=f"{jobs[0].algo}/{chain.removesuffix(f'/{jobs[0].algo}').removesuffix('/any')}",
            experiment=experiment,
            settings=_settings(plan, jobs),
            jobs=tuple(jobs),
        )
        for chain, jobs in by_chain.items()
    ]


def _id(experiment: str, chain: str, jobs: list[Job]) -> str:
    """Return the id of a chain: a hash of its first round's keys, so that further rounds do not change it."""
    first = min(job.round for job in jobs)
    keys = sorted(job.key for job in jobs if job.round == first)
    return hashlib.sha256(json.dumps([experiment, chain, keys]).encode()).hexdigest()[:16]


def _settings(plan: RecordedPlan, jobs: list[Job]) -> dict[str, str | float | bool]:
    sections: dict[str, object] = {}
    for job in jobs:
        if job.shard in (None, 0):
            sections |= plan.config(job.id)
    chain = {name: getattr(jobs[0], name) for name in ("algo", "dataset", "model", "reference", "seed")}
    return dict(sorted(_flat({"chain": chain, **sections}, "")))


def _flat(value: object, name: str) -> Iterator[tuple[str, str | float | bool]]:
    match value:
        case Mapping():
            for inner, part in value.items():
                if inner not in _NAMES:
                    yield from _flat(part, f"{name}.{inner}" if name else str(inner))
        case float() if not math.isfinite(value):
            yield name, str(value)  # JSON has no number for it
        case bool() | int() | float() | str():
            yield name, value
        case None:
            pass
        case _:
            yield name, json.dumps(value)


# -- batches ---------------------------------------------------------------------------------------------------


class BatchReader:
    """Reads the batches of one chain, each once, as its jobs get done."""

    def __init__(self, chain: trackers.TrackedChain, store: Store, samples: int) -> None:
        """Prepare; a batch has so many samples at most."""
        self._chain, self._store, self._samples = chain, store, samples
        self._unread = jobs_with_data(chain)
        self._steps: Counter[str] = Counter()

    def new(self, is_there: Callable[[Job], bool]) -> list[trackers.Batch]:
        """Return the batches of outputs that are new, in the order of the plan; many are empty."""
        ready = [job for job in self._unread if is_there(job)]
        self._unread = [job for job in self._unread if job not in ready]
        return [self._batch(job, self._store.path(job.key)) for job in ready]

    def _batch(self, job: Job, output: Path) -> trackers.Batch:
        rows: list[tuple[int, Mapping[str, float]]] = []
        samples: list[trackers.Shown] = []
        if job.stage != METRICS_STAGE:
            with reading(job, formats.CURVES):
                steps = formats.read_curve(output)
                rows += [(self._steps[step.training] + step.step, _of_step(step)) for step in steps]
                self._steps.update({step.training: step.steps for step in steps})
        else:
            with reading(job, formats.METRICS):
                values = {name: value for row in formats.read_metrics(output).rows for name, value in _result(row)}
                rows += [(job.round, values | self._time(job.round))] if values else []
            with reading(job, formats.SAMPLES):
                shown = formats.read_shown_samples(output)
                samples += [row for sample in shown for row in _completions(job.round, sample)][: self._samples]
        # When it was committed is the same whoever asks, as a store never changes what it has.
        made = manifest.stat().st_mtime if (manifest := output / MANIFEST).exists() else 0.0
        axis = trackers.ROUND if job.stage == METRICS_STAGE else trackers.STEP
        return trackers.Batch(id=job.key, round=job.round, time=made, axis=axis, rows=rows, samples=samples)

    def _time(self, number: int) -> dict[str, float]:
        """Return the device seconds of a round's stages, and its throughput."""
        sums: dict[str, Counter[str]] = defaultdict(Counter)
        for job in self._chain.jobs:
            if job.round == number and job.stage != METRICS_STAGE:
                sums[job.stage].update(self._store.costs.of(job.key))
        values: dict[str, float] = {}
        for stage, spent in sorted(sums.items()):
            if seconds := spent["run_s"]:
                values[f"time/{stage}/seconds"] = seconds
                amounts = {unit: spent[unit] for unit in ("samples", "tokens") if spent[unit]}
                values |= {f"time/{stage}/{unit}_per_s": amount / seconds for unit, amount in amounts.items()}
        return values


def _of_step(step: formats.TrainingStep) -> dict[str, float]:
    own = {name: getattr(step, name) for name in ("loss", "grad_norm", "learning_rate", "tokens")}
    named = {f"train/{step.training}/{name}": value for name, value in {**own, **step.extra}.items()}
    return {name: value for name, value in named.items() if value is not None}


def jobs_with_data(chain: trackers.TrackedChain) -> list[Job]:
    """Return the jobs of a chain that may have data for a tracker: those that are not split."""
    return [job for job in chain.jobs if job.shard is None]


def _result(row: formats.Metric) -> Iterator[tuple[str, float]]:
    """Yield the number and the ends of its interval, named separately so that trackers show numbers first."""
    name = row.metric
    values = {f"eval/{name}": row.value, f"interval/{name}/low": row.ci_low, f"interval/{name}/high": row.ci_high}
    yield from ((name, value) for name, value in values.items() if value is not None)


def _completions(number: int, sample: Mapping[str, Any]) -> Iterator[trackers.Shown]:
    """Yield a row for each completion of a sample, which may contain anything."""
    completions = sample.get("completions")
    for completion in completions if isinstance(completions, list) else []:
        if isinstance(completion, dict):
            texts = {"prompt": _text(sample.get("prompt")), "completion": _text(completion.get("text"))}
            numbers = {name: completion.get(name) for name in ("reward", "correct")}
            floats = {
                name: float(value) if isinstance(value, int | float) else None for name, value in numbers.items()
            }
            yield {"round": number, **texts, **floats}


def _text(value: object) -> str:
    text = "" if value is None else str(value)
    return printable(text[:_TEXT]) + (" ..." if len(text) > _TEXT else "")


# -- telling ---------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class SentRecord:
    """Record of the batches of a chain that were sent to a tracker.

    Attributes:
        name: Name of its run there.
        batches: Id and number of rows of every batch that was sent, in that order; some may not have arrived. The
            order is kept for good, as trackers count what they receive: a row keeps its number.
        kept: Whether the tracker has all of them for good.
    """

    name: str
    batches: list[tuple[_Key, formats.Count]] = field(default_factory=list)
    kept: bool = False


class Feed:
    """Tells a tracker what is new in a run, at each look; notes a `SentRecord` per chain."""

    def __init__(self, run: LoadedRun, begin: _Begin, note: Path, samples: int) -> None:
        """Prepare.

        Args:
            run: The run.
            begin: Begins a chain in the tracker under a name.
            note: Our file of what was sent to the tracker; a damaged one counts as none.
            samples: Most samples of a round to show.

        Raises:
            PlanError: The run has no plan that can be read.
        """
        self._run, self._begin, self._note, self._samples = run, begin, note, samples
        try:
            self._sent = read_json_file(note, dict[str, SentRecord])
        except (ForeignDataError, OSError):
            self._sent = {}
        self._open = tracked_chains(run.plan, run.name)
        self._readers: dict[str, BatchReader] = {}
        self._begun: dict[str, Any] = {}

    def look(self) -> None:
        """Tell what is new; whatever the tracker raises comes out of this."""
        self._run.refresh()
        views = self._run.view.jobs
        for chain in list(self._open):
            self._look_at(chain)
            if all(views[job.id].settled for job in chain.jobs):
                self._open.remove(chain)
                self._close(chain)

    def close(self) -> None:
        """Close the tracker; nothing more is sent."""
        for chain in self._open:
            self._close(chain)

    def _look_at(self, chain: trackers.TrackedChain) -> None:
        if chain.id not in self._readers:
            record = self._sent.get(chain.id)
            ready = {job.key for job in jobs_with_data(chain) if self._is_there(job)}
            if not ready or (record and record.kept and ready <= dict(record.batches).keys()):
                return
            self._sent.setdefault(chain.id, SentRecord(name=self._free_name(chain)))
            self._readers[chain.id] = BatchReader(chain, self._run.store, self._samples)
        if new := self._readers[chain.id].new(self._is_there):
            self._send(chain, self._sent[chain.id], new)

    def _send(self, chain: trackers.TrackedChain, record: SentRecord, new: Sequence[trackers.Batch]) -> None:
        """Send batches, in the order in which they were sent the first time."""
        log.info("%s: tells what %d jobs left", record.name, len(new))
        sent = dict(record.batches)
        record.batches += [(batch.id, len(batch.rows)) for batch in new if batch.id not in sent]
        record.kept = False
        self._save()
        order = {batch_id: index for index, (batch_id, _) in enumerate(record.batches)}
        for batch in sorted(new, key=lambda batch: order[batch.id]):
            if batch.rows or batch.samples:
                if chain.id not in self._begun:
                    log.info("%s: begins it", record.name)
                    self._begun[chain.id] = self._begin(chain, record.name)
                self._begun[chain.id].add(batch, sum(rows for _, rows in record.batches[: order[batch.id]]))

    def _close(self, chain: trackers.TrackedChain) -> None:
        if self._readers.pop(chain.id, None) is None:
            return
        if (begun := self._begun.pop(chain.id, None)) is not None:
            log.info("%s: closes it", chain.name)
            begun.close()
        self._sent[chain.id].kept = True
        self._save()

    def _free_name(self, chain: trackers.TrackedChain) -> str:
        """Return the name of a chain, with its id if a chain with other settings has that name already."""
        taken = chain.name in {record.name for record in self._sent.values()}
        return f"{chain.name}@{chain.id[:6]}" if taken else chain.name

    def _save(self) -> None:
        """Save what was sent: before sending, so that a restart repeats nothing, and once all is kept."""
        self._note.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._note, json_text({chain: vars(record) for chain, record in self._sent.items()}) + "\n")

    def _is_there(self, job: Job) -> bool:
        return self._run.view.jobs[job.id].status in ("done", "stored")


class TrialFeed:
    """Tells a sweep of W&B what its trial has reached; the trial's run begins with the first values."""

    def __init__(self, run: Path, begin: Callable[[], Any]) -> None:
        """Prepare; `run` is the folder of the pipeline's run, and `begin` returns the trial's run at W&B."""
        self._folder, self._begin = run, begin
        self._trial: Any = None
        self._num_sent = 0

    def look(self) -> None:
        """Send the values of new rounds."""
        for values in trackers.left_values(self._folder)[self._num_sent :]:
            self._trial = self._trial or self._begin()
            self._trial.log(values)
            self._num_sent += 1

    def close(self) -> None:
        """Finish the trial's run, if it has begun."""
        if self._trial is not None:
            self._trial.finish()


# -- the process -----------------------------------------------------------------------------------------------


def main() -> None:
    """Tell a tracker of a run; leaves at once when that is done, whatever threads the tracker has."""
    settings = begin()
    channel = Channel.inherited(settings.pop("fd"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this process says when it ends
    os.nice(10)
    handler = logging.StreamHandler()  # standard error is the log, with all that the tracker prints
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    problem = None
    try:
        _follow(channel, **settings)
    except BaseException as error:
        log.exception("nothing more is told")
        problem = f"{type(error).__name__}: {error}"[:_PROBLEM]
    with suppress(OSError):  # nobody listens any more
        channel.send(json_text({"problem": problem}).encode())
    os._exit(problem is not None)


def _follow(channel: Channel, run: str, tracker: str, place: _Plain, samples: int, trial: _Plain | None) -> None:
    log.info("tells %s of run %s", tracker, run)
    recorded = LoadedRun(RunFolder(Path(run)))
    destination = trackers.TrackerPlace(**{**place, "folder": Path(place["folder"])})
    begin_in, note = trackers.TRACKERS[tracker], destination.notes_dir / f"{recorded.name}.json"
    feeds: list[Feed | TrialFeed]
    feeds = [Feed(recorded, lambda chain, name: begin_in(destination, chain, name), note, samples)]
    if trial:
        sweep_trial = trackers.SweepTrial(**trial)
        feeds.append(TrialFeed(recorded.folder.path, lambda: sweep_trial.begin(destination, recorded.name)))
    with _claimed(channel, note.with_suffix(".lock")):
        is_over = False
        while not is_over:
            is_over = _is_over(channel)  # asked first, so that nothing is missed that was written before
            for feed in feeds:
                feed.look()
            if not is_over:
                _wait(channel)
        for feed in reversed(feeds):
            feed.close()


def _claimed(channel: Channel, lock: Path) -> Claim:
    """Wait until no other process tells the tracker the same chains: two would tell them twice."""
    while (claimed := claim(lock)) is None:
        log.info("waits: another run of the experiment tells it right now")
        if _is_over(channel):
            raise PipelineError("another run of the experiment tells it right now")
        _wait(channel)
    return claimed


def _is_over(channel: Channel) -> bool:
    return any(channel.receive()) or channel.closed


def _wait(channel: Channel) -> None:
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.poll(_LOOK_S * 1000)


if __name__ == "__main__":
    main()
