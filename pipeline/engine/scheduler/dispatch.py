"""What it takes to start a job: of several runs one computes it, and only what is not stored. Pure rules."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from itertools import islice, takewhile

from pipeline.config.schema import Backend
from pipeline.engine.devices.layout import Layout
from pipeline.engine.scheduler.policy import Reserve, Start
from pipeline.engine.scheduler.ready import Kind, Needs, kind_of
from pipeline.engine.scheduler.recovery import gather, give_up, kind_of_time, send
from pipeline.engine.scheduler.run import OnDisk, ReleaseClaim, Run
from pipeline.engine.scheduler.state import RunState, WorkerPhase
from pipeline.engine.workers.failure import FailureKind
from pipeline.errors import PlanError
from pipeline.plan.graph import Job, Plan

# -- runnable ----------------------------------------------------------------------------------------------------
# Whether an engine with these devices can carry out a plan at all, and in words why not. Pure.


def too_few_devices(job: Job, devices: Sequence[int], layout: Layout, needs: Needs) -> str:
    """Say why a job cannot run on some devices: there are too few of them, or they are too small."""
    if job.devices <= (most := layout.most_together(devices)):
        places = [layout.places[device] for device in devices]
        have = ", ".join(f"{place.label} has {(place.free_mb or 0) / 1024:.1f} GiB free" for place in places)
        return (
            f"{job.id} needs {(needs.of(job) or 0) / 1024:.1f} GiB of device memory on each of {job.devices} "
            f"device(s), and too few of this run have so much: {have}. Try a smaller training.micro_batch_size or "
            "generation.batch_size, or share the training by training.gpus_per_job and training.strategy=fsdp, a "
            "model that writes by generation.gpus_per_job; or correct what memory_mb says"
        )
    where = "" if most == len(devices) else " on one machine, which is where a job has all of its devices"
    return (
        f"{job.id} needs {job.devices} devices at once, and there are {most}{where}. Ask for fewer "
        "(training.gpus_per_job, generation.gpus_per_job), or run with more (distributed.num_gpus, "
        "execution.workers)"
    )


def too_wide(state: RunState) -> list[str]:
    """Jobs that could start now but for needing more devices, or larger ones, than are left."""

    def is_too_wide(name: str) -> bool:
        job = state.jobs[name].job
        return job.devices > state.table.most_devices(job)

    found = [name for name in state.retries if is_too_wide(name)]
    for alike in state.ready.alike.values():
        names = (name for *_, bucket in alike.buckets() for ids in bucket.values() for name in ids)
        first = next(names)
        if is_too_wide(first):
            found += [first, *names]
    return found


def check_runnable(
    plan: Plan, layout: Layout, stored: Collection[str] = (), peaks: Mapping[str, int] | None = None
) -> None:
    """Refuse what this engine cannot carry out.

    Args:
        plan: The plan.
        layout: The devices.
        stored: Ids of the jobs that need not run.
        peaks: Memory that jobs took in earlier runs, by `Job.memory_kind`.

    Raises:
        PlanError: A job needs more devices than there are, or larger ones, its id cannot name a folder, or its
            payload is no plain data.
    """
    needs, devices = Needs(layout, peaks), range(len(layout.places))
    plain: set[int] = set()
    """Parts of payloads that were looked at: thousands of jobs share large ones."""
    fit: set[Kind] = set()
    for job in plan.jobs.values():
        if job.id not in stored and (kind := kind_of(job)) not in fit:
            if job.devices > layout.most_together(needs.fitting(job, devices)):
                raise PlanError(too_few_devices(job, devices, layout, needs))
            fit.add(kind)
        if any(part in ("", ".", "..") for part in job.id.split("/")) or "\0" in job.id:
            raise PlanError(f"'{job.id}' cannot be the id of a job: its log would leave the run's folder")
        try:
            if new := {name: part for name, part in job.payload.items() if id(part) not in plain}:
                json.dumps(new)
                plain.update(map(id, new.values()))
        except (TypeError, ValueError) as error:
            raise PlanError(
                f"{job.id}: its payload cannot be sent to a worker ({error}); it must be plain data: numbers, "
                "texts, lists and mappings"
            ) from error


_OTHER_RUN_S = 1.0
"""How often to look whether another run is done with a job; a lock on a file cannot be waited on with the rest."""


def release_due(run: Run) -> None:
    """Let jobs go on that have waited long enough."""
    due = [job_id for job_id, due_s in run.delayed.items() if due_s <= run.now_s]
    for job_id in sorted(due, key=run.delayed.__getitem__):
        del run.delayed[job_id]
        run.state.retry(job_id)


def give_up_too_wide(run: Run) -> None:
    """Have jobs fail that could start, but need more devices, or larger ones, than are left."""
    state = run.state
    for job_id in too_wide(state):
        said = too_few_devices(state.plan.jobs[job_id], state.usable_devices(), state.layout, state.needs)
        state.wait(job_id)
        give_up(run, job_id, FailureKind.device, said)


def reserve(run: Run, action: Reserve) -> None:
    """Promise the next free devices to a job."""
    # Where devices are shared this is said of every job that waits for another to end.
    level = logging.INFO if run.state.plan.jobs[action.job_id].devices > 1 else logging.DEBUG
    run.say(f"{action.job_id}: the next free devices are kept for it", level)
    run.state.reserve(action.job_id, action.node)


def start(run: Run, action: Start, on_disk: OnDisk) -> None:
    """Give a job to its workers, unless another run computes it now or has stored it.

    Args:
        run: The run.
        action: Which job, and which workers.
        on_disk: What the store says of the job's output.
    """
    if not _is_to_run(run, action.job_id, on_disk):
        return
    if action.ahead:
        run.state.hand_ahead(action.job_id, action.worker)
        send(run, action.job_id)
    else:
        run.state.start(action.job_id, action.worker, action.members, run.now_s)
        gather(run, action.job_id, action.emptied)


def _is_to_run(run: Run, job_id: str, on_disk: OnDisk) -> bool:
    """Whether this run is to compute a job that could start; if not, what follows from that."""
    if not on_disk.claimed:
        _wait(run, job_id)
    elif on_disk.stored:
        run.do(ReleaseClaim(job_id))
        run.say(
            f"{job_id}: it is stored already, by another run or by an attempt that was lost before it said so",
            logging.INFO,
        )
        run.record("JobFoundStored", job=job_id)
        run.state.found(job_id)
    return on_disk.claimed and not on_disk.stored


def _wait(run: Run, job_id: str) -> None:
    if job_id not in run.told_waiting:
        run.told_waiting.add(job_id)
        reason = "another run computes it"
        run.say(f"{job_id}: {reason}; waiting for that", logging.INFO)
        run.record("JobWaits", job=job_id, reason=reason)
    run.state.wait(job_id)
    run.delayed[job_id] = run.now_s + _OTHER_RUN_S


# -- ahead -------------------------------------------------------------------------------------------------------
# Where jobs are so short that a worker would wait for the next one about as long as it works, it has some ahead
# and begins them by itself, each if the one before it has left its process fit for it (`spoils`). What is more
# urgent by then waits for them; that is why they are few.


DEPTH = 16
"""Jobs that a worker has ahead at most; more are handed when half of them are left, so several at a time."""
MOST = 200
"""Jobs that all workers together have ahead at most: the claim on the key of each takes a descriptor."""
SHORT_S = 0.05
"""A job that takes longer does not notice the millisecond in which its worker waits for the engine."""


def orders_ahead(run: Run) -> list[Start]:
    """Which jobs to hand ahead now, and to whom: of the most urgent, while some stay for each other worker."""
    state = run.state
    if not state.ready or state.retries or run.delayed or state.reserved or run.gathering:
        return []
    if run.settings.backend is not Backend.local or not state.is_plain or state.idle_workers():
        return []
    _, devices, bucket = next(state.ready.buckets())
    left = len(state.ready) - len(state.workers)
    depth = min(DEPTH, MOST // len(state.workers))
    if devices > 1 or left <= 0 or not depth or "" not in bucket:
        return []

    def is_short(job_id: str) -> bool:
        return run.took_s.get(kind_of_time(state.plan.jobs[job_id]), SHORT_S) < SHORT_S

    # What was tried before is watched by itself.
    names = takewhile(lambda name: not state.jobs[name].attempts and is_short(name), islice(bucket[""], left))
    found: list[Start] = []
    for worker in state.workers:
        room = depth - len(worker.ahead)
        if 2 * room < depth or worker.phase is not WorkerPhase.running or worker.index in run.doomed:
            continue
        if is_short(worker.job_id):
            found += (Start(name, worker.index, ahead=True) for name in islice(names, room))
    return found
