"""What keeps a run from going on as planned: work of others, a shared store or a cluster that is away."""

from __future__ import annotations

from pipeline.runs.live_run import LiveRun
from pipeline.runs.progress import Progress
from pipeline.runs.report.format import count
from pipeline.runs.run_view import RunView


def waited_for(view: RunView) -> str:
    """Which job is waited for, as another run or machine makes it, and whose that is; "" where none is."""
    if not view.waiting:
        return ""
    job_id, reason = next(iter(view.waiting.items()))
    others = len(view.waiting) - 1
    more = f"; and for {count(others, 'more job')} of others" if others else ""
    return f"waiting for {job_id}: {reason}{more}"


def notices(view: RunView, told: LiveRun | Progress | None) -> list[str]:
    """Lines for a screen.

    Args:
        view: The run.
        told: What its engine says of its shared store and of where its workers live.
    """
    return [line for line in (waited_for(view), *said_of(told)) if line]


def said_of(told: LiveRun | Progress | None) -> list[str]:
    """What an engine says of its shared store and of where its workers live."""
    return [line for line in (told.shared_store, told.cluster) if line] if told else []
