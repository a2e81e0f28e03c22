"""The entry of every stage: rebuilds the configuration in the worker and calls the algorithm's method."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pipeline.config.plain import stage_config_from_plain
from pipeline.config.schema import BY_TENSORS, DType, Sharding, StageConfig, Strategy
from pipeline.config.user_code import check_unchanged
from pipeline.errors import ConfigError, JobError
from pipeline.learning.algos import LOADING
from pipeline.learning.algos.base import JobContext, Stage
from pipeline.learning.algos.policy_config import PolicyAlgoConfig
from pipeline.learning.algos.registry import load_algorithm
from pipeline.learning.algos.reward_stage import REWARD
from pipeline.learning.models.cache import ModelCache, scratch_in
from pipeline.learning.models.flops import metered
from pipeline.machine.memory import imported_for_good

if TYPE_CHECKING:
    from pipeline.engine.workers.work import Work
    from pipeline.learning.memory.fit import ModelShape, Workload
    from pipeline.learning.training.distributed import Ranks


# -- torch setup -------------------------------------------------------------------------------------------------
# How torch is set up in a process that runs stages: as soon as one of them imports it, which some never do.


_LARGE = ("transformers", "transformers.modeling_utils")
"""Modules that import, with themselves, most of what takes long besides torch."""


def prepare_torch(threads: int, device: str = "cpu", *, trains: bool = False, exact: bool = True) -> None:
    """Make what torch computes depend on nothing but the job: now, or where it is not imported yet, once it is.

    Importing torch and transformers takes seconds, so it is left to the stages that compute with them.

    Args:
        threads: That torch may use.
        device: ``cpu`` or ``cuda``.
        trains: Whether the stage trains a model; the others only read and draw.
        exact: As `training.deterministic`.
    """
    when_imported("torch", partial(_set_up_torch, threads, device.startswith("cuda") and exact, trains))
    when_imported("transformers.utils.logging", _hide_progress_bars)
    for name in _LARGE:
        when_imported(name, _nothing)


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Do something now if a module is imported, else right after its import, once.

    Args:
        name: Of the module, in full.
        act: Asked for again under the same name before the import, it takes the place of the one before.
    """
    if name in sys.modules:
        act()
        return
    sys.meta_path[:] = [one for one in sys.meta_path if not (isinstance(one, _AtImport) and one.name == name)]
    sys.meta_path.insert(0, _AtImport(name, act))


class _AtImport(MetaPathFinder):
    """Finds one module as the others on `sys.meta_path` do, and acts when it is there."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self.name, self._act = name, act

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """How Python asks; None for every other module."""
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._act_after(spec.loader)
        return spec

    def _act_after(self, loader: Loader) -> None:
        """Change this one loader, this one time: the module keeps the loader that it always has."""
        execute = loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            del loader.exec_module
            with imported_for_good():
                execute(module)
            self._act()

        loader.exec_module = execute_and_act  # type: ignore[method-assign]


def _nothing() -> None:
    """Large modules need no more than to be imported as such."""


def _set_up_torch(threads: int, by_stage: bool, trains: bool) -> None:
    import torch

    torch.set_num_threads(threads)
    # Else whatever is made empty is filled with NaN first, which takes longer on a GPU than much that is computed.
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False
    if not by_stage:
        torch.use_deterministic_algorithms(True, warn_only=True)
    elif trains:
        # Not to warn only: the backward passes of attention look whether they must, and take other kernels if not.
        torch.use_deterministic_algorithms(True)
    else:
        # Nothing is added up in an order of chance without a backward pass, and scatter would become a sort.
        torch.use_deterministic_algorithms(False)


def _hide_progress_bars() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()


_MODELS = "models"
log = logging.getLogger("pipeline")


def run_stage(work: Work) -> None:
    """Run one stage, or one shard of it, inside a worker.

    Args:
        work: Its payload is what `plan.contents` made: algorithm, seed, round, stage, rows and the sections of the
            configuration that the stage declared.
    """
    payload = work.payload
    check_unchanged(payload.get("code", {}))
    config = stage_config_from_plain(payload["config"])
    algorithm = load_algorithm(payload["algo"], payload["class_path"])()
    stages = algorithm.stages_with(config.algo) if "algo" in payload["config"] else algorithm.stages
    stage = next(stage for stage in stages if stage.name == payload["stage"])
    trains = stage.scales or "training" in stage.config
    threads = config.system.cpu_threads if hasattr(config, "system") else 1
    exact = not hasattr(config, "training") or config.training.deterministic
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
        elif "training" in stage.config:
            _refuse_what_cannot_fit(context, stage)
        if work.limit_mb and stage.loads_models:
            _hold_to_limit(work)
        with _advice_on_determinism():
            getattr(algorithm, payload["stage"])(context)
    work.flops = {purpose: float(count) for purpose, count in meter.flops.items()}
    work.answers = meter.answers


@contextmanager
def _advice_on_determinism() -> Iterator[None]:
    """Say how to go on where a model needs a kernel that has no deterministic version.

    Raises:
        JobError: It does.
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
    """What earlier jobs of this worker have left loaded."""
    if _MODELS not in work.memory:
        work.memory[_MODELS] = ModelCache(int(work.payload["models_in_memory"]))
    models: ModelCache = work.memory[_MODELS]
    models.begin_job()
    return models


def _hold_to_limit(work: Work) -> None:
    """In the first job of a process the limit can be set only once the GPU is in use."""
    import torch

    torch.cuda.init()
    work.hold_to_limit()


def _empty(models: ModelCache) -> None:
    """Let go of what generation has loaded: it takes room from a training, on each worker another amount."""
    engine = sys.modules.get("pipeline.learning.generation.vllm_engine")
    if (engine is not None and engine.release()) | models.drop_unused():
        from pipeline.learning.models.batch_size import free_memory

        free_memory()


def _context(work: Work, config: StageConfig, ranks: Ranks | None) -> JobContext:
    payload = work.payload

    def progress(done: int, *, total: int | None = None, tokens: int = 0) -> None:
        work.progress(done, int(payload["samples"]) if total is None else total, tokens)

    return JobContext(
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


def _joined(work: Work, config: StageConfig) -> AbstractContextManager[Ranks | None]:
    if work.world_size == 1:
        return nullcontext()
    from pipeline.learning.training.distributed import Spread, join

    given = work.payload["spread"]
    if given["strategy"] == BY_TENSORS:
        spread = Spread(by_tensors=True)
    else:
        spread = Spread(
            strategy=Strategy[given["strategy"]],
            sharding=Sharding[given["sharding"]],
            cpu_offload=bool(given["cpu_offload"]),
        )
    dtype = config.system.dtype if hasattr(config, "system") else DType.float32
    return join(work.rank, work.world_size, work.device, spread, dtype)


def _settle(ctx: JobContext, stage: Stage) -> None:
    """Choose how ranks share a model where the request says `auto`, before any model is loaded."""
    from pipeline.learning.training.distributed import settle

    # Without that section it is the tiny reference: nothing of it is there yet, and it fits anywhere.
    settle(ctx.ranks, partial(_what_is_trained, ctx, stage) if hasattr(ctx.config, "training") else None)


def _refuse_what_cannot_fit(ctx: JobContext, stage: Stage) -> None:
    """Look whether a training on one GPU can fit, before any model is loaded."""
    if not ctx.device.startswith("cuda"):
        return
    import torch

    from pipeline.learning.training.distributed import refuse_what_cannot_fit
    from pipeline.learning.training.sequences import longest_sequence

    try:
        shape, work = _what_is_trained(ctx, stage)
        work = replace(work, tokens=longest_sequence(chain.from_iterable(ctx.inputs.values())))
    except (ConfigError, AttributeError, ImportError, KeyError, TypeError, ValueError) as error:
        # Of what cannot be reckoned nothing is refused: a model with code of its own, for one.
        log.info("how much memory this training takes is not known: %s", error)
        return
    _, total = torch.cuda.mem_get_info(torch.device(ctx.device))
    refuse_what_cannot_fit(shape, work, total, adapters=_is_of_policy(ctx, stage))


def _is_of_policy(ctx: JobContext, stage: Stage) -> bool:
    """Whether a stage trains the policy; the others train value models and reward models."""
    return isinstance(ctx.config.algo, PolicyAlgoConfig) and stage.name != REWARD.name


def _what_is_trained(ctx: JobContext, stage: Stage) -> tuple[ModelShape, Workload]:
    from pipeline.learning.algos.opening import reference_source
    from pipeline.learning.memory.fit import Precision, Workload
    from pipeline.learning.memory.shape import read_shape
    from pipeline.learning.models.source import value_folder

    algo, training = ctx.config.algo, ctx.config.training
    rank = algo.lora.rank if isinstance(algo, PolicyAlgoConfig) and stage.name != REWARD.name else 0
    dtype, precision = ctx.config.system.dtype, Precision.float32
    if rank and dtype is not DType.float32:
        precision = Precision.bfloat16  # below adapters weights are read in 16 bits, of either kind
    elif dtype is DType.bfloat16:
        precision = Precision.amp
    work = Workload(
        batch=training.micro_batch_size,
        precision=precision,
        optimizer=training.optimizer,
        checkpointing=training.gradient_checkpointing,
        lora_rank=rank or None,
    )
    with tempfile.TemporaryDirectory(dir=ctx.out) as scratch:
        own = None if _is_of_policy(ctx, stage) else value_folder(ctx.config.model, Path(scratch))
        return read_shape(own or reference_source(ctx)), work
