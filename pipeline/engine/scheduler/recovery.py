"""What becomes of an attempt that failed, and of the device that it failed on. Pure rules."""

from __future__ import annotations

import logging
from dataclasses import replace

from pipeline.engine.scheduler.effects import OnDisk, ProcessOrder, SetAside
from pipeline.engine.scheduler.retry import Failure, judge
from pipeline.engine.scheduler.run import Run
from pipeline.engine.scheduler.state import RunState
from pipeline.engine.workers.failure import FailureKind
from pipeline.outputs.manifest import REMOVED

# -- jobs ------------------------------------------------------------------------------------------------------


def failed(
    run: Run, job_id: str, index: int, failure: Failure, *, suspect: int | None, on_disk: OnDisk | None = None
) -> None:
    """Judge a failed attempt.

    Args:
        run: The run.
        job_id: The job, which no worker has any more.
        index: The worker that was given it.
        failure: What happened.
        suspect: The worker whose device may be at fault, if one can be named.
        on_disk: What the store says of the input that was found damaged, if one was.
    """
    state, job = run.state, run.state.jobs[job_id]
    if failure.kind is FailureKind.storage:
        # No other job would fare better, and what they compute would be lost. So none is blamed, and the run
        # ends as if it had been interrupted.
        _record_failure(run, job_id, index, failure, retry=True)
        run.halted = f"{job_id}: {failure.message}"
        state.retry(job_id)
        return
    job.failures[failure.kind] += 1
    decision = judge(failure, job.failures, run.settings.retry)
    _record_failure(run, job_id, index, failure, retry=decision.retry, wait_s=decision.wait_s)
    if suspect is not None:
        state.blame.failed(job_id, state.layout.device_of(suspect), failure.kind)
        if node := state.workers[suspect].node:
            state.node_blame.failed(job_id, node, failure.kind)
    if not decision.retry:
        give_up(run, job_id, failure.kind, decision.reason)
    else:
        wait = f" in {decision.wait_s:g} s" if decision.wait_s else ""
        run.say(f"{job_id}: attempt {job.attempts} failed, trying again{wait}: {failure.message}")
        if failure.damaged_key and on_disk is not None:
            _make_again(run, failure.damaged_key, on_disk)
        if decision.wait_s:
            run.delayed[job_id] = run.now_s + decision.wait_s
            state.wait(job_id)
        else:
            state.retry(job_id)
    _review_devices(run)


def try_exclusively(run: Run, job_id: str, index: int, failure: Failure) -> None:
    """Memory ran out on a shared device: no fault of the job, so this counts as no failure of it."""
    run.say(f"{job_id}: trying again with a device to itself: {failure.message}")
    reason = f"{failure.message} (it shared the device; the next attempt does not)"
    _record_failure(run, job_id, index, replace(failure, message=reason), retry=True)
    run.state.retry(job_id)


def try_elsewhere(run: Run, job_id: str, index: int, failure: Failure) -> None:
    """A machine is gone, which says nothing about the job that ran there: so this counts as no failure of it."""
    run.say(f"{job_id}: trying again elsewhere: {failure.message}")
    _record_failure(run, job_id, index, failure, retry=True)
    run.state.retry(job_id)


def give_up(run: Run, job_id: str, kind: FailureKind, reason: str) -> None:
    """Have a job fail for good, and block what depends on it."""
    attempts = run.state.jobs[job_id].attempts
    where = f" (log: {run.log_path(job_id, attempts)})" if attempts else ""
    run.say(f"{job_id} failed: {reason}{where}", logging.ERROR)
    run.record("JobFailed", job=job_id, attempts=attempts, kind=kind.value, reason=reason)
    for blocked in run.state.fail(job_id, reason):
        run.say(f"{blocked} is blocked by {job_id}")
        run.record("JobBlocked", job=blocked, root_cause=job_id)


def _record_failure(
    run: Run, job_id: str, index: int, failure: Failure, *, retry: bool, wait_s: float = 0.0
) -> None:
    attempt = run.state.jobs[job_id].attempts
    run.record(
        "AttemptFailed",
        job=job_id,
        attempt=attempt,
        worker=index,
        device=run.state.workers[index].device,
        kind=failure.kind.value,
        reason=failure.message,
        exit_code=failure.exit_code,
        log=run.log_name(job_id, attempt),
        traceback=failure.traceback,
        retry=retry,
        wait_s=wait_s,
    )


def _make_again(run: Run, key: str, on_disk: OnDisk) -> None:
    """Have an output made anew that could not be used."""
    if on_disk.problem not in ("", REMOVED):
        run.do(SetAside(key, on_disk.problem))
    if on_disk.maker:
        _reopen(run, on_disk.maker, on_disk.problem or "it could not be read", on_disk.missing)


def have_again(run: Run, job_ids: frozenset[str]) -> None:
    """Have outputs that a job is about to read and that are not here: jobs that were taken for stored run."""
    for job_id in sorted(job_ids):
        _reopen(run, job_id, "not stored", job_ids)


def _reopen(run: Run, job_id: str, reason: str, missing: frozenset[str]) -> None:
    """Have a job run again, and with it all that it reads and that is not there any more."""
    if not run.state.reopen(job_id):
        return
    run.say(f"{job_id} runs again: its stored output cannot be used ({reason})")
    run.record("JobReopened", job=job_id, reason=reason)
    for upstream in run.state.plan.inputs(job_id):
        if upstream in missing:
            _reopen(run, upstream, "not stored", missing)


# -- devices ---------------------------------------------------------------------------------------------------


def unusable(run: Run, index: int, reason: str) -> None:
    """Give up a worker that cannot be used, whatever becomes of others."""
    run.unusable.add(index)
    _quarantine(run, index, reason, [])


def not_free(run: Run, index: int, description: str) -> None:
    """The memory of a worker's device did not come back from the process before: jobs would fail on it."""
    if len(run.state.usable_devices()) > 1:
        unusable(run, index, description)
    else:
        run.say(f"worker {index} is the last one and goes on with what is free of {description}")


def leave_quarantined(run: Run, index: int) -> None:
    """A job has ended on a device that is given no more: that may show that the device works after all."""
    _review_devices(run)
    if run.state.workers[index].quarantined:
        close(run, index)


def close(run: Run, index: int) -> None:
    """End a worker that is given no more jobs."""
    if index not in run.closed:
        run.closed.add(index)
        run.state.workers[index].ends()
        run.do(ProcessOrder("close", index))


def _review_devices(run: Run) -> None:
    """Give no more jobs to a device that is the likely cause of failures, and take back what proved wrong."""
    state = run.state
    for device in range(len(state.layout.places)):
        jobs = state.blame.suspect(device) or _against_node(state, device)
        has_others = len(state.usable_devices()) > 1
        for index in state.layout.workers_of(device):
            if state.workers[index].quarantined:
                if not jobs and index not in run.unusable:
                    _release(run, index)
            elif jobs and has_others:
                _quarantine(run, index, "jobs failed on it in a row, and on no other device", jobs)


def _against_node(state: RunState, device: int) -> list[str]:
    """The jobs that speak against the machine of a device, where there are other machines."""
    workers = state.workers
    node = workers[state.layout.workers_of(device)[0]].node
    jobs = state.node_blame.suspect(node) if node else []
    several = len({found for job_id in jobs for found in state.blame.failed_on(job_id)}) > 1
    elsewhere = any(worker.node not in ("", node) and not worker.quarantined for worker in workers)
    return jobs if several and elsewhere else []


def _quarantine(run: Run, index: int, reason: str, jobs: list[str]) -> None:
    worker = run.state.workers[index]
    names = f" ({', '.join(jobs)})" if jobs else ""
    run.say(
        f"worker {index}, {worker.device or 'not started'}, is given no more jobs: {reason}{names}", logging.ERROR
    )
    run.record("DeviceQuarantined", worker=index, device=worker.device, reason=reason, jobs=jobs)
    run.state.table.quarantine(index)
    waiting = worker.job_id
    if not waiting or waiting in run.gathering or worker.lent:
        close(run, index)  # a job that runs beside those that failed may well finish
    if waiting in run.gathering:
        leader = run.state.jobs[waiting].workers[0]
        failure = Failure(FailureKind.lost, f"worker {index}, whose device it was given, is given up")
        run.end_attempt(waiting, leader, failure.kind.value)
        failed(run, run.state.raised(leader), leader, failure, suspect=None)


def _release(run: Run, index: int) -> None:
    run.say(f"worker {index} is given jobs again: what failed on it has failed elsewhere too")
    run.record("DeviceReleased", worker=index)
    run.state.table.release(index)
    if index in run.closed:  # otherwise its job went on meanwhile
        run.closed.discard(index)
        run.process_starts(index)
        run.do(ProcessOrder("reopen", index))
