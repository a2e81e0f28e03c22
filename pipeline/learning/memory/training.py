"""How much memory a training takes on each GPU, by arithmetic alone.

    per GPU:  weights + gradients + optimizer state   (N parameters, divided by D GPUs as the layout says)
              + what is gathered or copied to work with + activations and logits of one micro-batch
    usable:   0.9 of what is free, less 1 GB          (fragmentation; CUDA context and NCCL of each process)

The terms are those of ZeRO (arXiv 1910.02054) for N and D, and of arXiv 2205.05198 for activations of a
transformer whose feed-forward layer is four times as wide. It is an estimate; a training step is the measure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pipeline.config.schema import Optimizer

GB = 10**9
LOGITS_AT_ONCE = 1 << 27
"""Tokens times entries of the vocabulary for which a policy that is trained on a GPU has logits at a time."""
_BYTES_OF_A_LOGIT = 12
"""As computed, in float32, its log-softmax and its gradient: 11 to 13 were measured."""


class Precision(Enum):
    """What weights, gradients and optimizer state are kept in."""

    float32 = "float32"
    amp = "amp"  # float32, with a 16-bit copy of the weights to compute with (autocast)
    mixed = "mixed"  # 16-bit weights and gradients, float32 master weights and state
    bfloat16 = "bfloat16"  # 16-bit throughout


class StateLayout(Enum):
    """Where weights, gradients and optimizer state are."""

    single = "single"
    ddp = "ddp"
    shard_grad_op = "shard_grad_op"  # gradients and optimizer state are spread
    full_shard = "full_shard"  # weights as well
    hybrid_shard = "hybrid_shard"  # as full_shard, within each machine


_WEIGHT_AND_GRADIENT = {
    Precision.float32: (4, 4),
    Precision.amp: (6, 4),
    Precision.mixed: (2, 2),
    Precision.bfloat16: (2, 2),
}
_STATE = {Optimizer.adamw: 8, Optimizer.adamw_8bit: 2, Optimizer.muon: 4}
"""Bytes per parameter with float32 state; of Muon, of the parameters that it trains itself."""
_SPREAD = {
    StateLayout.single: "",
    StateLayout.ddp: "",
    StateLayout.shard_grad_op: "go",
    StateLayout.full_shard: "wgo",
    StateLayout.hybrid_shard: "wgo",
}
"""What each layout divides by the number of GPUs: (w)eights, (g)radients, (o)ptimizer state."""


_HALF_A_DIGIT = 0.0005
"""Of a number with three digits: from 999.5 on it is told as 1000, in the next unit."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What of a model decides its memory; `pipeline.learning.memory.shape` reads it from a configuration.

    Attributes:
        name: For messages.
        parameters: Shared ones once.
        layers: Transformer blocks.
        hidden: Width of the residual stream.
        heads: Attention heads.
        vocabulary: Entries of the output layer.
        largest_unit: Parameters of the largest part that FSDP gathers at once.
        lora_width: Sum of inputs and outputs of all linear layers but the output layer; adapters of rank r have r
            times as many parameters.
    """

    name: str
    parameters: int
    layers: int = 0
    hidden: int = 0
    heads: int = 0
    vocabulary: int = 0
    largest_unit: int = 0
    lora_width: int = 0

    @property
    def size(self) -> str:
        """How many parameters it has, as people say it: ``1.54 B``, ``135 M``, ``76.1 k``."""
        for unit, limit in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
            if self.parameters >= limit * (1 - _HALF_A_DIGIT):
                return f"{float(f'{self.parameters / limit:.3g}'):g} {unit}"
        return str(self.parameters)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """How the model is trained.

    Attributes:
        batch: Sequences of one micro-batch on one GPU; accumulated steps add nothing.
        tokens: Tokens of a sequence.
        precision: Of weights and state.
        optimizer: Which.
        checkpointing: Whether activations are computed again in the backward pass.
        flash: Whether attention scores are never stored (sdpa, FlashAttention).
        lora_rank: Train adapters of this rank on frozen weights; None trains everything.
    """

    batch: int = 1
    tokens: int = 1024
    precision: Precision = Precision.mixed
    optimizer: Optimizer = Optimizer.adamw
    checkpointing: bool = False
    flash: bool = True
    lora_rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes on each GPU, by what they are for; and of the machine's memory, for each GPU."""

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
        """All of it on the GPU."""
        return self.state + self.buckets + self.gathered + self.activations + self.logits


def bytes_per_parameter(precision: Precision, optimizer: Optimizer) -> tuple[int, int, int]:
    """Bytes of weight, gradient and optimizer state of a parameter that is trained."""
    weight, gradient = _WEIGHT_AND_GRADIENT[precision]
    state = _STATE[optimizer]
    if precision is Precision.mixed:
        state += 4  # the master weights
    if precision is Precision.bfloat16 and optimizer is not Optimizer.adamw_8bit:
        state //= 2
    return weight, gradient, state


def compute_bytes(precision: Precision) -> int:
    """Bytes of a number in the forward pass."""
    return 4 if precision is Precision.float32 else 2


def training_footprint(
    shape: ModelShape,
    work: Workload,
    layout: StateLayout = StateLayout.single,
    gpus: int = 1,
    *,
    offload: bool = False,
) -> Footprint:
    """What a training takes on each GPU.

    Args:
        shape: The model.
        work: How it is trained.
        layout: What is spread.
        gpus: Over how many, of one machine.
        offload: Keep what is spread in the machine's memory.
    """
    weight, gradient, state = bytes_per_parameter(work.precision, work.optimizer)
    compute = compute_bytes(work.precision)
    trained = shape.parameters if work.lora_rank is None else work.lora_rank * shape.lora_width
    remembered = trained * state
    if work.optimizer is Optimizer.muon and work.lora_rank is None:
        # AdamW has the embedding, and an output layer of its own; as if each model had one.
        _, _, of_adamw = bytes_per_parameter(work.precision, Optimizer.adamw)
        remembered += min(trained, 2 * shape.vocabulary * shape.hidden) * (of_adamw - state)
    frozen = 0 if work.lora_rank is None else shape.parameters
    spread = _SPREAD[layout]
    parts = {
        "w": (trained * weight + frozen * compute) // (gpus if "w" in spread else 1),
        "g": trained * gradient // (gpus if "g" in spread else 1),
        "o": remembered // (gpus if "o" in spread else 1),
    }
    host = sum(size for name, size in parts.items() if name in spread) if offload else 0
    kept = {name: 0 if offload and name in spread else size for name, size in parts.items()}
    return Footprint(
        weights=kept["w"],
        gradients=kept["g"],
        optimizer=kept["o"],
        buckets=trained * gradient if layout is StateLayout.ddp else 0,
        # The block that computes and the next one, fetched ahead.
        gathered=2 * shape.largest_unit * compute if "w" in spread else 0,
        activations=activation_bytes(shape, work),
        logits=_logits_at_once(shape, work, layout) * _BYTES_OF_A_LOGIT,
        host=host,
    )


def activation_bytes(shape: ModelShape, work: Workload) -> int:
    """What the forward pass keeps for the backward pass of one micro-batch (arXiv 2205.05198, section 4)."""
    if not shape.layers:
        return 0
    scores = 0.0 if work.flash else 5 * shape.heads * work.tokens / shape.hidden
    width = work.batch * work.tokens * shape.hidden * compute_bytes(work.precision) / 2
    layer = width * (34 + scores)
    # With checkpointing the input of each layer stays, and one layer at a time has everything.
    return int(layer + 2 * width * shape.layers if work.checkpointing else layer * shape.layers)


def _logits_at_once(shape: ModelShape, work: Workload, layout: StateLayout) -> int:
    every = work.batch * work.tokens * shape.vocabulary
    # Where weights are spread the output layer is there only while the whole model runs.
    return every if _SPREAD[layout] else min(every, LOGITS_AT_ONCE)
