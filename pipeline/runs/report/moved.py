"""Where a run ran, and how many bytes moved for it, in words; "" for what there is nothing to say of."""

from __future__ import annotations

from collections.abc import Mapping

from rich.filesize import decimal

from pipeline.config.schema import Backend
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.report.format import count
from pipeline.runs.run_view import RunView


def place_in_words(run: LoadedRun) -> str:
    """As in ``Ray, 24 workers on 3 nodes``; "" for a run without Ray, whose workers are on one machine."""
    execution = run.config.get("execution")
    if not isinstance(execution, dict) or execution.get("backend") != Backend.ray.value or not run.view.workers:
        return ""
    nodes = count(len(run.view.nodes), "node") if run.view.nodes else "one machine"
    return f"Ray, {count(len(run.view.workers), 'worker')} on {nodes}"


def read_and_moved(view: RunView) -> tuple[int, int]:
    """Bytes of inputs that jobs have read on several machines, and those that these neither made nor had read."""
    attempts = [attempt for job in view.jobs.values() for attempt in job.attempts]
    return sum(one.read for one in attempts), sum(one.moved for one in attempts)


def bytes_read(run: LoadedRun) -> dict[str, dict[str, int]]:
    """The same by stage, as ``{"train": {"read": 16000, "moved": 4000}}``; empty on one machine."""
    found: dict[str, dict[str, int]] = {}
    for job in run.view.jobs.values():
        stage = run.jobs[job.id].stage if job.id in run.jobs else ""
        for attempt in job.attempts:
            if attempt.read:
                own = found.setdefault(stage, {"read": 0, "moved": 0})
                own["read"] += attempt.read
                own["moved"] += attempt.moved
    return found


def read_in_words(read: int, moved: int) -> str:
    """As in ``jobs read 95.1 GB, at least 25.0 GB of it over the network``."""
    return f"jobs read {decimal(read)}, at least {decimal(moved)} of it over the network" if read else ""


def origins(view: RunView) -> list[str]:
    """How many outputs that no job of the run made are from where, as ``11 stored before`` and ``5 fetched``."""
    stored = view.counts().stored
    fetched = min(stored, view.shared.get("fetched", 0))
    parts = {"stored before": stored - fetched, "fetched": fetched}
    return [f"{number:,} {what}" for what, number in parts.items() if number]


def moved_in_words(run: LoadedRun) -> list[str]:
    """Lines on where a run ran and what moved for it."""
    shared = shared_in_words(run.view.shared)
    said = (
        place_in_words(run),
        read_in_words(*read_and_moved(run.view)),
        shared and f"shared store: {shared}",
    )
    return [line for line in said if line]


def shared_in_words(traffic: Mapping[str, int]) -> str:
    """As in ``16 outputs fetched (1.2 GB), 40 uploaded (3.4 GB), 2 to go``."""
    parts = []
    if number := traffic.get("fetched", 0):
        parts.append(f"{count(number, 'output')} fetched ({decimal(traffic['fetched_bytes'])})")
    if number := traffic.get("uploaded", 0):
        what = f"{number:,}" if parts else count(number, "output")
        parts.append(f"{what} uploaded ({decimal(traffic['uploaded_bytes'])})")
    if number := traffic.get("left", 0):
        parts.append(f"{number:,} to go")
    return ", ".join(parts)
