"""Priorities of a user's own, good and bad."""

import math
import time
from typing import Any

import numpy as np

from pipeline import Config
from pipeline.toolbox import Job

CALLS: list[tuple[Job, Config]] = []
A_NUMBER = 3


def estimate_job_priority(job: Job, cfg: Config) -> int:
    CALLS.append((job, cfg))
    return job.round * 100


def is_pita(job: Job, cfg: Config) -> bool:
    return job.algo == "PITA"


def by_the_clock(job: Job, cfg: Config) -> float:
    return time.monotonic()


def meddles(job: Job, cfg: Config) -> float:
    job.payload["config"] = job.inputs["x"] = job.determined_by["seed"] = 1  # type: ignore[index]
    cfg.generation.temperature = 0.5
    cfg.execution.priority = "other"
    return 1.0


def nothing(job: Job, cfg: Config) -> Any:
    return None


def text(job: Job, cfg: Config) -> Any:
    return "high"


def not_a_number(job: Job, cfg: Config) -> Any:
    return math.nan


def infinite(job: Job, cfg: Config) -> Any:
    return -math.inf


def huge(job: Job, cfg: Config) -> Any:
    return 10**5000


def array(job: Job, cfg: Config) -> Any:
    return np.zeros(3)


def raises(job: Job, cfg: Config) -> Any:
    return 1 / job.round


def leaves(job: Job, cfg: Config) -> Any:
    raise SystemExit(3)


class Unshowable(float):
    def __float__(self) -> float:
        raise RuntimeError("not today")


def unshowable(job: Job, cfg: Config) -> Any:
    return Unshowable()
