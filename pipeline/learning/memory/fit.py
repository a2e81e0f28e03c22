"""Estimate the memory of training or generation, and find a layout that fits on the GPUs.

The fewest GPUs that suffice are used; a model that does not fit is rejected, with the missing memory and advice.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from pipeline.config.schema import DType, Optimizer, Sharding, Strategy
from pipeline.errors import DeviceError
from pipeline.machine.memory import USABLE_SHARE, usable_bytes

# -- training ----------------------------------------------------------------------------------------------------
# Memory of training on each GPU, by arithmetic alone.
#
#     per GPU:  weights + gradients + optimizer state   (N parameters, divided by D GPUs as the layout says)
#               + what is gathered or copied to work with + activations and logits of one micro-batch
#     usable:   0.9 of what is free, less 1 GB          (fragmentation; CUDA context and NCCL of each process)
#
# The terms are those of ZeRO (arXiv 1910.02054) for N and D, and of arXiv 2205.05198 for activations of a
# transformer whose feed-forward layer is four times as wide, and whose attention stores no scores. It is an
# estimate; a training step is the measure.


GB = 10**9
LOGITS_AT_ONCE = 1 << 27
"""Tokens times vocabulary entries for which training on a GPU computes logits at a time."""
_BYTES_OF_A_LOGIT = 12
"""Logits as computed, in float32, their log-softmax and their gradient: 11 to 13 bytes were measured."""
WEIGHT_BYTES = GRADIENT_BYTES = 4
"""Bytes of a trained number, whatever type the computation uses."""
STATE_BYTES = {Optimizer.adamw: 8, Optimizer.adamw_8bit: 2, Optimizer.muon: 4}
"""Bytes of optimizer state for each trained number."""


class StateLayout(Enum):
    """Layout of weights, gradients and optimizer state."""

    single = "single"
    ddp = "ddp"
    shard_grad_op = "shard_grad_op"  # gradients and optimizer state are spread
    full_shard = "full_shard"  # weights as well


_SPREAD = {
    StateLayout.single: "",
    StateLayout.ddp: "",
    StateLayout.shard_grad_op: "go",
    StateLayout.full_shard: "wgo",
}
"""Parts that each layout divides by the number of GPUs: (w)eights, (g)radients, (o)ptimizer state."""
_HALF_A_DIGIT = 0.0005
"""Half of the last digit of a number with three digits: from 999.5 on it is shown as 1000, in the next unit."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a model that decide its memory; `pipeline.learning.memory.shape` reads them from a configuration.

    Attributes:
        name: Name for messages.
        parameters: Parameters, shared ones once.
        layers: Transformer blocks.
        hidden: Width of the residual stream.
        vocabulary: Entries of the output layer.
        largest_unit: Parameters of the largest part that FSDP gathers at once.
        lora_width: Parameters of adapters of rank 1 on all layers that take some.
        cached: Numbers cached for each token of a generated text: keys and values of all layers.
        widths: Numbers of GPUs over which it can be split to generate, the fewest first.
    """

    name: str
    parameters: int
    layers: int = 0
    hidden: int = 0
    vocabulary: int = 0
    largest_unit: int = 0
    lora_width: int = 0
    cached: int = 0
    widths: tuple[int, ...] = (1,)

    @property
    def size(self) -> str:
        """Number of parameters with a unit: ``1.54 B``, ``135 M``, ``76.1 k``."""
        for unit, limit in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
            if self.parameters >= limit * (1 - _HALF_A_DIGIT):
                return f"{float(f'{self.parameters / limit:.3g}'):g} {unit}"
        return str(self.parameters)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Settings with which the model is trained.

    Attributes:
        batch: Sequences of one micro-batch on one GPU; accumulated steps add nothing.
        tokens: Tokens of a sequence.
        dtype: `system.dtype`.
        optimizer: The optimizer.
        checkpointing: Whether activations are computed again in the backward pass.
        lora_rank: Train adapters of this rank on frozen weights; 0 trains everything.
    """

    batch: int = 1
    tokens: int = 1024
    dtype: DType = DType.bfloat16
    optimizer: Optimizer = Optimizer.adamw
    checkpointing: bool = False
    lora_rank: int = 0


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes on each GPU by purpose; and of the machine's memory, for each GPU."""

    weights: int
    gradients: int
    optimizer: int
    buckets: int
    gathered: int
    activations: int
    logits: int
    host: int = 0

    @property
    def state(self) -> int:
        """Weights, gradients and optimizer state on the GPU."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        """Sum of all memory on the GPU."""
        return self.state + self.buckets + self.gathered + self.activations + self.logits


def bytes_of(dtype: DType) -> int:
    """Return the bytes of a number in the type."""
    return 4 if dtype is DType.float32 else 2


def training_footprint(
    shape: ModelShape,
    work: Workload,
    layout: StateLayout = StateLayout.single,
    gpus: int = 1,
    *,
    offload: bool = False,
) -> Footprint:
    """Estimate the memory of training on each GPU.

    Args:
        shape: The model.
        work: Settings of the training.
        layout: Layout of weights, gradients and optimizer state.
        gpus: Number of GPUs, all in one machine.
        offload: Keep sharded values in the machine's memory.
    """
    # float16 trainings compute in float32; only frozen weights are stored in float16.
    compute = 2 if work.dtype is DType.bfloat16 else 4
    trained = work.lora_rank * shape.lora_width if work.lora_rank else shape.parameters
    frozen = shape.parameters * bytes_of(work.dtype) if work.lora_rank else 0
    spread = _SPREAD[layout]
    # autocast keeps a second copy of weights that are not sharded.
    copies = 0 if spread or compute == 4 else trained * compute
    sizes = {
        "w": trained * WEIGHT_BYTES + copies + frozen,
        "g": trained * GRADIENT_BYTES,
        "o": trained * STATE_BYTES[work.optimizer],
    }
    parts = {name: size // gpus if name in spread else size for name, size in sizes.items()}
    moved = {name: size for name, size in parts.items() if offload and name in spread}
    kept = parts | dict.fromkeys(moved, 0)
    logits = work.batch * work.tokens * shape.vocabulary
    return Footprint(
        weights=kept["w"],
        gradients=kept["g"],
        optimizer=kept["o"],
        buckets=sizes["g"] if layout is StateLayout.ddp else 0,
        # The current block and the next one, fetched ahead.
        gathered=2 * shape.largest_unit * compute if "w" in spread else 0,
        activations=activation_bytes(shape, work, compute),
        # Where weights are spread the output layer is there only while the whole model runs.
        logits=(logits if spread else min(logits, LOGITS_AT_ONCE)) * _BYTES_OF_A_LOGIT,
        host=sum(moved.values()),
    )


def activation_bytes(shape: ModelShape, work: Workload, compute: int = 2) -> int:
    """Estimate the activations that one micro-batch keeps for the backward pass (arXiv 2205.05198, section 4)."""
    if not shape.layers:
        return 0
    width = work.batch * work.tokens * shape.hidden * compute // 2
    # With checkpointing the input of each layer is kept, and all activations of one layer at a time.
    return width * (34 + 2 * shape.layers if work.checkpointing else 34 * shape.layers)


@dataclass(frozen=True, kw_only=True)
class TriedLayout:
    """One layout of a training, and whether it fits.

    Attributes:
        layout: Layout of weights, gradients and optimizer state.
        gpus: Number of GPUs.
        offload: Whether sharded values are in the machine's memory.
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
        """Label such as ``full_shard + cpu offload on 4 GPUs``."""
        offload = " + cpu offload" if self.offload else ""
        return f"{self.layout.name}{offload} on {self.gpus} GPU{'s' if self.gpus != 1 else ''}"

    @property
    def short(self) -> int:
        """Bytes that are missing on each GPU; 0 if it fits."""
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
    """All layouts that were tried, in order, and the first that fits."""

    shape: ModelShape
    work: Workload
    trials: tuple[TriedLayout, ...]

    @property
    def chosen(self) -> TriedLayout | None:
        """The first layout that fits: the simplest strategy, on the fewest GPUs."""
        return next((trial for trial in self.trials if trial.fits), None)

    def require(self) -> TriedLayout:
        """Return the first layout that fits.

        Raises:
            DeviceError: No layout fits; the message names what the nearest one lacks, and what may help.
        """
        if self.chosen:
            return self.chosen
        near = min(self.trials, key=lambda trial: trial.short + trial.host_short // trial.gpus)
        raise DeviceError(
            f"{self.shape.name} ({self.shape.size} parameters) does not fit. Nearest: {near.label} "
            f"{near.verdict}. Try a smaller --batch (training.micro_batch_size), --checkpointing "
            "(training.gradient_checkpointing=true), --lora-rank 16 (algos.<NAME>.lora.rank=16), or more GPUs "
            "(training.gpus_per_job with training.strategy=fsdp)"
        )

    def shown(self) -> list[TriedLayout]:
        """Return one trial of each strategy: the first that fits, else the one on most GPUs."""
        groups: dict[tuple[StateLayout, bool], list[TriedLayout]] = {}
        for trial in self.trials:
            groups.setdefault((trial.layout, trial.offload), []).append(trial)
        return [next((one for one in group if one.fits), group[-1]) for group in groups.values()]


def fit(
    shape: ModelShape,
    work: Workload,
    counts: Iterable[int],
    free_bytes: Callable[[int], int],
    *,
    host_bytes: int,
    strategy: Strategy = Strategy.auto,
    sharding: Sharding = Sharding.full_shard,
    offload: bool = False,
) -> Fit:
    """Try layouts of a training on some GPUs: the simplest first, each on the fewest GPUs first.

    Args:
        shape: The model.
        work: Settings of the training.
        counts: Numbers of GPUs to try, in increasing order.
        free_bytes: Maps a number n of GPUs to the free bytes of the fullest among the n best GPUs.
        host_bytes: Free memory of the machine.
        strategy: Strategy to try; `auto` tries all.
        sharding: Sharding of `fsdp`.
        offload: Offloading of `fsdp`.

    Raises:
        DeviceError: There is no GPU, or none that the strategy can use.
    """
    counts = [*counts]
    trials = [
        TriedLayout(
            layout=layout,
            gpus=count,
            offload=offloaded,
            need=training_footprint(shape, work, layout, count, offload=offloaded),
            usable=usable_bytes(free_bytes(count)),
            host_usable=int(USABLE_SHARE * host_bytes),
        )
        for layout, offloaded in _layouts(strategy, sharding, offload)
        for count in counts
        if (count == 1) is (layout is StateLayout.single)
    ]
    if not trials:
        raise DeviceError(
            f"strategy={strategy.name} cannot use {counts[-1] if counts else 0} GPUs: `single` takes one, the "
            "others two or more. For other GPUs than those of this machine write --gpus 8 --memory 80"
        )
    return Fit(shape=shape, work=work, trials=tuple(trials))


def _layouts(strategy: Strategy, sharding: Sharding, offload: bool) -> Iterator[tuple[StateLayout, bool]]:
    if strategy is Strategy.fsdp:
        # FSDP without sharding copies everything, like DDP.
        yield StateLayout.ddp if sharding is Sharding.no_shard else StateLayout[sharding.name], offload
    elif strategy is not Strategy.auto:
        yield StateLayout[strategy.name], False
    else:
        yield from ((layout, False) for layout in StateLayout)
        yield StateLayout.full_shard, True


def _gb(number: int) -> str:
    return f"{number / GB:.1f} GB"


# -- writing -----------------------------------------------------------------------------------------------------

_BYTES_OF_A_DRAWN_LOGIT = 16
"""Logits as computed, in float32, as log-probabilities, and after a nucleus or candidates."""


def writing_footprint(shape: ModelShape, rows: int, tokens: int, dtype: DType, gpus: int = 1) -> dict[str, int]:
    """Estimate the memory of generation on each GPU by purpose, for rows of one length.

    Args:
        shape: Shape of the model, without a guiding model, which each GPU would hold whole.
        rows: Texts at once. A batch that does not fit is halved automatically; weights are not.
        tokens: Tokens of a text, including its prompt.
        dtype: Type of weights and cache.
        gpus: Number of GPUs that share weights, keys and values.
    """
    size = bytes_of(dtype)
    return {
        "weights": shape.parameters * size // gpus,
        "texts": shape.cached * rows * tokens * size // gpus,
        "logits": rows * shape.vocabulary * _BYTES_OF_A_DRAWN_LOGIT,
    }
