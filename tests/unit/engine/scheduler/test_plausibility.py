"""Nothing that a worker says costs more than its own attempt."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.schema import ExecutionConfig, RetryConfig
from pipeline.engine.journal import Journal, read_journal
from pipeline.engine.scheduler.loop import run_plan
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.reactions import objection
from pipeline.engine.scheduler.state import THERE, JobStatus, RunState
from pipeline.engine.store.store import Store
from pipeline.engine.workers import pool as pool_module
from pipeline.engine.workers.failure import FailureKind
from pipeline.engine.workers.messages import (
    AttemptStopped,
    Heartbeat,
    JobFinished,
    JobProgress,
    JobRaised,
    JobStarted,
    LeftChanged,
    Report,
    RunJob,
    WorkerExited,
    WorkerReady,
    WorkerUnreadable,
    decode_report,
    encode,
)
from pipeline.engine.workers.pool import Pool
from pipeline.engine.workers.protocol import Deliver
from pipeline.errors import WorkerError
from pipeline.plan.graph import Job, Plan

READY = WorkerReady(pid=1, device="cpu")


def plan() -> Plan:
    """a -> b, a -> c, wide alone."""
    jobs = [
        Job(id="a", key="ka" * 20, entry="m:f", payload={}),
        Job(id="b", key="kb" * 20, entry="m:f", payload={}, inputs={"x": ("ka" * 20,)}),
        Job(id="c", key="kc" * 20, entry="m:f", payload={}, inputs={"x": ("ka" * 20,)}),
        Job(id="wide", key="kd" * 20, entry="m:f", payload={}, devices=2),
    ]
    return Plan(jobs, [("a", "b"), ("a", "c")])


def raised(job_id: str, attempt: int = 1, kind: FailureKind = FailureKind.lost, **fields: object) -> JobRaised:
    said: dict[str, object] = {"error_type": "E", "message": "m", "traceback": "t", "run_s": 1.0, **fields}
    return JobRaised(job_id=job_id, attempt=attempt, kind=kind, **said)  # type: ignore[arg-type]


def finished(job_id: str, attempt: int = 1) -> JobFinished:
    return JobFinished(job_id=job_id, attempt=attempt, load_s=0, run_s=0, samples=1, tokens=1)


def progress(job_id: str, attempt: int = 1) -> JobProgress:
    return JobProgress(job_id=job_id, attempt=attempt, done=9, total=3, tokens=0)


# -- one message -----------------------------------------------------------------------------------------------

a = JobStarted(job_id="a", attempt=1)


@pytest.mark.parametrize(
    ("message", "begun", "said"),
    [
        (READY, False, "it said twice that it is ready"),
        (finished("nope"), True, "'nope', which is no job of this run"),
        (finished("\x1b\udcff"), True, r"'\x1b\udcff', which is no job"),
        (finished(""), True, "no job"),
        (finished("a"), False, "which had not started"),
        (progress("a"), False, "which had not started"),
        (AttemptStopped(job_id="a", attempt=1), False, "which had not started"),
        (a, True, "said twice that a has started"),
        (LeftChanged(job_id="nope", what="all"), False, "'nope', which is no job"),
        (LeftChanged(job_id="b", what="all"), True, "while it has a"),
        (LeftChanged(job_id="b", what="all"), False, ""),
        (raised("a", rank=1), True, "of rank 1, and a has 1"),
        (raised("a", kind=FailureKind.damaged_input, damaged_key="x"), True, "which a does not read"),
        (raised("a", kind=FailureKind.damaged_input), True, "which a does not read"),
        (raised("a", kind=FailureKind.transient, damaged_key="kd" * 20), True, "which a does not read"),
        (Heartbeat(rss_bytes=0), False, ""),
        (a, False, ""),
        (progress("a"), True, ""),
        (finished("a"), True, ""),
        (raised("a"), False, ""),
        (raised("a", rank=0), True, ""),
        (finished("a", attempt=7), False, ""),  # is about another attempt, and so too late to count
        (finished("b"), True, ""),
    ],
    ids=str,
)
def test_what_cannot_be_true_is_told(message: Report, begun: bool, said: str) -> None:
    state = RunState(plan(), (), 2)
    state.worker_ready(0, "cpu")
    state.start("a", 0)
    state.workers[0].begun = begun
    objected = objection(state, (), 0, message)
    assert (said in objected) if said else not objected


def test_only_the_worker_that_was_sent_a_job_speaks_of_it() -> None:
    state = RunState(plan(), (), 2)
    for index in range(2):
        state.worker_ready(index, "cpu")
    state.start("wide", 0, [1])
    started = JobStarted(job_id="wide", attempt=1)
    assert "was not given" in objection(state, {"wide": 1}, 0, started)
    assert "was not given" in objection(state, (), 1, started)
    assert not objection(state, (), 0, started)


def test_only_a_job_that_is_over_can_have_left_something_changed() -> None:
    state = RunState(plan(), (), 2)
    for index in range(2):
        state.worker_ready(index, "cpu")
    changed = LeftChanged(job_id="a", what="all")
    assert "has had no job" in objection(state, (), 0, changed)
    state.start("a", 0)
    state.finished(0)
    assert not objection(state, (), 0, changed)
    state.start("wide", 0, [1])
    assert "while it has wide" in objection(state, (), 0, changed)
    assert not objection(state, {"wide": None}, 0, changed)
    assert "has had no job" in objection(state, (), 1, changed)


# -- whole runs ------------------------------------------------------------------------------------------------


class NoReaper:
    """There are no processes to reap."""

    def watch_path(self, path: Path) -> None: ...

    def close(self) -> None: ...


class Liar:
    """Does its jobs at once; before it says so it sends what else there is to send."""

    def __init__(self, index: int, lies: list[Sequence[bytes]]) -> None:
        self.index, self.lies = index, lies
        self.ready = self.ended = False
        self.job: RunJob | None = None

    def start(self) -> None: ...

    def send(self, *jobs: RunJob) -> None:
        (self.job,) = jobs

    def take_back(self) -> None: ...

    def sources(self) -> Sequence[int]:
        return []

    def pending(self) -> bool:
        return not self.ready or self.ended or self.job is not None or bool(self.lies)

    def receive(self, deliver: Deliver) -> None:
        for data in self.lies.pop() if self.lies else ():
            try:
                deliver(decode_report(data))
            except WorkerError as error:
                self.kill()
                deliver(WorkerUnreadable(reason=str(error)))
                break
        if self.ended:
            deliver(WorkerExited(exit_code=-9))
        elif not self.ready:
            self.ready = True
            deliver(READY)
        elif (job := self.job) is not None:
            self.job = None
            deliver(JobStarted(job_id=job.job_id, attempt=job.attempt))
            deliver(self.last_word(job))

    def last_word(self, job: RunJob) -> Report:
        store = Store(Path(job.store))
        store.commit(job.key, store.begin(Path(job.scratch), job.key, job.attempt), {})
        return finished(job.job_id, job.attempt)

    def show_stacks(self) -> None: ...

    def interrupt(self) -> None: ...

    def kill(self) -> None:
        self.ended = True

    ask_to_stop = terminate = kill

    def last_words(self) -> str:
        return ""


class Stopper(Liar):
    """Says of one job, whenever it has it, that somebody asked for an end."""

    def last_word(self, job: RunJob) -> Report:
        return AttemptStopped(job_id="b", attempt=job.attempt) if job.job_id == "b" else super().last_word(job)


class Ender(Liar):
    """Ends as it is asked to by others, each time right before it would begin its second job."""

    jobs = 0

    def send(self, *jobs: RunJob) -> None:
        super().send(*jobs)
        self.jobs += 1

    def receive(self, deliver: Deliver) -> None:
        if self.ready and self.jobs == 2:
            deliver(WorkerExited(exit_code=0))
        else:
            super().receive(deliver)


def run(lies: list[Sequence[bytes]], folder: Path, kind: type[Liar] = Liar, worker_lost: int = 10**6) -> Outcome:
    """Run the plan with two workers that share what they have to say besides."""
    patient = 10**6
    retry = RetryConfig(
        worker_lost=worker_lost, hang=patient, out_of_memory=patient, device=patient, transient=patient,
        wait_s=0.0, device_failures=patient,
    )  # fmt: skip
    journal = Journal(folder / "journal.jsonl")
    try:
        return run_plan(
            plan(),
            stored=(),
            store=Store(folder / "store"),
            pool=Pool(lambda index, _reaper: kind(index, lies), 2),
            journal=journal,
            run_dir=folder,
            settings=ExecutionConfig(retry=retry),
        )
    finally:
        journal.close()


job_ids = st.sampled_from(["a", "b", "c", "wide"]) | st.sampled_from(["", "nope", "\udcff"])
texts = st.text(st.characters(exclude_categories=()))  # half characters too
of_job = {"job_id": job_ids, "attempt": st.integers(1, 3)}
counts = st.integers(0, 9) | st.just(2**53)
messages = st.one_of(
    st.just(READY),
    st.builds(JobStarted, **of_job),
    st.builds(AttemptStopped, **of_job),
    st.builds(Heartbeat, rss_bytes=counts),
    st.builds(LeftChanged, job_id=job_ids, what=st.sampled_from(["", "all"])),
    st.builds(
        JobProgress, **of_job, done=counts, total=counts, tokens=counts,
        numbers=st.dictionaries(st.sampled_from(["loss", "kl"]), st.none() | st.floats(-1e100, 1e100)),
    ),
    st.builds(
        JobFinished, **of_job, load_s=st.just(1e12), run_s=st.just(0.0), samples=counts, tokens=counts,
        peak_mb=st.none() | counts, held_mb=counts,
    ),
    st.builds(
        raised, **of_job, rank=st.none() | st.integers(0, 3), held_mb=counts, message=texts,
        # A bug, or a disk that is full, may be said of a job, and is believed.
        kind=st.sampled_from([kind for kind in FailureKind if kind.value not in ("bug", "storage")]),
        damaged_key=st.sampled_from(["", "ka" * 20, "kd" * 20, "../.."]),
    ),
).map(encode)  # fmt: skip
plain = st.none() | st.integers() | st.text() | st.lists(st.none(), max_size=2)
garbage = (
    st.binary()
    | plain.map(lambda value: json.dumps(value).encode())
    | st.tuples(messages, plain).map(lambda pair: json.dumps([json.loads(pair[0])[0], pair[1]]).encode())
    | st.sampled_from([b'["Shutdown",{}]', b"[" * 10_000, b'["WorkerExited",{"exit_code":0}]'])
)


@pytest.mark.properties
@given(st.lists(st.lists(messages | messages | garbage, min_size=1, max_size=4), max_size=8))
def test_when_the_nonsense_is_over_every_job_is_done(lies: list[Sequence[bytes]]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(pool_module, "Reaper", NoReaper)
        patched.setattr(pool_module, "MAX_FAILED_STARTS", 100)  # or a place would be given up, and rightly
        patched.setattr(os, "fsync", lambda _descriptor: None)
        patched.setattr(logging.getLogger("pipeline"), "level", logging.CRITICAL)
        outcome = run(lies, Path(folder))
        # A worker that lies about how an attempt ended has stored its output, which the next attempt finds.
        assert set(outcome.jobs.values()) <= set(THERE), outcome.reasons
        assert [event["event"] for event in read_journal(Path(folder) / "journal.jsonl")][-1] == "RunFinished"


def test_what_was_wrong_is_in_the_log_on_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.MonkeyPatch.context() as patched, caplog.at_level(logging.WARNING, "pipeline"):
        patched.setattr(pool_module, "Reaper", NoReaper)
        run([[b'["JobProgress",{"tokens":null,"text":"\x1b[2J\n' + b"x" * 5000]], tmp_path)
    (said,) = [record.getMessage() for record in caplog.records if "killing it" in record.getMessage()]
    assert said.startswith("worker 0: it sent what is no message (this is no JSON")
    assert r'["JobProgress",{"tokens":null,"text":"\x1b[2J\nxxx' in said
    assert said.isprintable()
    assert len(said) < 500


def test_a_job_cannot_stop_for_ever_without_being_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "Reaper", NoReaper)
    outcome = run([], tmp_path, Stopper, worker_lost=2)
    assert {name: status.value for name, status in outcome.jobs.items()} == {
        "a": "done", "b": "failed", "c": "done", "wide": "done"
    }  # fmt: skip
    assert "asked to stop" in outcome.reason("b")
    assert len([attempt for attempt in outcome.attempts if attempt.job_id == "b"]) == 5


def test_an_order_that_its_worker_did_not_take_goes_to_another_at_no_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "Reaper", NoReaper)
    outcome = run([], tmp_path, Ender, worker_lost=1)
    assert set(outcome.jobs.values()) == {JobStatus.done}
    assert "stopped" in {attempt.outcome for attempt in outcome.attempts}


def test_a_job_is_done_when_its_output_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "Reaper", NoReaper)
    monkeypatch.setattr(Store, "commit", lambda *_: None)
    outcome = run([], tmp_path, worker_lost=2)
    assert {name: status.value for name, status in outcome.jobs.items()} == {
        "a": "failed", "b": "blocked", "c": "blocked", "wide": "failed"
    }  # fmt: skip
    assert "it said that a is done, and nothing is stored" in outcome.reason("a")
