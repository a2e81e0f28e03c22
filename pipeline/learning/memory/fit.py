"""How much memory a model takes that is trained or writes, and which way of sharing it fits on which GPUs.

Never all GPUs to be on the safe side: what does not fit is refused with what is missing and what would help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from pipeline.config.schema import Optimizer, Sharding, Strategy
from pipeline.errors import DeviceError
from pipeline.machine.memory import USABLE_SHARE, usable_bytes

# -- training ----------------------------------------------------------------------------------------------------
# What a training takes on each GPU, by arithmetic alone.
#
#     per GPU:  weights + gradients + optimizer state   (N parameters, divided by D GPUs as the layout says)
#               + what is gathered or copied to work with + activations and logits of one micro-batch
#     usable:   0.9 of what is free, less 1 GB          (fragmentation; CUDA context and NCCL of each process)
#
# The terms are those of ZeRO (arXiv 1910.02054) for N and D, and of arXiv 2205.05198 for activations of a
# transformer whose feed-forward layer is four times as wide. It is an estimate; a training step is the measure.


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
_SPREAD = {StateLayout.single: "", StateLayout.ddp: "", StateLayout.shard_grad_op: "go"}
_SPREAD |= dict.fromkeys((StateLayout.full_shard, StateLayout.hybrid_shard), "wgo")
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


_MORE_GPUS = (2, 4, 8, 16, 32, 64)
"""Numbers of GPUs that are proposed where there are fewer."""
_SAID = {
    "batch": "--batch {0} (training.micro_batch_size={0})",
    "checkpointing": "--checkpointing (training.gradient_checkpointing=true)",
    "lora_rank": "--lora-rank {0} (algos.<NAME>.lora.rank={0} of a method that trains the policy)",
}
"""What a change of a `Workload` is called, as an option and as a setting of a run."""


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

        What leaves the result as it is comes before what trains another thing.
        """
        work = self.work
        halves = [work.batch >> times for times in range(1, work.batch.bit_length())]
        batch = next((size for size in halves if self._fits(replace(work, batch=size))), 1)
        lean: dict[str, Any] = {"batch": batch, "checkpointing": True}
        ways: list[dict[str, Any]] = [{"batch": batch}, {"checkpointing": True}, lean]
        if work.lora_rank is None:
            ways += [{"lora_rank": 16}, {**lean, "lora_rank": 16}]
        fitting = [way for way in ways if self._fits(replace(work, **way))]
        least = [way for way in fitting if not any(less.items() < way.items() for less in fitting)]
        same, adapters = ([way for way in least if ("lora_rank" in way) is lora] for lora in (False, True))
        spread = [
            f"{count} such GPUs (training.gpus_per_job={count} training.strategy=fsdp)"
            for count in _MORE_GPUS
            if count >= self.trials[-1].gpus and self._fits(work, layout=StateLayout.full_shard, gpus=count)
        ]
        return [*map(self._said, same), *spread[:1], *map(self._said, adapters)]

    def _said(self, way: Mapping[str, Any]) -> str:
        changed = {name: value for name, value in way.items() if value != getattr(self.work, name)}
        return ", ".join(_SAID[name].format(value) for name, value in changed.items())

    def _fits(self, work: Workload, **other: Any) -> bool:
        """By any of the ways that were tried; with another layout by the last."""
        tried = [replace(self.trials[-1], offload=False, **other)] if other else self.trials
        return any(
            replace(one, need=training_footprint(self.shape, work, one.layout, one.gpus, offload=one.offload)).fits
            for one in tried
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
        for count in (range(1, 2) if layout is StateLayout.single else range(2, available + 1))
        if num_gpus in (None, count)
    ]
    if not trials:
        wanted = f"num_gpus={num_gpus}" if num_gpus is not None else f"{available} GPU"
        raise DeviceError(
            f"strategy={strategy.name} cannot use {wanted}: `single` takes one GPU, the others two or more"
        )
    return Fit(shape=shape, work=work, trials=tuple(trials))


def _layouts(strategy: Strategy, sharding: Sharding, offload: bool) -> Iterator[tuple[StateLayout, bool]]:
    if strategy is Strategy.fsdp:
        # FSDP that shards nothing copies everything, as DDP does.
        yield StateLayout.ddp if sharding is Sharding.no_shard else StateLayout[sharding.name], offload
    elif strategy is not Strategy.auto:
        yield StateLayout[strategy.name], False
    else:
        for layout in (StateLayout.single, StateLayout.ddp, StateLayout.shard_grad_op, StateLayout.full_shard):
            yield layout, False
        yield StateLayout.full_shard, True


def _gb(number: int) -> str:
    return f"{number / GB:.1f} GB"


# -- decoding ----------------------------------------------------------------------------------------------------
# What writing texts takes on each GPU, and on how few GPUs it fits.
#
#     per GPU:  what is split: weights, keys and values of the policies   (divided by the GPUs that share them)
#               what each has whole: a value model with its keys and values, logits
#
# An estimate for rows of one length; rows that do not fit are halved by themselves, weights are not.


_DECODING_BYTES_OF_A_LOGIT = 16
"""As computed, in float32, as log-probabilities, and as what a nucleus or candidates make of them."""
PROMPT_TOKENS = 512
"""Of a prompt, where nothing is known of prompts."""


@dataclass(frozen=True, kw_only=True)
class DecodingShape:
    """What of a model decides its memory while it writes.

    Attributes:
        parameters: Shared ones once.
        cached: Numbers that are kept of each token of a text: keys and values of all layers.
        vocabulary: Entries of the output layer.
        hidden: Width of the residual stream.
    """

    parameters: int
    cached: int = 0
    vocabulary: int = 0
    hidden: int = 0


@dataclass(frozen=True, kw_only=True)
class DecodingLoad:
    """What writes.

    Attributes:
        policy: The model that texts are drawn from.
        policies: How many such models are held at once: with a trained policy its reference is, too.
        exact: Whether one more is held in float32, to score with.
        value: A value model that guides it, without its head; None where nothing does.
        outputs: Numbers that the head of the value model gives for a token.
        rows: Texts at once.
        tokens: Of a text, with its prompt.
        number_bytes: Of a number.
    """

    policy: DecodingShape
    policies: int = 1
    exact: bool = False
    value: DecodingShape | None = None
    outputs: int = 1
    rows: int
    tokens: int
    number_bytes: int


@dataclass(frozen=True, kw_only=True)
class DecodingFootprint:
    """Bytes on each GPU, by what they are for."""

    weights: int
    cache: int
    value: int
    logits: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.value + self.logits


def shape_of_texts(config: Mapping[str, Any], parameters: int) -> DecodingShape:
    """The shape of a model by its `config.json`; what that does not say counts as in the widespread models.

    Args:
        config: Plain data.
        parameters: Of the model.
    """
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    hidden = _first(text, "hidden_size", "n_embd")
    heads = _first(text, "num_attention_heads", "n_head")
    size = _first(text, "head_dim") or (hidden // heads if heads else 0)
    keys = (_first(text, "num_key_value_heads") or heads) * size
    return DecodingShape(
        parameters=parameters,
        cached=2 * keys * _first(text, "num_hidden_layers", "n_layer"),
        vocabulary=_first(text, "vocab_size"),
        hidden=hidden,
    )


def _first(config: Mapping[str, Any], *names: str) -> int:
    found = next((config[name] for name in names if isinstance(config.get(name), int)), 0)
    return max(0, found)


def decoding_footprint(writing: DecodingLoad, width: int = 1) -> DecodingFootprint:
    """What writing takes on each GPU.

    Args:
        writing: What writes.
        width: GPUs that share its policies.
    """
    policy, value, size = writing.policy, writing.value, writing.number_bytes
    texts = writing.rows * writing.tokens
    held = policy.parameters * (writing.policies * size + 4 * writing.exact)
    guide = 0
    if value is not None:
        guide = (value.parameters + value.hidden * writing.outputs + value.cached * texts) * size
    return DecodingFootprint(
        weights=held // width,
        cache=policy.cached * texts * size // width,
        value=guide,
        logits=writing.rows * policy.vocabulary * _DECODING_BYTES_OF_A_LOGIT,
    )
