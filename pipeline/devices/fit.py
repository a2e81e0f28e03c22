"""Which way of sharing a training fits on which GPUs: the simplest on the fewest, with the figures behind it.

Never all GPUs to be on the safe side: what does not fit is refused with what is missing and what would help.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.config.schema import Sharding, Strategy
from pipeline.devices.inventory import Device, Usage, memory_available_bytes, read_machine, visible_gpus
from pipeline.devices.memory import (
    GB,
    USABLE_SHARE,
    Footprint,
    Layout,
    ModelShape,
    Optimizer,
    Precision,
    Workload,
    training_footprint,
    usable_bytes,
)
from pipeline.devices.pick import pick
from pipeline.errors import DeviceError


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One way of sharing a training, and whether it fits.

    Attributes:
        layout: What is spread.
        gpus: Over which.
        offload: Whether what is spread is in the machine's memory.
        need: Bytes on each GPU and of the machine.
        usable: Bytes usable on the fullest of the GPUs.
        host_usable: Bytes usable of the machine's memory.
    """

    layout: Layout
    gpus: tuple[Device, ...]
    offload: bool
    need: Footprint
    usable: int
    host_usable: int

    @property
    def label(self) -> str:
        """As in ``full_shard + cpu offload on 4 GPUs``."""
        offload = " + cpu offload" if self.offload else ""
        return f"{self.layout.name}{offload} on {len(self.gpus)} GPU{'s' if len(self.gpus) != 1 else ''}"

    @property
    def short(self) -> int:
        """Bytes that are missing on each GPU; 0 where it fits."""
        return max(0, self.need.total - self.usable)

    @property
    def host_short(self) -> int:
        """Bytes of the machine's memory that are missing."""
        return max(0, self.need.host * len(self.gpus) - self.host_usable)

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
            need = self.need.host * len(self.gpus)
            return f"needs {_gb(need)} of the machine's memory: {_gb(self.host_short)} short"
        return f"fits: {_gb(self.need.total)} of {_gb(self.usable)} usable"


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Every way that was tried, in order, and the first that fits."""

    shape: ModelShape
    work: Workload
    trials: tuple[Trial, ...]

    @property
    def chosen(self) -> Trial | None:
        """The first that fits: the simplest strategy, on the fewest GPUs."""
        return next((trial for trial in self.trials if trial.fits), None)

    def require(self) -> Trial:
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

    def shown(self) -> list[Trial]:
        """One trial of each strategy: the first that fits, else the one on most GPUs."""
        groups: dict[tuple[Layout, bool], list[Trial]] = {}
        for trial in self.trials:
            groups.setdefault((trial.layout, trial.offload), []).append(trial)
        return [next((one for one in group if one.fits), group[-1]) for group in groups.values()]


def fit(
    shape: ModelShape,
    work: Workload,
    devices: Sequence[Device],
    usage: Mapping[str, Usage],
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
        devices: GPUs to choose from; the idlest of one model are preferred.
        usage: UUID -> what it is doing.
        host_bytes: Free memory of the machine.
        strategy: Which to try; `auto` tries all.
        sharding: Of `fsdp`.
        offload: Of `fsdp`.
        num_gpus: Exactly so many; None tries 1, 2, ... up to all.

    Raises:
        DeviceError: There is no GPU, or fewer than `num_gpus`.
    """
    if not devices:
        raise DeviceError(
            "there is no GPU to fit a model on: say which you have in mind, as in --gpus 8 --memory 80"
        )
    if num_gpus is not None and not 1 <= num_gpus <= len(devices):
        raise DeviceError(f"num_gpus={num_gpus}, but there are {len(devices)} GPUs: use 1 to {len(devices)}")
    trials = []
    for layout, offloaded in _layouts(strategy, sharding, offload):
        for count in _counts(layout, len(devices), num_gpus):
            chosen = _best(devices, usage, count)
            trials.append(
                Trial(
                    layout=layout,
                    gpus=tuple(chosen),
                    offload=offloaded,
                    need=training_footprint(shape, work, layout, count, offload=offloaded),
                    usable=min(usable_bytes(usage[gpu.uuid or ""].free_bytes) for gpu in chosen),
                    host_usable=int(USABLE_SHARE * host_bytes),
                )
            )
    if not trials:
        wanted = f"num_gpus={num_gpus}" if num_gpus is not None else f"{len(devices)} GPU"
        raise DeviceError(
            f"strategy={strategy.name} cannot use {wanted}: `single` takes one GPU, the others two or more"
        )
    return Fit(shape=shape, work=work, trials=tuple(trials))


def fit_model(
    model: str,
    work: Workload,
    *,
    gpus: int | None = None,
    memory_gib: float | None = None,
    strategy: Strategy = Strategy.auto,
    sharding: Sharding = Sharding.full_shard,
    offload: bool = False,
    num_gpus: int | None = None,
) -> Fit:
    """What ``python -m pipeline gpus fit`` answers. Imports torch to read the model's shape.

    Args:
        model: A folder with a `config.json`, or the id of a model on the hub.
        work: How it is trained.
        gpus: How many GPUs to imagine, with `memory_gib` each; None takes those that are visible here.
        memory_gib: Memory of an imagined GPU.
        strategy: As for `fit`, like the others.
        sharding: Of `fsdp`.
        offload: Of `fsdp`.
        num_gpus: Exactly so many.

    Raises:
        ConfigError: There is no such model.
        DeviceError: There is no GPU, or only one of `gpus` and `memory_gib` is given.
    """
    from pipeline.devices.shape import read_shape

    if (gpus is None) != (memory_gib is None):
        raise DeviceError(
            "to plan for other GPUs than those of this machine, give their number and their memory: --gpus 8 "
            "--memory 80 (--num-gpus asks for so many of this machine)"
        )
    if gpus is not None and memory_gib is not None:
        devices, usage = imagined_gpus(gpus, int(memory_gib * 2**30))
    else:
        machine = read_machine()
        devices, usage = visible_gpus(machine, os.environ), dict(machine.usage)
    return fit(
        read_shape(model),
        work,
        devices,
        usage,
        host_bytes=memory_available_bytes(),
        strategy=strategy,
        sharding=sharding,
        offload=offload,
        num_gpus=num_gpus,
    )


def _layouts(strategy: Strategy, sharding: Sharding, offload: bool) -> Iterator[tuple[Layout, bool]]:
    if strategy in (Strategy.auto, Strategy.single):
        yield Layout.single, False
    if strategy in (Strategy.auto, Strategy.ddp):
        yield Layout.ddp, False
    if strategy is Strategy.auto:
        yield from ((Layout.shard_grad_op, False), (Layout.full_shard, False), (Layout.full_shard, True))
    if strategy is Strategy.fsdp:
        # FSDP that shards nothing copies everything, as DDP does.
        yield Layout.ddp if sharding is Sharding.no_shard else Layout[sharding.name], offload


def _counts(layout: Layout, available: int, wanted: int | None) -> Sequence[int]:
    possible = range(1, 2) if layout is Layout.single else range(2, available + 1)
    return [count for count in possible if wanted is None or count == wanted]


def _best(devices: Sequence[Device], usage: Mapping[str, Usage], count: int) -> list[Device]:
    try:
        return pick(devices, usage, count=count, same_model=True)
    except DeviceError:
        return pick(devices, usage, count=count)


def imagined_gpus(count: int, memory_bytes: int) -> tuple[list[Device], dict[str, Usage]]:
    """Idle GPUs that need not exist, to plan for a machine other than this one."""
    devices = [
        Device(kind="cuda", index=index, uuid=f"imagined-{index}", name="GPU", memory_total_bytes=memory_bytes)
        for index in range(count)
    ]
    idle = Usage(used_bytes=0, free_bytes=memory_bytes, total_bytes=memory_bytes)
    return devices, {f"imagined-{index}": idle for index in range(count)}


def _advice(work: Workload, near: Trial) -> str:
    ways = []
    if near.short and near.need.activations + near.need.logits > near.short and work.batch > 1:
        ways.append("a smaller micro-batch with more accumulation")
    if near.short and not work.checkpointing and near.need.activations > near.need.total // 10:
        ways.append("training.gradient_checkpointing=true")
    if work.lora_rank is None:
        ways.append("adapters (LoRA)")
    if work.optimizer is Optimizer.adam:
        ways.append("8-bit Adam")
    if work.precision in (Precision.float32, Precision.amp):
        ways.append("system.dtype=bfloat16")
    return ", ".join([*ways, "or more or larger GPUs"])


def _gb(number: int) -> str:
    return f"{number / GB:.1f} GB"
