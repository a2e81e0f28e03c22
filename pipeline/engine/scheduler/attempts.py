"""Rules for attempts: sending jobs to workers, ending processes that hold memory, and what becomes of failures.

They change the `Run` and do no I/O.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from pipeline.engine.scheduler.run import Failure, OnDisk, ProcessOrder, ReleaseClaim, Run, Send, SetAside, judge
from pipeline.engine.scheduler.state import WorkerPhase
from pipeline.engine.workers.messages import FailureKind, RunJob
from pipeline.outputs.manifest import REMOVED

# -- sending ---------------------------------------------------------------------------------------------------


def gather(run: Run, job_id: str, emptied: Collection[int]) -> None:
    """Replace processes that hold memory of the devices of a job that is about to start, and send the job then."""
    run.gathering[job_id] = None
    workers = run.state.jobs[job_id].workers
    for worker in workers:
        if len(workers) > 1 and not run.state.workers[worker].fresh:
            renew(run, worker)
    for worker in emptied:
        run.emptied.add(worker)
        renew(run, worker)
    send_if_gathered(run, job_id)


def send_if_gathered(run: Run, job_id: str) -> None:
    """Send a job to its worker once no other process holds memory of its devices."""
    if job_id not in run.gathering:
        return
    state, device_of = run.state.jobs[job_id], run.state.layout.device_of
    workers = [run.state.workers[index] for index in state.workers]
    # No worker process may hold memory that a multi-GPU job is about to use.
    is_ready = all(worker.up and (worker.fresh or len(workers) == 1) for worker in workers)
    if is_ready and not {*map(device_of, state.workers)} & {*map(device_of, run.emptied)}:
        del run.gathering[job_id]
        state.sent_s = run.now_s
        run.watchdog.began(state.workers[0], run.now_s)
        send(run, job_id)


def send(run: Run, job_id: str) -> None:
    """Send a job to the workers that it was assigned to."""
    state = run.state.jobs[job_id]
    if len(state.workers) == 1:  # its process may have been replaced since the job was assigned to it
        run.state.workers[state.workers[0]].fresh = False
    run.do(Send(state.workers[0], _order(run, job_id)))


def _order(run: Run, job_id: str) -> RunJob:
    """Return the message that gives a job to its worker."""
    state, job = run.state.jobs[job_id], run.state.plan.jobs[job_id]
    return RunJob(
        job_id=job_id,
        attempt=state.attempts,
        key=job.key,
        entry=job.entry,
        payload=job.payload,
        inputs={name: list(keys) for name, keys in job.inputs.items()},
        store=run.store,
        scratch=run.scratch,
        verified=run.verified,
        log_path=run.log_path(job_id, state.attempts),
        gang=[run.state.workers[worker].visible for worker in state.workers] if job.devices > 1 else [],
        keep_models=state.keep_models,
        slots=run.state.layout.slots,
        shared=not state.exclusive,
        limit_mb=state.limit_mb,
    )


def begin_ahead(run: Run, index: int) -> None:
    """Let a worker that has finished its job begin the next of its prefetched jobs."""
    worker = run.state.workers[index]
    if worker.ahead and worker.phase is WorkerPhase.idle:
        run.state.begin_ahead(index, run.now_s)
        run.watchdog.began(index, run.now_s)
    else:
        give_back(run, index)


def give_back(run: Run, index: int) -> None:
    """Take all prefetched jobs back from a worker."""
    for job_id in list(run.state.workers[index].ahead):
        run.do(ReleaseClaim(job_id))
        run.state.give_back(job_id, index)


def restart_if_expected(run: Run, index: int) -> bool:
    """Start another process for a worker if the end of its process was expected.

    Returns:
        Whether it was: the process was replaced on purpose, or only its device was in use, by a job that goes on.
    """
    run.emptied.discard(index)
    worker = run.state.workers[index]
    if run.stopping or not (index in run.renewed or worker.lent):
        return False
    run.renewed.discard(index)
    worker.ends()
    replace_process(run, index)
    for job_id in list(run.gathering):
        send_if_gathered(run, job_id)
    return True


def replace_process(run: Run, index: int) -> None:
    """Note that another process starts for a worker, unless its device is given back and no job needs it."""
    worker = run.state.workers[index]
    if worker.away and not worker.job_id:
        run.closing.discard(index)
        worker.gone = True
        run.do(ProcessOrder("close", index))
    else:
        run.process_starts(index)


def renew(run: Run, worker: int) -> None:
    """Replace a worker's process; a job that is assigned to it, or uses its device, stays."""
    run.renewed.add(worker)
    run.state.workers[worker].ends()
    run.do(ProcessOrder("restart", worker))


def renew_idle(run: Run, workers: Iterable[int]) -> None:
    """Replace the processes of workers that have no job."""
    for worker in map(run.state.workers.__getitem__, workers):
        if not (worker.job_id or worker.gone or run.stopping):
            renew(run, worker.index)


def renew_places(run: Run, workers: Sequence[int], but: Collection[int] = ()) -> None:
    """Replace workers whose GPUs ranks used: a new process is ready once the memory of its GPU is free.

    Args:
        run: The run.
        workers: All workers of the job, which is over; a job of one worker had no ranks.
        but: Workers among them whose processes have ended, or are being replaced.
    """
    used = [index for index in workers if run.state.workers[index].visible and index not in but]
    renew_idle(run, used if len(workers) > 1 else ())


# -- failures --------------------------------------------------------------------------------------------------


def handle_failure(
    run: Run, job_id: str, index: int, failure: Failure, *, suspect: int | None, on_disk: OnDisk | None = None
) -> None:
    """Retry or give up the job of a failed attempt, and review the devices.

    Args:
        run: The run.
        job_id: The job, which no worker has any more.
        index: Index of the worker that had the job.
        failure: The failed attempt.
        suspect: The worker whose device may be at fault, if one can be singled out.
        on_disk: State in the store of the input that was found damaged, if any.
    """
    state, job = run.state, run.state.jobs[job_id]
    if failure.kind is FailureKind.storage:
        # No other job would fare better, and its computation would be lost. So no job is blamed, and the run ends
        # as if it had been interrupted.
        _record_failure(run, job_id, index, failure, retry=True)
        run.halted = f"{job_id}: {failure.message}"
        state.retry(job_id)
        return
    job.failures[failure.kind] += 1
    given_up, wait_s = judge(failure, job.failures[failure.kind], run.settings.retry)
    _record_failure(run, job_id, index, failure, retry=not given_up, wait_s=wait_s)
    if suspect is not None:
        state.blame.failed(job_id, state.layout.device_of(suspect), failure.kind)
    if given_up:
        give_up(run, job_id, failure.kind, given_up)
    else:
        wait = f" in {wait_s:g} s" if wait_s else ""
        run.say(f"{job_id}: attempt {job.attempts} failed, trying again{wait}: {failure.message}")
        if failure.damaged_key and on_disk is not None:
            _make_again(run, failure.damaged_key, on_disk)
        if wait_s:
            run.delayed[job_id] = run.now_s + wait_s
            state.wait(job_id)
        else:
            state.retry(job_id)
    review_devices(run)


def try_again(run: Run, job_id: str, index: int, failure: Failure, how: str, why: str = "") -> None:
    """Retry a job when neither job nor device is at fault, without counting a failure.

    Args:
        run: The run.
        job_id: The job.
        index: Index of the worker that had the job.
        failure: The failed attempt.
        how: Manner of the retry, in words.
        why: Difference of the retry, for the journal.
    """
    run.say(f"{job_id}: trying again {how}: {failure.message}")
    _record_failure(run, job_id, index, replace(failure, message=failure.message + why), retry=True)
    run.state.retry(job_id)


def give_up(run: Run, job_id: str, kind: FailureKind, reason: str) -> None:
    """Fail a job for good, and block the jobs that depend on it."""
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
    """Recompute an output that could not be used."""
    if on_disk.problem not in ("", REMOVED):
        run.do(SetAside(key, on_disk.problem))
    if on_disk.maker:
        _reopen(run, on_disk.maker, on_disk.problem or "it could not be read", on_disk.missing)


def _reopen(run: Run, job_id: str, reason: str, missing: frozenset[str]) -> None:
    """Run a job again, together with the jobs whose outputs it reads and that are gone."""
    if not run.state.reopen(job_id):
        return
    run.say(f"{job_id} runs again: its stored output cannot be used ({reason})")
    run.record("JobReopened", job=job_id, reason=reason)
    for upstream in run.state.plan.inputs(job_id):
        if upstream in missing:
            _reopen(run, upstream, "not stored", missing)


# -- devices ---------------------------------------------------------------------------------------------------


def drop_worker(run: Run, index: int, reason: str) -> None:
    """Give a worker no more jobs, even if it is the last one; a review of its device does not change that."""
    if not run.state.workers[index].quarantined:
        _quarantine(run, {index: []}, reason)
    elif index not in run.dropped:
        run.say(f"worker {index} is given no more jobs for another reason too: {reason}", logging.ERROR)
    run.dropped.add(index)


def drop_unfit_worker(run: Run, index: int, reason: str) -> None:
    """Drop a worker that reports its device as unfit, unless it has the last one."""
    if {*run.state.usable_devices()} - {run.state.layout.device_of(index)}:
        drop_worker(run, index, reason)
    else:
        run.say(f"worker {index} has the last device and goes on with it, though {reason}")


def review_devices(run: Run) -> None:
    """Quarantine devices that are the likely cause of failures, and release those where this proved wrong."""
    state, layout = run.state, run.state.layout
    for worker in state.workers:
        is_suspect = state.blame.suspect(layout.device_of(worker.index))
        if worker.quarantined and not is_suspect and worker.index not in run.dropped:
            run.say(f"worker {worker.index} is given jobs again: what failed on it has failed elsewhere too")
            run.record("DeviceReleased", worker=worker.index)
            state.quarantine(worker.index, quarantined=False)
    usable, suspects = set(state.usable_devices()), dict[int, list[str]]()
    for device in state.usable_devices():
        if (jobs := state.blame.suspect(device)) and len(usable) > 1:
            usable.remove(device)
            workers = (index for index in layout.workers_of(device) if not state.workers[index].quarantined)
            suspects |= dict.fromkeys(workers, jobs)
    _quarantine(run, suspects, "jobs failed on it in a row, and on no other device")


def _quarantine(run: Run, failed_jobs: dict[int, list[str]], reason: str) -> None:
    """Give workers no more jobs, and fail the attempts that still wait for their devices.

    Args:
        run: The run.
        failed_jobs: Worker -> the jobs that implicate its device.
        reason: Why, in words.
    """
    for index, jobs in failed_jobs.items():
        device, names = run.state.workers[index].device, f" ({', '.join(jobs)})" if jobs else ""
        run.say(
            f"worker {index}, {device or 'not started'}, is given no more jobs: {reason}{names}", logging.ERROR
        )
        run.record("DeviceQuarantined", worker=index, device=device, reason=reason, failed_jobs=jobs)
        run.state.quarantine(index)
    # A failure makes another review, so it comes after all changes of this one.
    for index in failed_jobs:
        job_id = run.state.workers[index].job_id
        if job_id in run.gathering:
            leader = run.state.jobs[job_id].workers[0]
            failure = Failure(FailureKind.lost, f"worker {index}, whose device it was given, is given up")
            run.end_attempt(job_id, leader, failure.kind.value)
            handle_failure(run, run.state.raised(leader), leader, failure, suspect=None)
