"""Everything that a run left, read from its folder when it is asked for: what reports and notebooks rest on.

The run may be over, still going on, or killed in the middle: then its results are those of what is stored so far.
Nothing here writes, imports torch, or trusts a file. What is missing is empty; what is there and cannot be read
raises a `PipelineError` that says so, or costs its own part where many files make the whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.config.schema import EvaluationConfig
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store import Store
from pipeline.errors import ConfigError, PlanError
from pipeline.foreign import ForeignDataError, converted
from pipeline.outputs.curves import CURVES, TrainingStep, read_curve
from pipeline.outputs.formats import METRICS, SAMPLES, Sample, count_lines, problem_in_words, read_lines
from pipeline.plan.job import Job
from pipeline.plan.recorded import RecordedPlan
from pipeline.runs.cost import FILE as COMPUTE
from pipeline.runs.cost import Compute, read_compute
from pipeline.runs.index import RecordedRun
from pipeline.runs.job_view import AttemptView, JobView
from pipeline.runs.makers import Maker, collect_makers
from pipeline.runs.origin import Origin, read_origin
from pipeline.runs.record import Results, place_of, read_results
from pipeline.runs.run_view import RunView, failures
from pipeline.runs.summary import compute_of, results_of

log = logging.getLogger("pipeline")

_BOUNDED = ("BestOfN",)
"""Of runs of earlier versions, which did not write down whose divergence is an upper bound."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """A time during which a worker, and so its device, was taken by an attempt at a job.

    Attributes:
        job: Its id.
        chain: Its chain.
        round: Of the chain.
        stage: Of the round.
        attempt: From 1.
        worker: Index.
        device: In words.
        start: Seconds since 1970.
        end: Likewise; None while it goes on.
        outcome: ``done``, ``failed``, ``stopped``, ``running``, or ``lost`` with a run that was killed.
        is_member: Whether the worker lends its device to a job on several, which another worker leads.
    """

    job: str
    chain: str
    round: int
    stage: str
    attempt: int
    worker: int
    device: str
    start: float
    end: float | None
    outcome: str
    is_member: bool = False


class LoadedRun:
    """A run as its folder tells it. Each part is read when it is first asked for.

    Attributes:
        folder: Where it is.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"LoadedRun({self.folder.path})"

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self.folder.experiment

    @property
    def stamp(self) -> str:
        """The timestamp that names the run."""
        return self.folder.stamp

    def refresh(self) -> None:
        """Look again at a run that goes on: its journal from where it was read to, and results anew."""
        if "recorded" in self.__dict__:
            self.recorded.refresh()
        for name in ("results", "compute"):
            self.__dict__.pop(name, None)

    # -- what was asked for ------------------------------------------------------------------------------------

    @cached_property
    def recorded(self) -> RecordedRun:
        """Its plan and journal, which also say whether its engine lives; without a plan that can be read the rest.

        Raises:
            StoreError: The journal cannot be read.
        """
        return RecordedRun(self.folder, glance=not self.jobs)

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration as plain data; empty where it cannot be read."""
        return dict(self.recorded.config)

    @cached_property
    def origin(self) -> Origin:
        """What was typed, where and with which versions; empty in runs of earlier versions."""
        return read_origin(self.folder.path)

    @property
    def settings_given(self) -> list[str]:
        """Settings of the command line, ``KEY=VALUE``."""
        return self.origin.settings

    @property
    def command(self) -> str:
        """The command that repeats it, as it is typed in a shell; "" where that is not known."""
        return self.origin.command_line

    @property
    def versions(self) -> Mapping[str, str]:
        """Package -> version, as the run began."""
        return self.origin.versions

    @cached_property
    def plan(self) -> RecordedPlan:
        """Its jobs as they were planned.

        Raises:
            PlanError: There is no plan, or it cannot be read.
        """
        return RecordedRun(self.folder, glance=True).plan

    @cached_property
    def jobs(self) -> Mapping[str, Job]:
        """Id -> job, in the order of the plan; none where there is no plan that can be read."""
        try:
            return self.plan.jobs
        except PlanError as error:
            log.info("%s", error)
            return {}

    @property
    def store(self) -> Store:
        """Where its outputs are."""
        return self.recorded.store

    # -- what happened -----------------------------------------------------------------------------------------

    @property
    def view(self) -> RunView:
        """Jobs, attempts and workers as the journal tells of them, up to the last `refresh`."""
        return self.recorded.view

    @property
    def state(self) -> str:
        """The run in one word, see `RunView.state`."""
        return self.recorded.state()

    @property
    def failures(self) -> list[tuple[JobView, AttemptView | None]]:
        """Jobs that failed for good, with their last attempt."""
        return list(failures(self.view))

    @property
    def failed_attempts(self) -> list[tuple[JobView, AttemptView]]:
        """All attempts that failed, also those after which the job was tried again; in the order of jobs."""
        return [(job, attempt) for job, attempt in self._attempts() if attempt.outcome == "failed"]

    @property
    def lost_attempts(self) -> list[tuple[JobView, AttemptView]]:
        """Attempts that were under way when the run was killed; they end with its last event."""
        return [(job, attempt) for job, attempt in self._attempts() if attempt.outcome == "lost"]

    def timeline(self) -> list[Span]:
        """Who used which device when, by begin; a job on several devices has a span for each."""
        found = [span for job, attempt in self._attempts() for span in self._spans(job, attempt)]
        return sorted(found, key=lambda span: (span.start, span.worker))

    def _attempts(self) -> Iterator[tuple[JobView, AttemptView]]:
        """All attempts; of a run whose engine is gone without a word none goes on."""
        last = self.view.last if self.state == "killed" else None
        for job in self.view.jobs.values():
            for attempt in job.attempts:
                yield job, attempt if last is None or attempt.outcome != "running" else _lost(attempt, last)

    def _spans(self, job: JobView, attempt: AttemptView) -> Iterator[Span]:
        if attempt.started is None:
            return
        planned = self.jobs.get(job.id)
        for worker in (attempt.worker, *attempt.members):
            is_member, known = worker != attempt.worker, self.view.workers.get(worker)
            yield Span(
                job=job.id,
                chain=job.chain,
                round=job.round,
                stage=planned.stage if planned else "",
                attempt=attempt.number,
                worker=worker,
                device=(known.device if known else "") if is_member else attempt.device,
                start=attempt.started,
                end=attempt.ended,
                outcome=attempt.outcome,
                is_member=is_member,
            )

    # -- what came out -----------------------------------------------------------------------------------------

    @cached_property
    def results(self) -> Results:
        """What ``results.json`` says; where the run has not come to write it, what is stored so far says.

        Raises:
            StoreError: There is a ``results.json`` that holds something else.
        """
        if self.folder.results_json.exists():
            return read_results(self.folder.results_json)
        bounded = self.origin.bounded
        return results_of(
            self.store,
            list(self.jobs.values()),
            _last_round(self.config),
            self._judging,
            bounded=_BOUNDED if bounded is None else bounded,
            tell=_told,
        )

    @cached_property
    def compute(self) -> Compute:
        """What ``compute.json`` says, or what is stored so far."""
        if (self.folder.path / COMPUTE).exists():
            return read_compute(self.folder.path)
        return compute_of(self.store, list(self.jobs.values()), self.results, self._judging.budgets)

    def makers(self) -> list[Maker]:
        """Versions and arithmetic that its outputs were made with, whichever run made them."""
        return collect_makers(self.store, self.jobs.values())

    def samples(
        self, wanted: Callable[[Job], bool] | None = None, most_each: int | None = None
    ) -> Iterator[tuple[Job, Sample]]:
        """Every evaluated completion that is stored, by dataset, model, reference, algorithm, seed and round.

        Args:
            wanted: Says of a job that evaluates whether its completions are; all if left out.
            most_each: Completions of each job after which no further prompt is begun; all if left out.
        """
        for job in self._in_order():
            if wanted is not None and not wanted(job):
                continue
            output = self.store.path(job.key)
            if (output / METRICS).exists():
                continue  # what it has are those picked for people, of the same completions
            with _passing_over(job, SAMPLES):
                for sample in _first_prompts(read_lines(output / SAMPLES, Sample), most_each):
                    yield job, sample

    def count_samples(self, jobs: Iterable[Job]) -> int:
        """How many completions of some jobs are stored."""
        found = 0
        for job in jobs:
            with _passing_over(job, SAMPLES):
                found += count_lines(self.store.path(job.key) / SAMPLES)
        return found

    def curves(self) -> list[tuple[Job, list[TrainingStep]]]:
        """The steps of every training that is stored, by job in the order of `samples`."""
        found: list[tuple[Job, list[TrainingStep]]] = []
        for job in self._in_order():
            with _passing_over(job, CURVES):
                if steps := read_curve(self.store.path(job.key)):
                    found.append((job, steps))
        return found

    def _in_order(self) -> list[Job]:
        return sorted(self.jobs.values(), key=lambda job: (place_of(job), job.id))

    @cached_property
    def _judging(self) -> EvaluationConfig:
        try:
            return converted(self.config.get("evaluation") or {}, EvaluationConfig)
        except ForeignDataError as error:
            log.warning("%s is passed over: %s", self.folder.config, error)
            return EvaluationConfig()


def load(folder: RunFolder | Path) -> LoadedRun:
    """Load a run.

    Args:
        folder: Its folder, or that of an experiment, whose newest run it is then.

    Raises:
        ConfigError: There is no run.
    """
    path = folder.path if isinstance(folder, RunFolder) else folder
    if (path / "latest").is_dir():
        path = path / "latest"
    found = RunFolder(path.resolve())
    if not any(part.exists() for part in (found.plan, found.journal, found.config, found.results_json)):
        raise ConfigError(f"{path} is no folder of a run: it has none of the files that runs leave.")
    return LoadedRun(found)


def _last_round(config: Mapping[str, Any]) -> int:
    number = config.get("rounds_of_training")
    return number if isinstance(number, int) and not isinstance(number, bool) else 0


def _lost(attempt: AttemptView, end: float) -> AttemptView:
    reason = "it was under way when the run was killed"
    return replace(attempt, outcome="lost", kind="lost", reason=reason, ended=end)


def _first_prompts(found: Iterable[Sample], most: int | None) -> Iterator[Sample]:
    """Those to the first prompts, to each of them all: at least so many where there are."""
    row = None
    for number, sample in enumerate(found):
        if most is not None and number >= most and sample.row != row:
            return
        row = sample.row
        yield sample


def _told(job: Job, said: str) -> None:
    log.warning("%s: %s", job.id, said)


@contextmanager
def _passing_over(job: Job, name: str) -> Iterator[None]:
    """Let a file of one output that cannot be read cost that file alone; most jobs have none of its name."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        return
    except (ForeignDataError, OSError) as error:
        _told(job, f"its stored {name} cannot be read: {problem_in_words(error)}")
