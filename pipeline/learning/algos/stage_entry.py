"""Entry of every stage: rebuild the configuration in the worker and call the algorithm's method."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config import plain, schema, user_code
from pipeline.errors import JobError
from pipeline.learning.algos import LOADING, base, policy_config, registry, reward_stage
from pipeline.learning.models.cache import ModelCache, scratch_in
from pipeline.learning.models.flops import metered
from pipeline.machine.memory import imported_for_good

if TYPE_CHECKING:
    from pipeline.engine.workers.work import Work
    from pipeline.learning.memory.fit import ModelShape, Workload
    from pipeline.learning.training.distributed import Ranks


def prepare_torch(threads: int, device: str = "cpu", *, trains: bool = False, exact: bool = True) -> None:
    """Make torch's results depend only on the job. Imports torch and transformers, which takes seconds.

    Args:
        threads: Number of threads for torch.
        device: ``cpu`` or ``cuda``.
        trains: Whether the stage trains a model; other stages only read and draw.
        exact: The setting `training.deterministic`.
    """
    with imported_for_good():
        import torch
        import transformers.modeling_utils  # noqa: F401 - what takes long besides torch
        from transformers.utils import logging
    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    # Otherwise torch fills every empty tensor with NaN, which takes longer on a GPU than much of the computation.
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False
    if not (device.startswith("cuda") and exact):
        torch.use_deterministic_algorithms(True, warn_only=True)
    else:
        # Not warn_only: the backward passes of attention check the mode, and use other kernels if it only warns.
        # Without a backward pass no sum depends on a random order, and scatter would become a slow sort.
        torch.use_deterministic_algorithms(trains)


_MODELS = "models"


def run_stage(work: Work) -> None:
    """Run one stage, or one shard of it, inside a worker.

    Args:
        work: Its payload is made by `plan.contents`: algorithm, seed, round, stage, rows and the sections of the
            configuration that the stage declared.
    """
    payload = work.payload
    user_code.check_unchanged(payload.get("code", {}))
    config = plain.stage_config_from_plain(payload["config"])
    algorithm = registry.load_algorithm(payload["algo"], payload["class_path"])()
    stages = algorithm.stages_with(config.algo) if "algo" in payload["config"] else algorithm.stages
    stage = next(stage for stage in stages if stage.name == payload["stage"])
    trains = stage.scales or "training" in stage.config
    threads = config.system.cpu_threads if hasattr(config, "system") else 1
    exact = not hasattr(config, "training") or config.training.deterministic
    if stage.loads_models or trains:
        with work.loading():
            prepare_torch(threads, work.device, trains=trains, exact=exact)
    LOADING.set(work.loading)
    models = _models(work)
    if trains and work.device.startswith("cuda"):
        _empty(models)
    with scratch_in(work.out), _on_device(work, models), _joined(work, config) as ranks, metered() as meter:
        context = _context(work, config, ranks)
        if ranks and ranks.spread.by_tensors:
            print(f"every policy is shared by {ranks}", flush=True)  # noqa: T201 - the job's log
        elif ranks:
            _settle(context, stage)
        if work.limit_mb and stage.loads_models:
            import torch

            torch.cuda.init()  # in the first job of a process the limit can be set only once the GPU is in use
            work.hold_to_limit()
        with _advice_on_determinism():
            getattr(algorithm, payload["stage"])(context)
    work.flops = {purpose: float(count) for purpose, count in meter.flops.items()}
    work.answers = meter.answers


@contextmanager
def _advice_on_determinism() -> Iterator[None]:
    """Add advice to the error for a model that needs a kernel without a deterministic version.

    Raises:
        JobError: The model needs such a kernel.
    """
    try:
        yield
    except RuntimeError as error:
        if "does not have a deterministic implementation" not in str(error):
            raise
        first = str(error).partition(",")[0]
        raise JobError(
            f"{first}: this model cannot be trained so that the same training gives the same bytes on a GPU. "
            "training.deterministic=false trains it all the same"
        ) from error


def _models(work: Work) -> ModelCache:
    """Return the cache of models loaded by earlier jobs of this worker."""
    if _MODELS not in work.memory:
        work.memory[_MODELS] = ModelCache(int(work.payload["models_in_memory"]))
    models: ModelCache = work.memory[_MODELS]
    models.begin_job()
    return models


def _empty(models: ModelCache) -> None:
    """Drop the models of generation: they take memory from a training, a different amount on each worker."""
    engine = sys.modules.get("pipeline.learning.generation.vllm_engine")
    if (engine is not None and engine.release()) | models.drop_unused():
        from pipeline.learning.models.batch_size import free_memory

        free_memory()


def _context(work: Work, config: schema.StageConfig, ranks: Ranks | None) -> base.JobContext:
    payload = work.payload

    def progress(done: int, *, total: int | None = None, tokens: int = 0) -> None:
        work.progress(done, int(payload["samples"]) if total is None else total, tokens)

    return base.JobContext(
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
        joined=ranks,
        first_sample=int(payload.get("first_sample", 0)),
        greedy=bool(payload.get("greedy", False)),
        models=work.memory[_MODELS],
        loading=work.loading,
        progress=progress,
        stopping=work.stopping,
        show=work.show,
    )


def _on_device(work: Work, models: ModelCache) -> AbstractContextManager[None]:
    if not work.shared and not models.holds_any:
        return nullcontext()  # stages that need no torch do not wait for it
    from pipeline.learning.models.batch_size import on_device

    return on_device(shared=work.shared, make_room=models.drop_unused)


def _joined(work: Work, config: schema.StageConfig) -> AbstractContextManager[Ranks | None]:
    if work.world_size == 1:
        return nullcontext()
    from pipeline.learning.training.distributed import Spread, join

    given = work.payload["spread"]
    if given["strategy"] == schema.BY_TENSORS:
        spread = Spread(by_tensors=True)
    else:
        spread = Spread(
            strategy=schema.Strategy[given["strategy"]],
            sharding=schema.Sharding[given["sharding"]],
            cpu_offload=bool(given["cpu_offload"]),
        )
    dtype = config.system.dtype if hasattr(config, "system") else schema.DType.float32
    return join(work.rank, work.world_size, work.device, spread, dtype)


def _settle(ctx: base.JobContext, stage: base.Stage) -> None:
    """Choose how ranks share a model if the request says `auto`, before any model is loaded."""
    from pipeline.learning.training.distributed import settle

    # Without that section it is the tiny reference: it does not exist yet, and it fits anywhere.
    settle(ctx.ranks, partial(_what_is_trained, ctx, stage) if hasattr(ctx.config, "training") else None)


def _what_is_trained(ctx: base.JobContext, stage: base.Stage) -> tuple[ModelShape, Workload]:
    from pipeline.learning.algos.opening import reference_source
    from pipeline.learning.memory.fit import Workload
    from pipeline.learning.memory.shape import read_shape
    from pipeline.learning.models.source import value_folder

    algo, training = ctx.config.algo, ctx.config.training
    of_policy = isinstance(algo, policy_config.PolicyAlgoConfig) and stage.name != reward_stage.REWARD.name
    work = Workload(
        batch=training.micro_batch_size,
        dtype=ctx.config.system.dtype,
        optimizer=training.optimizer,
        checkpointing=training.gradient_checkpointing,
        lora_rank=algo.lora.rank if isinstance(algo, policy_config.PolicyAlgoConfig) and of_policy else 0,
    )
    with tempfile.TemporaryDirectory(dir=ctx.out) as scratch:
        own = None if of_policy else value_folder(ctx.config.model, Path(scratch))
        return read_shape(own or reference_source(ctx)), work
