"""Carries out a plan on paper: the real state and policy, imagined workers and an imagined clock."""

import heapq
from collections.abc import Callable, Mapping

from pipeline.config.schema import Barrier, ExecutionConfig, Keep
from pipeline.engine.devices.select import Layout, plain_layout
from pipeline.engine.scheduler.outcome import Attempt
from pipeline.engine.scheduler.policy import Reserve, next_actions
from pipeline.engine.scheduler.state import RunState
from pipeline.plan.graph import Plan


def simulate(
    plan: Plan,
    workers: int,
    seconds: Mapping[str, float] | None = None,
    barrier: Barrier = Barrier.none,
    watch: Callable[[RunState, float], None] = lambda state, now_s: None,
    layout: Layout | None = None,
    peaks_mb: Mapping[str, int] | None = None,
    *,
    rows_early: bool = False,
    rows_first: bool = False,
) -> list[Attempt]:
    """Every attempt with its times, in the order in which they end.

    Args:
        plan: The plan.
        workers: How many.
        seconds: True durations; the planned ones if None.
        barrier: As in the real engine.
        watch: Looks at the state whenever everything has started that may.
        layout: The devices; `workers` of them with one worker each if None.
        peaks_mb: True peaks of device memory by job, which are measured when it finishes; half of it stays held.
        rows_early: As in the real engine.
        rows_first: Likewise.
    """
    layout = layout or plain_layout(workers)
    # Where weights are removed the order is another one, without first rows.
    keep = Keep.all if rows_early else Keep.last
    settings = ExecutionConfig(barrier=barrier, models_in_memory=2, keep=keep)
    state = RunState(plan, (), layout, settings, rows_first=rows_first)
    for index in range(layout.workers):
        state.worker_ready(index, "cpu")
    now, attempts = 0.0, []
    events: list[tuple[float, int, str, float]] = []
    while state.unsettled:
        for action in next_actions(state, now):
            if isinstance(action, Reserve):
                state.reserve(action.job_id, action.node)
                continue
            state.start(action.job_id, action.worker, action.members, now)
            for index in action.emptied:
                state.workers[index].ends()
                state.worker_ready(index, "cpu")
            takes = plan.jobs[action.job_id].seconds if seconds is None else seconds[action.job_id]
            heapq.heappush(events, (now + takes, action.worker, action.job_id, now))
        watch(state, now)
        assert events, "nothing runs and nothing can start"
        now, worker, job_id, sent = heapq.heappop(events)
        attempts.append(
            Attempt(
                job_id=job_id,
                attempt=1,
                worker=worker,
                devices=state.slots_of(plan.jobs[job_id]),
                sent_s=sent,
                ended_s=now,
            )
        )
        peak = (peaks_mb or {}).get(job_id)
        held = (peak or 0) // 2 if plan.jobs[job_id].devices == 1 and state.layout.slots > 1 else 0
        state.finished(worker, peak, held)
    return attempts
