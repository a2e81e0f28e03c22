"""Rules for what follows when a worker sends a message, ends or hangs: who gets its device, what is retried."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice, takewhile

from msgspec.structs import asdict

from pipeline.config.schema import Backend
from pipeline.engine.devices.select import Layout, Place
from pipeline.engine.scheduler import attempts
from pipeline.engine.scheduler.policy import Reserve, Start
from pipeline.engine.scheduler.ready import Kind, Needs, kind_of
from pipeline.engine.scheduler.run import Failure, GiveBack, OnDisk, ProcessOrder, ReleaseClaim, Run
from pipeline.engine.scheduler.state import THERE, WorkerPhase
from pipeline.engine.workers import messages
from pipeline.errors import PlanError
from pipeline.plan.graph import Job, Plan

_MAX_REASON = 1_000
"""Maximum length of a reason in characters: the first line of an exception; the job's log has all of it."""
_MAX_EXCUSED = 10
"""Attempts of a job that may end through a foreign signal, or with their machine, without counting as
failures."""
_TIME_DECAY = 0.7
"""Estimated time of a kind of job: the largest recent time, where each further job multiplies older times by this.
"""


def is_believed(run: Run, index: int, message: messages.OfJob) -> bool:
    """Return whether to believe a message about an attempt: its worker has it, and the order is possible.

    The code of any job can write to its worker's pipe, and send messages about other jobs or ended attempts.
    """
    if index in run.doomed or message.job_id in run.gathering:
        return False
    if not run.state.is_current(index, message.job_id, message.attempt):
        return False
    # A job may raise before it has begun: when its log cannot be written.
    return isinstance(message, messages.JobRaised) or run.state.workers[index].begun != isinstance(
        message, messages.JobStarted
    )


def react(run: Run, index: int, message: messages.FromWorker, on_disk: OnDisk) -> None:
    """React to a message.

    Args:
        run: State of the run.
        index: Index of the worker.
        message: The worker's message, or the pool's message about it.
        on_disk: At the end of an attempt: state in the store of the job's output, or of the input that the job
            found damaged.
    """
    run.watchdog.heard(index, run.now_s)
    match message:
        case messages.WorkerWaits():
            run.state.workers[index].waits = True
            run.record("WorkerWaits", worker=index)
        case messages.WorkerExited():
            _handle_exit(run, index, message)
        case messages.WorkerUnusable():
            run.state.workers[index].gone = True
            attempts.drop_worker(run, index, message.reason)
        case messages.WorkerUnreadable():
            _distrust(run, index, message.reason)
        case messages.WorkerReady():
            if index not in run.doomed and not run.state.workers[index].up:
                _handle_ready(run, index, message)
        case messages.Heartbeat():
            if index not in run.doomed:
                run.state.workers[index].rss_bytes = message.rss_bytes
                run.tell("Heartbeat", worker=index, **asdict(message))
        case _ if not is_believed(run, index, message):
            if (index, message.job_id) not in run.told_late:
                run.told_late.add((index, message.job_id))
                run.say(
                    f"worker {index}: {type(message).__name__} of {message.job_id[:200]!a}, which it does not have"
                )
        case messages.JobStarted():
            _handle_start(run, index, message)
        case messages.JobProgress():
            progress = {name: value for name, value in asdict(message).items() if name != "job_id"}
            run.tell("JobProgress", job=message.job_id, worker=index, **progress)
            run.watchdog.moved(index, run.now_s, message.done, message.tokens)
        case messages.JobFinished() if not on_disk.stored:
            _distrust(run, index, f"it said that {message.job_id} is done, and nothing is stored")
        case messages.JobFinished():
            _handle_finish(run, index, message)
        case messages.JobRaised():
            _handle_raise(run, index, message, on_disk)
        case messages.AttemptStopped():
            workers = run.state.jobs[message.job_id].workers
            again = "was asked to stop once more, and not by the engine"
            _retry_stopped(run, run.state.raised(index), index, again, begun=True)
            attempts.give_back(run, index)  # it gets no further job
            attempts.renew_idle(run, [index])
            attempts.renew_places(run, workers, but=(index,))
    if run.leaving:
        _leave(run)


def kill_hanging(run: Run) -> None:
    """Kill workers that have sent no heartbeat, or made no progress, for too long."""
    for index, reason in run.watchdog.overdue(run.now_s).items():
        run.say(f"worker {index}: {run.state.workers[index].job_id}: {reason}; killing it")
        run.doomed[index] = Failure(messages.FailureKind.hang, f"worker {index} was killed: {reason}")
        run.do(ProcessOrder("abort", index))


def let_go(run: Run, job_ids: Collection[str]) -> None:
    """Let no more of some jobs start, and ask the workers of those that run to stop as at the end of a run.

    Prefetched jobs and those whose devices are still being cleared are asked once they have begun.
    """
    for job_id in run.state.hold(job_ids):
        leader = run.state.jobs[job_id].workers[0]
        worker = run.state.workers[leader]
        if worker.job_id == job_id and worker.begun and leader not in run.asked | run.doomed.keys():
            run.asked.add(leader)
            run.do(ProcessOrder("stop_job", leader))


def keep_plan(run: Run) -> None:
    """Let the jobs start again that were to leave the plan."""
    change_plan(run, run.state.plan, [job_id for job_id, job in run.state.jobs.items() if job.status not in THERE])


def change_plan(run: Run, plan: Plan, missing: Collection[str]) -> None:
    """Go on with another plan, which has every job that runs.

    Args:
        run: State of the run.
        plan: The plan.
        missing: Ids of its jobs whose outputs are needed and not there.
    """
    run.delayed = {job_id: due_s for job_id, due_s in run.delayed.items() if job_id in plan.jobs}
    for job_id in run.state.change_plan(plan, missing, run.delayed):
        run.record("JobBlocked", job=job_id, root_cause=run.state.jobs[job_id].root_cause)


def change_devices(run: Run, come: Mapping[int, Place], back: Collection[int]) -> None:
    """Go on with other devices.

    Args:
        run: State of the run.
        come: Devices that come, or come back, by their index in the layout; new ones follow those that there are.
        back: Devices to give back: each is left once the jobs that it has are over.
    """
    state, places = run.state, dict(enumerate(run.state.layout.places)) | dict(come)
    before, begun = len(state.workers), state.layout.begun or len(state.layout.places)
    state.adopt_layout(replace(state.layout, places=tuple(places.values()), begun=begun))
    for device in come:
        run.leaving.discard(device)
        state.blame.finished(device)
        for index in state.layout.workers_of(device):
            run.dropped.discard(index)
            state.quarantine(index, quarantined=False)
            state.leave(index, away=False)
            if state.workers[index].gone:
                run.process_starts(index)
            elif index in run.closing:
                run.renewed.add(index)
            run.closing.discard(index)
            if index < before:
                run.record("DeviceReleased", worker=index)
            run.do(ProcessOrder("open", index))
    for device in back:
        run.leaving.add(device)
        for index in state.layout.workers_of(device):
            state.leave(index)
            run.record("WorkerLeaves", worker=index)
    _leave(run)


def _leave(run: Run) -> None:
    """End processes without a job on devices that are to be given back; give back those without processes."""
    for device in sorted(run.leaving) if not run.stopping else ():
        workers = [run.state.workers[index] for index in run.state.layout.workers_of(device)]
        for worker in workers:
            if not (worker.job_id or worker.ahead or worker.gone or worker.index in run.closing):
                run.closing.add(worker.index)
                worker.ends()
                run.do(ProcessOrder("close", worker.index))
        if all(worker.gone for worker in workers):
            run.leaving.remove(device)
            run.say(f"{run.state.layout.places[device].label} is given back", logging.INFO)
            run.do(GiveBack(device))


def _distrust(run: Run, index: int, reason: str) -> None:
    """Handle an impossible message of a worker: its attempt fails, and nothing else."""
    run.say(f"worker {index}: {reason}; killing it")
    run.doomed.setdefault(index, Failure(messages.FailureKind.lost, f"worker {index} was killed: {reason}"))
    run.watchdog.ended(index)
    if not (worker := run.state.workers[index]).job_id:
        worker.ends()  # so that no job gets a device of a process that is about to be killed
    run.do(ProcessOrder("dismiss", index))


# -- a worker's process ----------------------------------------------------------------------------------------


def _handle_ready(run: Run, index: int, message: messages.WorkerReady) -> None:
    layout, device = run.state.layout, message.device
    if message.node:
        device += f" on {message.node}"
    if layout.slots > 1:
        place = layout.workers_of(layout.device_of(index)).index(index) + 1
        device += f", place {place} of {layout.slots}"
    run.present[index].ready_s = run.now_s
    run.state.worker_ready(index, device, message.visible)
    run.say(f"worker {index}: {device}, pid {message.pid}", logging.INFO)
    where = {"node": message.node} if message.node else {}
    run.record("WorkerStarted", worker=index, pid=message.pid, device=device, **where)
    job_id = run.state.workers[index].job_id
    # While ranks work on its device, their memory is not left over; it is checked when they are done.
    if message.unfit and (not job_id or job_id in run.gathering):
        attempts.drop_unfit_worker(run, index, message.unfit)
    attempts.send_if_gathered(run, run.state.workers[index].job_id)


def _handle_exit(run: Run, index: int, message: messages.WorkerExited) -> None:
    run.present[index].ended_s = run.now_s
    run.watchdog.ended(index)
    attempts.give_back(run, index)
    run.record("WorkerExited", worker=index, exit_code=message.exit_code)
    doom = run.doomed.pop(index, None)
    if attempts.restart_if_expected(run, index):
        return
    before = run.state.workers[index]
    workers = run.state.jobs[before.job_id].workers if before.job_id else ()
    job_id = run.state.worker_lost(index)
    # If none of the job's code has run, the job is not at fault.
    own = index in run.asked or not (before.begun or message.elsewhere)
    if job_id and (run.stopping or (own and not doom)):
        again = f"ended once more before it had begun: {message.said}"
        _retry_stopped(run, job_id, index, again, begun=before.begun)
    elif job_id:
        lost = _failure_of_exit(index, message, before.rss_bytes)
        failure = replace(doom, exit_code=message.exit_code) if doom else lost
        _handle_lost_attempt(run, job_id, index, failure, elsewhere=message.elsewhere)
    elif before.phase is WorkerPhase.idle and not run.stopping:
        run.say(f"worker {index} was lost ({message.said})")
    if run.stopping:
        return
    attempts.replace_process(run, index)
    attempts.renew_places(run, workers, but=(index,))


def _handle_lost_attempt(run: Run, job_id: str, index: int, failure: Failure, *, elsewhere: bool) -> None:
    run.end_attempt(job_id, index, failure.kind.value)
    run.excused[job_id] += elsewhere
    if elsewhere and run.excused[job_id] <= _MAX_EXCUSED:
        attempts.try_again(run, job_id, index, failure, "elsewhere")
    else:
        # With several devices, none can be singled out as the cause.
        suspect = index if not elsewhere and run.state.plan.jobs[job_id].devices == 1 else None
        attempts.handle_failure(run, job_id, index, failure, suspect=suspect)


def _failure_of_exit(index: int, ended: messages.WorkerExited, rss_bytes: int) -> Failure:
    how = ended.said
    if ended.exit_code == -9 and rss_bytes:  # the most common cause of a SIGKILL that the engine did not send
        how += f"; it held {rss_bytes / 2**30:.1f} GiB, so the system may have been out of memory"
    return Failure(messages.FailureKind.lost, f"worker {index} was lost ({how})", exit_code=ended.exit_code)


# -- a worker's job --------------------------------------------------------------------------------------------


def _handle_start(run: Run, index: int, message: messages.JobStarted) -> None:
    run.state.workers[index].begun = True
    members = run.state.jobs[message.job_id].workers[1:]
    more: dict[str, object] = {"members": members} if members else {}
    run.record("JobStarted", job=message.job_id, attempt=message.attempt, worker=index, **more)


def _handle_finish(run: Run, index: int, message: messages.JobFinished) -> None:
    state, job_id = run.state, message.job_id
    run.end_attempt(job_id, index, "done", message.load_s, sum(message.flops.values()))
    run.record(
        "JobFinished",
        job=job_id,
        attempt=message.attempt,
        worker=index,
        load_s=message.load_s,
        run_s=message.run_s,
        samples=message.samples,
        tokens=message.tokens,
        **({} if message.peak_mb is None else {"peak_mb": message.peak_mb}),
    )
    workers = state.jobs[job_id].workers
    # The first job of a worker imports libraries that later jobs find loaded.
    kind = _kind_of_time(state.plan.jobs[job_id])
    run.took_s[kind] = max(message.run_s, _TIME_DECAY * run.took_s.get(kind, 0.0))
    state.finished(index, message.peak_mb, message.held_mb)
    _hand_on(run, index, workers, message)


def _kind_of_time(job: Job) -> tuple[str, str]:
    """Return the key of jobs that take about equally long."""
    return job.entry, job.stage


def _handle_raise(run: Run, index: int, message: messages.JobRaised, on_disk: OnDisk) -> None:
    state, kind, job_id = run.state, message.kind, message.job_id
    run.end_attempt(job_id, index, kind.value)
    workers = state.jobs[job_id].workers
    is_gang = len(workers) > 1
    beside = kind is messages.FailureKind.out_of_memory and state.ran_out_of_memory(job_id, index)
    state.raised(index, message.held_mb)
    first, *rest = message.said.splitlines() or ["an exception that says nothing"]
    # Validators of libraries announce an error in one line and describe it in the next.
    what = " ".join([first, *(line.strip() for line in rest[:1] if first.endswith(":"))])[:_MAX_REASON]
    failure = Failure(kind, what, traceback=message.traceback, damaged_key=message.damaged_key)
    if beside:
        why = " (it shared the device; the next attempt does not)"
        attempts.try_again(run, job_id, index, failure, "with a device to itself", why)
    else:
        suspect: int | None = index
        if is_gang:
            suspect = next(iter(workers[message.rank :]), None) if message.rank is not None else None
        attempts.handle_failure(run, job_id, index, failure, suspect=suspect, on_disk=on_disk)
    # Processes that ranks started may outlive the ranks; they end with the worker that led the ranks.
    _hand_on(run, index, workers, message, is_spoiled=is_gang)


def _hand_on(
    run: Run,
    index: int,
    workers: tuple[int, ...],
    message: messages.JobFinished | messages.JobRaised,
    *,
    is_spoiled: bool = False,
) -> None:
    """Make the devices of a finished job ready for the next one, with fresh processes where needed."""
    if message.left_changed:
        run.say(f"worker {index}: {message.job_id} has left changed: {message.left_changed}")
    # a job that ended on a device may show that the device works after all
    if run.state.workers[index].quarantined:
        attempts.review_devices(run)
    if is_spoiled or message.spoils or index in run.asked:
        attempts.renew_idle(run, [index])
    attempts.renew_places(run, workers)
    attempts.begin_ahead(run, index)


def _retry_stopped(run: Run, job_id: str, index: int, again: str, *, begun: bool) -> None:
    """Retry a job whose attempt ended through no fault of its own: a few times, or at our own request.

    Args:
        run: State of the run.
        job_id: The job, which no worker has any more.
        index: Index of the worker that had the job.
        again: What has happened once too often, in words.
        begun: Whether the journal has the beginning of the attempt.
    """
    run.end_attempt(job_id, index, "stopped")
    if begun:
        run.record("JobStopped", job=job_id, attempt=run.state.jobs[job_id].attempts, worker=index)
    asked = run.stopping or index in run.asked
    run.excused[job_id] += not asked
    if asked or run.excused[job_id] <= _MAX_EXCUSED:
        run.state.retry(job_id)
    else:
        failure = Failure(messages.FailureKind.lost, f"worker {index} {again}")
        attempts.handle_failure(run, job_id, index, failure, suspect=None)


# -- runnable ----------------------------------------------------------------------------------------------------
# Check whether an engine with these devices can carry out a plan at all, and if not, say why. Pure functions.


def too_few_devices(job: Job, devices: Sequence[int], layout: Layout, needs: Needs) -> str:
    """Say why a job cannot run on some devices, too few or too small; "" if it can."""
    if job.devices <= (most := layout.most_together(devices)):
        places = [layout.places[device] for device in devices]
        have = ", ".join(f"{place.label} has {(place.free_mb or 0) / 1024:.1f} GiB free" for place in places)
        return (
            f"{job.id} needs {(needs.of(job) or 0) / 1024:.1f} GiB of device memory on each of {job.devices} "
            f"device(s), and too few of this run have so much: {have}. Try smaller batches, or more devices a job "
            "(training.gpus_per_job with training.strategy=fsdp, generation.gpus_per_job), or correct memory_mb"
        )
    where = "" if most == len(devices) else " on one machine, which is where a job has all of its devices"
    return (
        f"{job.id} needs {job.devices} devices at once, and there are {most}{where}. Ask for fewer "
        "(training.gpus_per_job, generation.gpus_per_job), or run with more (distributed.num_gpus, "
        "execution.workers)"
    )


def check_runnable(
    plan: Plan,
    layout: Layout,
    stored: Collection[str] = (),
    peaks: Mapping[str, int] | None = None,
    devices: Sequence[int] | None = None,
) -> None:
    """Check that this engine can carry out a plan.

    Args:
        plan: The plan.
        layout: The devices.
        stored: Ids of the jobs that need not run.
        peaks: Device memory of jobs in earlier runs, by `Job.memory_kind`.
        devices: Those of the layout that take jobs; None for all.

    Raises:
        PlanError: A job needs more devices than there are, or larger ones, or its id cannot name a folder.
    """
    needs = Needs(layout, peaks)
    devices = range(len(layout.places)) if devices is None else devices
    fit: set[Kind] = set()
    for job in plan.jobs.values():
        if job.id not in stored and (kind := kind_of(job)) not in fit:
            if job.devices > layout.most_together(needs.fitting(job, devices)):
                raise PlanError(too_few_devices(job, devices, layout, needs))
            fit.add(kind)
        if any(part in ("", ".", "..") for part in job.id.split("/")) or "\0" in job.id:
            raise PlanError(f"'{job.id}' cannot be the id of a job: its log would leave the run's folder")


_OTHER_RUN_S = 1.0
"""Seconds between checks whether another run is done with a job; waits cannot include a file lock."""


def release_due(run: Run) -> None:
    """Release jobs whose delay is over."""
    due = [job_id for job_id, due_s in run.delayed.items() if due_s <= run.now_s]
    for job_id in sorted(due, key=run.delayed.__getitem__):
        del run.delayed[job_id]
        run.state.retry(job_id)


def give_up_too_wide(run: Run) -> None:
    """Fail the ready jobs that need more devices, or larger ones, than are left."""
    state = run.state

    def is_too_wide(name: str) -> bool:
        job = state.jobs[name].job
        return job.devices > state.most_devices(job)

    wide = [name for name in state.retries if is_too_wide(name)]
    for alike in state.ready.alike.values():
        names = (name for _, _, bucket, _ in alike.buckets() for ids in bucket.values() for name in ids)
        if is_too_wide(first := next(names)):
            wide += [first, *names]
    for job_id in wide:
        reason = too_few_devices(state.plan.jobs[job_id], state.usable_devices(), state.layout, state.needs)
        state.wait(job_id)
        attempts.give_up(run, job_id, messages.FailureKind.device, reason)


def reserve(run: Run, action: Reserve) -> None:
    """Reserve the next free devices for a job."""
    # On shared devices every job that waits for another one to end gets here.
    level = logging.INFO if run.state.plan.jobs[action.job_id].devices > 1 else logging.DEBUG
    run.say(f"{action.job_id}: the next free devices are kept for it", level)
    run.state.reserve(action.job_id, action.node)


def start(run: Run, action: Start, on_disk: OnDisk) -> None:
    """Give a job to its workers, unless another run computes it now or has stored it.

    Args:
        run: State of the run.
        action: The job, and its workers.
        on_disk: State of the job's output in the store.
    """
    if not _is_to_run(run, action.job_id, on_disk):
        return
    if action.ahead:
        run.state.start(action.job_id, action.worker, ahead=True)
        attempts.send(run, action.job_id)
    else:
        run.state.start(action.job_id, action.worker, action.members, run.now_s)
        attempts.gather(run, action.job_id, action.emptied)


def _is_to_run(run: Run, job_id: str, on_disk: OnDisk) -> bool:
    """Return whether this run is to compute a ready job; if not, apply the consequences."""
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
# Prefetching: if jobs are so short that a worker would wait for the next one about as long as it works, it gets
# some in advance. It begins them by itself, as long as each job leaves the process fit for the next (`spoils`).
# More urgent jobs that become ready meanwhile have to wait, so few jobs are prefetched.


DEPTH = 16
"""Maximum number of prefetched jobs per worker. It gets more when half of them are left, so several at a time."""
MOST = 200
"""Maximum number of prefetched jobs of all workers: the lock on the key of each takes a file descriptor."""
SHORT_S = 0.05
"""Longest job, in seconds, worth prefetching: a longer one does not notice the millisecond of waiting for the
engine."""


def orders_ahead(run: Run) -> list[Start]:
    """Decide which of the most urgent jobs to prefetch, and to which workers.

    Some jobs stay for each other worker.
    """
    state = run.state
    if not state.ready or state.retries or run.delayed or state.reserved or run.gathering or run.budget:
        return []
    if run.settings.backend is not Backend.local or not state.is_plain or state.idle_workers():
        return []
    devices, bucket = state.ready.first()
    spare = len(state.ready) - len(state.workers)
    depth = min(DEPTH, MOST // len(state.workers))
    if devices > 1 or spare <= 0 or not depth or "" not in bucket:
        return []

    def is_short(job_id: str) -> bool:
        return run.took_s.get(_kind_of_time(state.plan.jobs[job_id]), SHORT_S) < SHORT_S

    # Retried jobs are started by the engine itself.
    names = takewhile(lambda name: not state.jobs[name].attempts and is_short(name), islice(bucket[""], spare))
    starts: list[Start] = []
    for worker in state.workers:
        room = depth - len(worker.ahead)
        is_free = worker.phase is WorkerPhase.running and not worker.away
        if 2 * room < depth or not is_free or worker.index in run.doomed:
            continue
        if is_short(worker.job_id):
            starts += (Start(name, worker.index, ahead=True) for name in islice(names, room))
    return starts
