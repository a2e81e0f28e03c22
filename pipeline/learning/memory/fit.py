"""Which way of sharing a training fits on which GPUs: the simplest on the fewest, with the figures behind it.

Never all GPUs to be on the safe side: what does not fit is refused with what is missing and what would help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.config.schema import Sharding, Strategy
from pipeline.errors import DeviceError
from pipeline.learning.memory.training import (
    GB,
    Footprint,
    ModelShape,
    StateLayout,
    Workload,
    training_footprint,
)
from pipeline.machine.memory import USABLE_SHARE, usable_bytes

_MORE_GPUS = (2, 4, 8, 16, 32, 64)
"""Numbers of GPUs that are proposed where there are fewer."""


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
        near = min(self.trials, key=lambda trial: trial.short + trial.host_short // trial.gpus)
        ways = self.changes_that_fit()
        last = "a smaller model or larger GPUs"
        raise DeviceError(
            f"{self.shape.name} ({self.shape.size} parameters) does not fit. "
            f"Nearest: {near.label} {near.verdict}. "
            + (f"Each of these fits, the smallest change first: {'; '.join(ways)}" if ways else f"Try {last}")
        )

    def changes_that_fit(self) -> list[str]:
        """What could be changed so that it fits, the smallest change first: options, and the settings of a run.

        What leaves the result as it is comes before what trains another thing, one change before two.
        """
        work = self.work
        small = [replace(work, batch=size) for size in _halves(work.batch)]
        again = [] if work.checkpointing else [replace(work, checkpointing=True)]
        both = [replace(each, checkpointing=True) for each in small if again]
        same = [self._said(fitting) for ways in (small, again) if (fitting := self._first(ways))]
        if not same and (fitting := self._first(both)):
            same = [self._said(fitting)]
        lean = [work] if same else [work, *small, *again, *both]
        adapters = [] if work.lora_rank is not None else [replace(each, lora_rank=16) for each in lean]
        more = next(
            (count for count in _MORE_GPUS if count >= self.trials[-1].gpus and self._fits_on(count)), None
        )
        frozen = [self._said(fitting)] if (fitting := self._first(adapters)) else []
        spread = f"{more} such GPUs (training.gpus_per_job={more} training.strategy=fsdp)"
        return [*same, *([spread] if more else []), *frozen]

    def _first(self, ways: Sequence[Workload]) -> Workload | None:
        return next(
            (work for work in ways if any(_on(self.shape, work, trial).fits for trial in self.trials)), None
        )

    def _fits_on(self, count: int) -> bool:
        trial = replace(self.trials[-1], layout=StateLayout.full_shard, gpus=count, offload=False)
        return _on(self.shape, self.work, trial).fits

    def _said(self, work: Workload) -> str:
        options, settings = [], []
        if work.batch != self.work.batch:
            options.append(f"--batch {work.batch}")
            settings.append(f"training.micro_batch_size={work.batch}")
        if work.checkpointing != self.work.checkpointing:
            options.append("--checkpointing")
            settings.append("training.gradient_checkpointing=true")
        if work.lora_rank != self.work.lora_rank:
            options.append(f"--lora-rank {work.lora_rank}")
            settings.append(f"algos.<NAME>.lora.rank={work.lora_rank} of a method that trains the policy")
        return f"{' '.join(options)} ({' '.join(settings)})"

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


def _halves(batch: int) -> list[int]:
    found = []
    while batch > 1:
        batch //= 2
        found.append(batch)
    return found


def _on(shape: ModelShape, work: Workload, trial: TriedLayout) -> TriedLayout:
    need = training_footprint(shape, work, trial.layout, trial.gpus, offload=trial.offload)
    return replace(trial, need=need)


def _gb(number: int) -> str:
    return f"{number / GB:.1f} GB"
