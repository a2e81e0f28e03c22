"""Rules for sending jobs to workers, and for ending processes that hold memory which a job needs.

They change the `Run` and do no I/O.
"""

from collections.abc import Collection, Iterable, Sequence

from pipeline.engine.scheduler.run import ProcessOrder, ReleaseClaim, Run, Send
from pipeline.engine.scheduler.state import WorkerPhase
from pipeline.engine.workers.messages import RunJob


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
    workers = [run.state.workers[index] for index in run.state.jobs[job_id].workers] if job_id else []
    # No worker process may hold memory that a multi-GPU job is about to use.
    if job_id in run.gathering and all(worker.up and (worker.fresh or len(workers) == 1) for worker in workers):
        device_of = run.state.layout.device_of
        devices = {device_of(worker) for worker in run.state.jobs[job_id].workers}
        if not any(device_of(worker) in devices for worker in run.emptied):
            del run.gathering[job_id]
            run.state.jobs[job_id].sent_s = run.now_s
            run.watchdog.began(run.state.jobs[job_id].workers[0], run.now_s)
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
