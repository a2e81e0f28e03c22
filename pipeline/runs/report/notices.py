"""What keeps a run from going on as planned: work of others that it waits for, a shared store that is away."""

from __future__ import annotations

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


def notices(view: RunView, shared_store: str) -> list[str]:
    """Lines for a screen.

    Args:
        view: The run.
        shared_store: What there is to say of the way to its shared store, or "".
    """
    return [line for line in (waited_for(view), shared_store) if line]
