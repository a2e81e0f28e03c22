"""Where a run stands, for other programs: all of it as plain data, nothing cut off."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from pipeline.runs.job_logs import log_path
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.progress import Progress
from pipeline.runs.removed import lost_outputs, removed_weights
from pipeline.runs.report.moved import bytes_read
from pipeline.runs.report.status import glance_at, why_it_waits
from pipeline.runs.run_view import AttemptView, JobView, failures


def run_json(run: LoadedRun, now: float) -> dict[str, Any]:
    """One run as plain data, nothing cut off."""
    view, engine = run.view, run.engine_runs()
    counts = view.counts()
    return {
        **asdict(glance_at(run, now)),
        "folder": str(run.folder.path),
        "started_at": None
        if view.started is None
        else datetime.fromtimestamp(view.started).astimezone().isoformat(),
        "interrupted": view.interrupted or None,
        "halted": view.halted or None,
        "pid": view.pid,
        "host": view.host,
        "slurm": dict(run.origin.slurm) or None,
        "nodes": sorted(view.nodes),
        "bytes_read": bytes_read(run),
        "shared_store": dict(view.shared) or None,
        "progress": _progress_json(run.progress),
        "shared_store_away": (run.progress.shared_store if run.progress else "") or None,
        "cluster_silent": (run.progress.cluster if run.progress else "") or None,
        "counts": {**asdict(counts), "pending": counts.left},
        "cells": [
            {"chain": chain, "round": number, **asdict(cell)} for (chain, number), cell in view.cells.items()
        ],
        "running_jobs": [
            _attempt_json(job, job.attempts[-1], now if engine else view.last) for job in view.having("running")
        ],
        "failed_jobs": [
            {
                "job": job.id,
                "kind": job.kind,
                "reason": job.reason,
                "attempts": len(job.attempts),
                "log": str(log) if (log := log_path(run.folder, job.id, attempt)) else None,
            }
            for job, attempt in failures(view)
        ],
        "blocked_jobs": view.blocked_by(),
        "waiting_jobs": {job.id: text for job in view.having("pending") if (text := why_it_waits(job))},
        "quarantined": [asdict(place) for place in view.quarantined],
        "retries": dict(view.retries),
        "unreadable_lines": run.unreadable,
        "weights_removed": removed_weights(run),
        "outputs_lost": lost_outputs(run),
    }


def _attempt_json(job: JobView, attempt: AttemptView, now: float) -> dict[str, Any]:
    return {
        "job": job.id,
        "attempt": attempt.number,
        "worker": attempt.worker,
        "device": attempt.device,
        "elapsed_s": round(attempt.elapsed_s(now), 3),
        "loading": attempt.loading,
        "done": attempt.done,
        "total": attempt.total,
        "tokens": attempt.tokens,
        "numbers": dict(attempt.numbers),
    }


def _progress_json(progress: Progress | None) -> dict[str, float | None] | None:
    if progress is None:
        return None
    names = ("part", "remaining_s", "samples_per_s", "tokens_per_s")
    amounts = {name: getattr(progress, name) for name in names}
    return {name: None if amount is None else round(amount, 4) for name, amount in amounts.items()}
