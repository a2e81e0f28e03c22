"""Stages that train, in workers that die or are told to stop: the store ends up with the same bytes."""

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config.schema import Backend, RetryConfig
from pipeline.engine.scheduler.state import JobStatus
from pipeline.engine.store.store import Store
from pipeline.plan.build import build_plan
from pipeline.plan.graph import Job
from tests.doubles.composing import quick_config
from tests.doubles.engine import Engine

SMALL = (
    "experiment.name=t",
    "models.tiny.steps=14",
    "models.tiny.batch_size=16",
    "data_collection.prompts_per_round=60",
    "rounds_of_training=1",
    "algos.PITA.enabled=false",
    "algos.QSharp.epochs=3",
    "algos.QSharp.batch_size=16",
    "training.checkpoint_every_steps=4",
)


def stages(entry: str | None = None, **payload: Any) -> list[Job]:
    """The trainings of a small plan and what they read; with another entry where one is given."""
    jobs = [
        job for job in build_plan(quick_config(SMALL)).jobs.values() if job.stage in ("train", "generate", "score")
    ]
    if entry is None:
        return jobs
    trainings = {"entry": f"tests.doubles.training:{entry}"}
    return [
        replace(job, **trainings, payload={**job.payload, **payload}) if job.stage == "train" else job
        for job in jobs
    ]


def outputs(store: Store) -> dict[str, dict[str, bytes]]:
    """Every file of every output but the manifests, which name versions."""
    return {job.id: {path.name: path.read_bytes() for path in store.path(job.key).iterdir()} for job in stages()}


def test_stages_that_are_interrupted_or_fail_or_lose_their_worker_go_on_where_their_trainings_were(
    engine: Engine, tmp_path: Path
) -> None:
    """The first run is interrupted in a training, here; in the second the worker dies in the other one.

    In the third that one loses a connection. That another worker takes over `test_engine_recovery` sees; here it
    would only import torch once more.
    """
    flag = tmp_path / "flag"
    threading.Thread(target=interrupt_when, args=(flag,), daemon=True).start()
    # That a worker is asked likewise, `test_engine_recovery` sees; here it would only import torch once more.
    slow = stages("slow_stage", flag=str(flag), flag_after=11)
    outcome = engine.run(*slow, backend=Backend.inline, workers=1, stop_grace_s=500)
    assert outcome.interrupted == "SIGINT"
    assert [one.outcome for one in outcome.attempts] == ["stopped"]
    interrupted, other = sorted((job for job in stages() if job.stage == "train"), key=lambda job: job.round)
    assert interrupted.algo == "reference"
    assert "stopped: at step 11; the next attempt goes on from step 11" in engine.log(interrupted.id)
    kept = engine.store.checkpoints(interrupted.key) / "reference"
    assert [path.name for path in kept.iterdir()] == ["step-00000011"]

    dying = stages("stage", die_after=[7])
    outcome = engine.run(*dying, workers=1, retry=RetryConfig(worker_lost=1))
    failed = [name for name, status in outcome.jobs.items() if status is JobStatus.failed]
    assert failed == [other.id]
    assert [one["kind"] for one in engine.events("AttemptFailed")] == ["lost"]
    assert "going on from the checkpoint of step 11\n" in engine.log(interrupted.id)
    assert "going on" not in engine.log(other.id)

    stored = [name for name, status in outcome.jobs.items() if status is JobStatus.done]
    failing = stages("failing_stage", fail_after=9)
    outcome = engine.run(*failing, backend=Backend.inline, workers=1, stored=stored)
    assert outcome.jobs[other.id] is JobStatus.done
    assert "going on from the checkpoint of step 4\n" in engine.log(other.id)
    assert "going on from the checkpoint of step 8\n" in engine.log(other.id, 2)
    calm = Engine(tmp_path / "calm")
    calm.run(*stages(), backend=Backend.inline)
    assert outputs(engine.store) == outputs(calm.store)
    for job in (interrupted, other):
        assert not engine.store.checkpoints(job.key).exists()


def interrupt_when(flag: Path) -> None:
    deadline = time.monotonic() + 200
    while not flag.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
