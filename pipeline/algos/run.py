"""The entry of every stage: rebuilds the configuration in the worker and calls the algorithm's method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.algos.base import JobContext
from pipeline.algos.registry import load_algorithm
from pipeline.config.load import stage_config_from_plain
from pipeline.config.own_code import check_unchanged

if TYPE_CHECKING:
    from pipeline.workers.work import Work

_MODELS = "models"


def run_stage(work: Work) -> None:
    """Run one stage, or one shard of it, inside a worker.

    Args:
        work: Its payload is what `plan.build` made: algorithm, seed, round, stage, rows and the sections of the
            configuration that the stage declared.
    """
    payload = work.payload
    check_unchanged(payload.get("code", {}))
    config = stage_config_from_plain(payload["config"])
    algorithm = load_algorithm(payload["algo"], payload["class_path"])()
    with work.loading():
        prepare_torch(config.system.cpu_threads if hasattr(config, "system") else 1)
    from pipeline.models.cache import ModelCache

    if _MODELS not in work.memory:
        work.memory[_MODELS] = ModelCache(int(payload["models_in_memory"]))

    def progress(done: int, *, total: int | None = None, tokens: int = 0) -> None:
        work.progress(done, int(payload["samples"]) if total is None else total, tokens)

    context = JobContext(
        job_id=work.job_id,
        algo=payload["algo"],
        seed=int(payload["seed"]),
        round=int(payload["round"]),
        rows=(int(payload["rows"][0]), int(payload["rows"][1])),
        config=config,
        inputs=work.inputs,
        out=work.out,
        device=work.device,
        checkpoints=work.checkpoints,
        checkpoint_every_steps=int(payload["checkpoint_every_steps"]),
        checkpoint_every_minutes=float(payload["checkpoint_every_minutes"]),
        hints=work.hints,
        models=work.memory[_MODELS],
        loading=work.loading,
        progress=progress,
        stopping=work.stopping,
    )
    getattr(algorithm, payload["stage"])(context)


def prepare_torch(threads: int) -> None:
    """Make what torch computes depend on nothing but the job."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    # Warn only: a few backward kernels on GPUs have no deterministic version.
    torch.use_deterministic_algorithms(True, warn_only=True)
