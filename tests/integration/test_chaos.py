"""Short versions of `benchmarks/chaos.py`: what is shot at ends in the same bytes as what is left alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.chaos import FILES, TOLERANT, shoot_at
from pipeline.config.schema import RetryConfig
from pipeline.engine.scheduler.job_state import JobStatus
from pipeline.files import file_sha256
from pipeline.plan.job import Job
from tests.doubles.engine import Engine, job
from tests.doubles.small_runs import SMALL, calm_run


def test_an_experiment_that_is_shot_at_gives_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    # With one worker, as each takes seconds to import torch, which dies with its engine; that one dies alone in a
    # training, `test_training_stages` has, and one of several is lost in the test below.
    asked = [*SMALL, "execution.workers=1", *TOLERANT]
    battle = shoot_at(tmp_path / "chaos", asked, worker_kills=0, engine_kills=1, pause_s=4.0)
    calm = calm_run(tmp_path_factory) / "t" / "latest"
    assert battle.digests == {name: file_sha256(calm / name) for name in FILES}
    assert battle.left == []
    assert battle.engine_kills == 1


def layered_plan(lethal: float) -> list[Job]:
    """80 jobs in layers, each reading some of the layer above; a share of them kills its worker once or twice."""
    draw = random.Random(5)
    jobs: list[Job] = []
    for layer in range(10):
        above = [one.id for one in jobs if one.round == layer - 1]
        for index in range(8):
            needs = draw.sample(above, 3) if above else []
            hit, deaths = draw.random() < lethal, draw.choice([1, 2])
            times = deaths if hit else 0
            body = "die_many_times_and_write" if lethal else "write_number"
            payload = {"number": 8 * layer + index, "times": times}
            jobs.append(job(f"l{layer}/{index:02d}", body, needs, payload=payload, round=layer))
    return jobs


def test_eighty_jobs_with_random_deaths_end_in_the_same_bytes(engine: Engine) -> None:
    calm = Engine(engine.root / "calm")
    calm.run(*layered_plan(0.0))
    retry = RetryConfig(worker_lost=10, device_failures=1000)
    outcome = engine.run(*layered_plan(0.2), retry=retry)
    assert set(outcome.jobs.values()) == {JobStatus.done}
    assert len(engine.events("AttemptFailed")) > 10
    assert values(engine) == values(calm)


def values(engine: Engine) -> dict[str, bytes]:
    return {one.id: (engine.store.path(one.key) / "number.txt").read_bytes() for one in layered_plan(0.0)}
