"""Carries out a plan on paper, event by event: the rules and the state are real, the rest is what a test says."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.schema import BudgetConfig, ExecutionConfig, RetryConfig
from pipeline.engine.devices.select import Layout, plain_layout
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.scheduler.policy import Reserve, next_actions
from pipeline.engine.scheduler.reactions import (
    give_up_too_wide,
    kill_hanging,
    orders_ahead,
    react,
    release_due,
    reserve,
    start,
)
from pipeline.engine.scheduler.ready import Needs
from pipeline.engine.scheduler.run import (
    Effect,
    GiveBack,
    OnDisk,
    ProcessOrder,
    Record,
    ReleaseClaim,
    Run,
    Say,
    Send,
    SetAside,
    Tell,
)
from pipeline.engine.scheduler.state import RunState
from pipeline.engine.workers.messages import (
    FailureKind,
    FromWorker,
    JobFinished,
    JobRaised,
    JobStarted,
    WorkerExited,
    WorkerReady,
)
from pipeline.plan.graph import Job
from pipeline.runs.run_view import RunView
from tests.doubles.engine import plan_of

NOTHING = OnDisk()


class OnPaper:
    """A run whose workers do what a test says.

    Attributes:
        run: The run.
        effects: What was decided since it was last asked for.
        view: What whoever watches was told.
    """

    def __init__(
        self,
        *jobs: Job,
        workers: int = 2,
        layout: Layout | None = None,
        stored: Iterable[str] = (),
        peaks: Mapping[str, int] | None = None,
        retry: RetryConfig | None = None,
        visible: str = "",
        nodes: Sequence[str] = (),
        budget: BudgetConfig | None = None,
        **settings: Any,
    ) -> None:
        layout = layout or plain_layout(workers)
        execution = ExecutionConfig(**{"retry": retry or RetryConfig(), "models_in_memory": 1, **settings})
        needs = Needs(layout, peaks)
        state = RunState(plan_of(*jobs), set(stored), layout, execution, needs=needs, rows_first=bool(budget))
        root = Path("/run")
        self.run = Run(
            state=state,
            settings=execution,
            folder=RunFolder(root),
            store=str(root / "store"),
            scratch=str(root / "scratch"),
            verified=str(root / "verified"),
            budget=budget or BudgetConfig(),
        )
        self.effects: list[Effect] = []
        self.view = RunView(state.plan.jobs.values(), set(stored))
        self.visible = visible
        self.nodes = nodes
        for index in range(layout.workers):
            self.run.process_starts(index)
        self.ready(*range(layout.workers))
        self.decided()

    # -- events ------------------------------------------------------------------------------------------------

    def hear(self, index: int, message: FromWorker, on_disk: OnDisk = NOTHING) -> list[str]:
        """Let a worker, or the pool, say something."""
        react(self.run, index, message, on_disk)
        return self.decided()

    def ready(self, *workers: int, unfit: str = "") -> list[str]:
        """Let processes come up."""
        for index in workers:
            visible = f"{self.visible}{index}" if self.visible else ""
            said = {"visible": visible, "unfit": unfit, "node": self.nodes[index] if self.nodes else ""}
            message = WorkerReady(pid=100 + index, device=f"cpu {index}", **said)
            react(self.run, index, message, OnDisk())
        return self.decided()

    def ended(self, *workers: int, exit_code: int = -9) -> list[str]:
        """Let processes end."""
        for index in workers:
            react(self.run, index, WorkerExited(exit_code=exit_code), OnDisk())
        return self.decided()

    def start(self, on_disk: OnDisk = NOTHING) -> list[str]:
        """Start what the policy says."""
        self.run.check_budget()
        if self.run.spent:
            return self.decided()
        give_up_too_wide(self.run)
        for action in next_actions(self.run.state, self.run.now_s) or orders_ahead(self.run):
            if isinstance(action, Reserve):
                reserve(self.run, action)
            else:
                start(self.run, action, on_disk)
        return self.decided()

    def begin(self, job_id: str) -> list[str]:
        """Let the code of a job begin."""
        return self.hear(self.worker(job_id), JobStarted(job_id=job_id, attempt=self.attempt(job_id)))

    def finish(self, job_id: str, **fields: Any) -> list[str]:
        """Let a job end well, and be stored."""
        worker = self.worker(job_id)
        if not self.run.state.workers[self.worker(job_id)].begun:
            self.begin(job_id)
        said = {"load_s": 0.0, "run_s": 1.0, "samples": 0, "tokens": 0, **fields}
        message = JobFinished(job_id=job_id, attempt=self.attempt(job_id), **said)
        return self.hear(worker, message, OnDisk(stored=True))

    def fail(
        self,
        job_id: str,
        kind: FailureKind,
        on_disk: OnDisk = NOTHING,
        **fields: Any,
    ) -> list[str]:
        """Let the code of a job raise, or its worker die."""
        if kind is FailureKind.lost:
            self.begin(job_id)
            return self.ended(self.worker(job_id))
        said = {"error_type": "E", "message": "m", "traceback": "t", "run_s": 1.0, **fields}
        message = JobRaised(job_id=job_id, attempt=self.attempt(job_id), kind=kind, **said)
        return self.hear(self.worker(job_id), message, on_disk)

    def wait(self, seconds: float) -> list[str]:
        """Let time pass."""
        self.run.now_s += seconds
        kill_hanging(self.run)
        release_due(self.run)
        return self.decided()

    # -- what came of them -------------------------------------------------------------------------------------

    def decided(self) -> list[str]:
        """What is to be done, in words; lines of the log, claims and what is told are in `effects` alone."""
        self.effects = self.run.decided()
        for effect in self.effects:
            if isinstance(effect, Record | Tell):
                self.view.take({"event": effect.event, "time": self.run.now_s, **effect.fields})
        return [words for effect in self.effects if (words := _in_words(effect))]

    def said(self) -> str:
        """The lines of the log."""
        return "\n".join(effect.text for effect in self.effects if isinstance(effect, Say))

    def record(self, event: str) -> Mapping[str, Any]:
        """The fields of the one such event in the journal."""
        (found,) = [one.fields for one in self.effects if isinstance(one, Record) and one.event == event]
        return found

    def worker(self, job_id: str) -> int:
        """Who was given a job."""
        return self.run.state.jobs[job_id].workers[0]

    def attempt(self, job_id: str) -> int:
        """Its number."""
        return self.run.state.jobs[job_id].attempts

    def jobs(self) -> dict[str, str]:
        """Where every job stands."""
        return {name: state.status.value for name, state in self.run.state.jobs.items()}

    def phases(self) -> list[str]:
        """Where every worker stands."""
        return [worker.phase.value for worker in self.run.state.workers]


def _in_words(effect: Effect) -> str:
    match effect:
        case Record():
            return " ".join([effect.event, *(str(effect.fields[key]) for key in ("job",) if key in effect.fields)])
        case Send():
            return f"send {effect.order.job_id} to {effect.worker}"
        case ProcessOrder():
            return f"{effect.action} {effect.worker}"
        case SetAside():
            return f"set aside {effect.key[:4]}"
        case GiveBack():
            return f"give back {effect.device}"
        case Say() | Tell() | ReleaseClaim():
            return ""
