"""How several ranks share a model where the request leaves that open: the simplest way that should fit.

Decided by the ranks, who have the devices, from what is free there and the model of `learning.memory.training`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from pipeline.config.schema import Sharding, Strategy
from pipeline.errors import JobError
from pipeline.learning.memory.fit import fit
from pipeline.learning.memory.training import GB, ModelShape, StateLayout, Workload, training_footprint
from pipeline.learning.training.distributed import Ranks, Spread
from pipeline.machine.memory import memory_available_bytes, usable_bytes


def choose_spread(
    shape: ModelShape, work: Workload, size: int, *, free_bytes: int, host_bytes: int
) -> tuple[Spread, str]:
    """The simplest strategy that fits on a number of equal devices.

    Args:
        shape: The model.
        work: How it is trained.
        size: Devices.
        free_bytes: Of the fullest of them.
        host_bytes: Free memory of the machine.

    Returns:
        The strategy, and why: what others lack. Where nothing fits, the one that needs least: the estimate is one,
        and micro-batches that turn out too large are halved.
    """
    found = fit(shape, work, size, lambda _: free_bytes, host_bytes=host_bytes, num_gpus=size)
    chosen = found.chosen or min(found.trials, key=lambda trial: (trial.short, trial.host_short))
    before = found.trials[: found.trials.index(chosen) + 1]
    reasons = "; ".join(f"{trial.label} {trial.verdict}" for trial in before)
    if chosen.layout is StateLayout.ddp:
        return Spread(strategy=Strategy.ddp), reasons
    sharding = Sharding[chosen.layout.name]
    return Spread(strategy=Strategy.fsdp, sharding=sharding, cpu_offload=chosen.offload), reasons


def refuse_what_cannot_fit(shape: ModelShape, work: Workload, total_bytes: int, *, adapters: bool) -> None:
    """Refuse a training on one GPU that not even the smallest micro-batch makes fit, before anything is loaded.

    The second step would run out of memory, with the optimizer's state there, which nothing recovers from.

    Args:
        shape: The model.
        work: How it is trained, with the tokens of the longest sequence.
        total_bytes: Of the GPU, whoever has some of it now.
        adapters: Whether the algorithm can train adapters instead.

    Raises:
        JobError: It needs more than there is; says what would fit.
    """
    least, usable = replace(work, batch=1), usable_bytes(total_bytes)
    need = training_footprint(shape, least).total
    if need <= total_bytes:  # more than is usable may fit: what a GPU has not at all cannot
        return
    ways = []
    if not work.checkpointing and training_footprint(shape, replace(least, checkpointing=True)).total <= usable:
        ways.append("training.gradient_checkpointing=true")
    ways += [
        f"training.gpus_per_job={gpus} with training.strategy=fsdp"
        for gpus in (2, 4, 8)
        if training_footprint(shape, least, StateLayout.full_shard, gpus).total <= usable
    ][:1]
    if work.lora_rank is None and adapters:
        ways.append("lora.rank=16, which trains adapters alone")
    ways.append("a smaller model")
    raise JobError(
        f"training all of {shape.name} ({shape.size} parameters) takes some {need / GB:.0f} GB of one GPU with "
        f"micro-batches of 1 and {work.tokens:,} tokens, and it has {total_bytes / GB:.0f} GB. "
        f"Try {', or '.join(ways)}"
    )


def settle(ranks: Ranks, read: Callable[[], tuple[ModelShape, Workload]] | None) -> None:
    """Choose where `auto` was asked for. All ranks must call it.

    Args:
        ranks: Changed in place.
        read: Says what the model is and how it is trained, where a GPU's memory is the question; None for one that
            fits anywhere.
    """
    if ranks.spread.strategy is not Strategy.auto:
        return
    if read is None or not ranks.device.startswith("cuda"):
        ranks.spread = Spread(strategy=Strategy.ddp)
        return
    shape, work = read()
    free, _ = torch.cuda.mem_get_info(torch.device(ranks.device))
    ranks.spread, reasons = choose_spread(
        shape,
        work,
        ranks.size,
        free_bytes=ranks.least(free),
        host_bytes=ranks.least(memory_available_bytes()),
    )
    if ranks.is_first:
        print(f"training.strategy=auto: {ranks}. {reasons}", flush=True)  # noqa: T201 - the job's log
