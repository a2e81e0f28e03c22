"""Which way of sharing a training fits on which GPUs: the simplest on the fewest, with the figures behind it.

Never all GPUs to be on the safe side: what does not fit is refused with what is missing and what would help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.config.schema import Sharding, Strategy
from pipeline.errors import DeviceError
from pipeline.learning.memory.training import (
    GB,
    Footprint,
    ModelShape,
    Precision,
    StateLayout,
    Workload,
    training_footprint,
)
from pipeline.machine.memory import USABLE_SHARE, usable_bytes


@dataclass(frozen=True, kw_only=True)
class TriedLayout:
    """One way of sharing a training, and whether it fits.

    Attributes:
        layout: What is spread.
        gpus: Over how many.
        offload: Whether what is spread is in the machine's memory.
        need: Bytes on each GPU and of the machine.
        usable: Bytes usable on the fullest of the GPUs.
        host_usable: Bytes usable of the machine's memory.
    """

    layout: StateLayout
    gpus: int
    offload: bool
    need: Footprint
    usable: int
    host_usable: int

    @property
    def label(self) -> str:
        """As in ``full_shard + cpu offload on 4 GPUs``."""
        offload = " + cpu offload" if self.offload else ""
        return f"{self.layout.name}{offload} on {self.gpus} GPU{'s' if self.gpus != 1 else ''}"

    @property
    def short(self) -> int:
        """Bytes that are missing on each GPU; 0 where it fits."""
        return max(0, self.need.total - self.usable)

    @property
    def host_short(self) -> int:
        """Bytes of the machine's memory that are missing."""
        return max(0, self.need.host * self.gpus - self.host_usable)

    @property
    def fits(self) -> bool:
        """Whether nothing is missing."""
        return not self.short and not self.host_short

    @property
    def verdict(self) -> str:
        """Whether it fits and, if not, what is missing."""
        if self.short:
            return (
                f"needs {_gb(self.need.total)} on each GPU, {_gb(self.usable)} are usable: {_gb(self.short)} short"
            )
        if self.host_short:
            need = self.need.host * self.gpus
            return f"needs {_gb(need)} of the machine's memory: {_gb(self.host_short)} short"
        return f"fits: {_gb(self.need.total)} of {_gb(self.usable)} usable"


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Every way that was tried, in order, and the first that fits."""

    shape: ModelShape
    work: Workload
    trials: tuple[TriedLayout, ...]

    @property
    def chosen(self) -> TriedLayout | None:
        """The first that fits: the simplest strategy, on the fewest GPUs."""
        return next((trial for trial in self.trials if trial.fits), None)

    def require(self) -> TriedLayout:
        """The first that fits.

        Raises:
            DeviceError: None does. Says what is missing in the nearest, and what would help.
        """
        if self.chosen:
            return self.chosen
        near = min(self.trials, key=lambda trial: (trial.short, trial.host_short))
        raise DeviceError(
            f"{self.shape.name} ({self.shape.size} parameters) does not fit. Nearest: "
            f"{near.label} {near.verdict}. Try {_advice(self.work, near)}."
        )

    def shown(self) -> list[TriedLayout]:
        """One trial of each strategy: the first that fits, else the one on most GPUs."""
        groups: dict[tuple[StateLayout, bool], list[TriedLayout]] = {}
        for trial in self.trials:
            groups.setdefault((trial.layout, trial.offload), []).append(trial)
        return [next((one for one in group if one.fits), group[-1]) for group in groups.values()]


def fit(
    shape: ModelShape,
    work: Workload,
    available: int,
    free_bytes: Callable[[int], int],
    *,
    host_bytes: int,
    strategy: Strategy = Strategy.auto,
    sharding: Sharding = Sharding.full_shard,
    offload: bool = False,
    num_gpus: int | None = None,
) -> Fit:
    """Try ways of sharing a training on some GPUs, the simplest on the fewest first.

    Args:
        shape: The model.
        work: How it is trained.
        available: GPUs there are to choose from.
        free_bytes: From a number of GPUs to what is free on the fullest of the best so many.
        host_bytes: Free memory of the machine.
        strategy: Which to try; `auto` tries all.
        sharding: Of `fsdp`.
        offload: Of `fsdp`.
        num_gpus: Exactly so many; None tries 1, 2, ... up to all.

    Raises:
        DeviceError: There is no GPU, or fewer than `num_gpus`.
    """
    if not available:
        raise DeviceError(
            "there is no GPU to fit a model on: say which you have in mind, as in --gpus 8 --memory 80"
        )
    if num_gpus is not None and not 1 <= num_gpus <= available:
        raise DeviceError(f"num_gpus={num_gpus}, but there are {available} GPUs: use 1 to {available}")
    trials = []
    for layout, offloaded in _layouts(strategy, sharding, offload):
        for count in _counts(layout, available, num_gpus):
            trials.append(
                TriedLayout(
                    layout=layout,
                    gpus=count,
                    offload=offloaded,
                    need=training_footprint(shape, work, layout, count, offload=offloaded),
                    usable=usable_bytes(free_bytes(count)),
                    host_usable=int(USABLE_SHARE * host_bytes),
                )
            )
    if not trials:
        wanted = f"num_gpus={num_gpus}" if num_gpus is not None else f"{available} GPU"
        raise DeviceError(
            f"strategy={strategy.name} cannot use {wanted}: `single` takes one GPU, the others two or more"
        )
    return Fit(shape=shape, work=work, trials=tuple(trials))


def _layouts(strategy: Strategy, sharding: Sharding, offload: bool) -> Iterator[tuple[StateLayout, bool]]:
    if strategy in (Strategy.auto, Strategy.single):
        yield StateLayout.single, False
    if strategy in (Strategy.auto, Strategy.ddp):
        yield StateLayout.ddp, False
    if strategy is Strategy.auto:
        yield StateLayout.shard_grad_op, False
        yield from ((StateLayout.full_shard, offloaded) for offloaded in (False, True))
    if strategy is Strategy.fsdp:
        # FSDP that shards nothing copies everything, as DDP does.
        kept_whole = sharding is Sharding.no_shard
        yield StateLayout.ddp if kept_whole else StateLayout[sharding.name], offload


def _counts(layout: StateLayout, available: int, wanted: int | None) -> Sequence[int]:
    possible = range(1, 2) if layout is StateLayout.single else range(2, available + 1)
    return [count for count in possible if wanted is None or count == wanted]


def _advice(work: Workload, near: TriedLayout) -> str:
    ways = []
    if near.short and near.need.activations + near.need.logits > near.short and work.batch > 1:
        ways.append(f"training.micro_batch_size={work.batch // 2} with more accumulation")
    if near.short and not work.checkpointing and near.need.activations > near.need.total // 10:
        ways.append("training.gradient_checkpointing=true")
    if work.lora_rank is None:
        ways.append("algos.<NAME>.lora.rank=16 (DPO, GRPO, GRPO-HF, SFT)")
    if work.precision in (Precision.float32, Precision.amp):
        ways.append("system.dtype=bfloat16")
    return ", ".join([*ways, "more GPUs (training.gpus_per_job, training.strategy=fsdp)", "or larger ones"])


def _gb(number: int) -> str:
    return f"{number / GB:.1f} GB"
