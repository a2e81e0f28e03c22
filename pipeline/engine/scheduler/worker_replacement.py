"""Which processes end before a job starts, or after one, for the memory that they hold. Pure rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from pipeline.engine.scheduler.effects import ProcessOrder, Send
from pipeline.engine.scheduler.run import Run
from pipeline.engine.scheduler.worker_state import WorkerPhase
from pipeline.engine.workers.messages import RunJob


def gather(run: Run, job_id: str, emptied: Collection[int]) -> None:
    """Replace processes that hold memory of the devices which a job is about to use, and send it then."""
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
    """Give a job to its worker if all of its devices are its own."""
    if job_id in run.gathering and run.state.is_gathered(job_id):
        device_of = run.state.layout.device_of
        devices = {device_of(worker) for worker in run.state.jobs[job_id].workers}
        if not any(device_of(worker) in devices for worker in run.emptied):
            del run.gathering[job_id]
            _send(run, job_id)


def _send(run: Run, job_id: str) -> None:
    state = run.state.jobs[job_id]
    state.sent_s = run.now_s
    run.watchdog.began(state.workers[0], run.now_s)
    if len(state.workers) == 1:  # its process may have been replaced since the job was given to it
        run.state.workers[state.workers[0]].fresh = False
    order = order_for(run, job_id)
    for part, worker in enumerate(_first_of_nodes(run, state.workers)):
        run.do(Send(worker, replace(order, part=part) if part else order))


def order_for(run: Run, job_id: str, after: str = "") -> RunJob:
    """What a worker is told of a job that it was given.

    Args:
        run: The run.
        job_id: The job.
        after: The job that it is to follow; "" where the worker has none.
    """
    state, job = run.state.jobs[job_id], run.state.plan.jobs[job_id]
    parts = run.state.layout.parts(state.workers) if len(state.workers) > 1 else []
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
        spans=[len(part) for part in parts] if len(parts) > 1 else [],
        keep_models=state.keep_models,
        slots=run.state.layout.slots,
        shared=not state.exclusive,
        limit_mb=state.limit_mb,
        after=after,
    )


def process_ended(run: Run, index: int) -> bool:
    """Note the end of a worker process.

    Returns:
        Whether it was no loss: it was replaced on purpose, or its device alone was in use, by a job that goes on.
    """
    run.emptied.discard(index)
    worker = run.state.workers[index]
    if run.stopping or not (index in run.renewed or worker.lent):
        return False
    run.renewed.discard(index)
    worker.ends()
    if not worker.quarantined:
        run.process_starts(index)
    for job_id in list(run.gathering):
        send_if_gathered(run, job_id)
    return True


def renew(run: Run, worker: int) -> None:
    """Have a fresh process in the place of one; a job that is to come, or has its device, stays."""
    run.renewed.add(worker)
    run.state.workers[worker].ends()
    run.do(ProcessOrder("restart", worker))


def renew_idle(run: Run, workers: Iterable[int]) -> None:
    """Have the next jobs of workers that have none run in fresh processes."""
    for index in workers:
        if run.state.workers[index].phase in (WorkerPhase.idle, WorkerPhase.starting) and not run.stopping:
            renew(run, index)


def renew_places(run: Run, workers: Sequence[int], but: Collection[int] = ()) -> None:
    """Replace workers whose devices ranks had: a new one is ready once the memory of its GPU has come back.

    Args:
        run: The run.
        workers: All of the job, which is over.
        but: Those of them whose processes have ended, or are being replaced.
    """
    started = _first_of_nodes(run, workers)[1:]
    had = [index for index in workers if run.state.workers[index].visible or index in started]
    renew_idle(run, [index for index in had if index not in but])


def starts_ranks(run: Run, index: int) -> bool:
    """Whether a worker that is lent to a job has processes of it: those of its machine, which is not the first."""
    job_id = run.state.workers[index].job_id
    if not run.state.workers[index].lent or job_id in run.gathering:
        return False
    return index in _first_of_nodes(run, run.state.jobs[job_id].workers)


def _first_of_nodes(run: Run, workers: Sequence[int]) -> list[int]:
    """Of the workers of a job those that are sent it: one on each machine, that which leads it first."""
    if len(workers) < 2:
        return list(workers)
    return [part[0] for part in run.state.layout.parts(workers)]
