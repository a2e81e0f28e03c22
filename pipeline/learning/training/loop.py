"""One training loop for every method: optimizer, warm-up, schedule, clipping, accumulated micro-batches.

Deterministic: the order of the data comes from a seed, nothing is drawn while training, and a step is a function
of the weights, the optimizer's state and the number of the step, all of which `TrainState` holds.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.config.schema import DType, Optimizer, Schedule, TrainingConfig
from pipeline.learning.models.batch_size import MICRO_BATCH, BatchSize, BatchSizes, is_out_of_memory
from pipeline.learning.models.flops import Purpose, metered, model_cost, spend
from pipeline.learning.models.load import checkpoint_activations
from pipeline.learning.training.checkpoint import (
    Checkpoints,
    State,
    random_state,
    restore_optimizer,
    restore_random_state,
    restore_training,
    save_optimizer,
    state_problem,
    training_state,
)
from pipeline.learning.training.curve import Curve, Drawing, add_to_curve, is_drawn, not_drawn
from pipeline.learning.training.distributed import ALONE, Ranks
from pipeline.learning.training.scoring import completion_logprobs, passes_of, without_padding
from pipeline.learning.training.sequences import Batch, Sequences, batch_of, epoch_order

# -- optimizers --------------------------------------------------------------------------------------------------
# Each keeps tensors and plain values alone, as checkpoints can hold.


Group = dict[str, Any]


class Together(torch.optim.Optimizer):
    """Several optimizers of different parameters as one: with one state, in the order of their groups."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._parts = parts

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take a step of each."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        groups = iter(self.param_groups)
        for part in self._parts:
            # Both are other objects once a state has been loaded.
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state
            part.step()
        return loss


def all_at_once(trained: Sequence[nn.Parameter]) -> dict[str, bool]:
    """How AdamW takes many parameters in one go."""
    # On the CPU `foreach` has MKL take square roots, which begin with an approximation of the processor's own.
    fused = all(weight.device.type == "cpu" and not hasattr(weight, "full_tensor") for weight in trained)
    # On a GPU it takes 4 bytes for each parameter at once beside what is kept, `fused` none.
    fused |= all(weight.device.type == "cuda" for weight in trained)
    return {"fused" if fused else "foreach": True}


def _only(groups: Sequence[Group], some: set[int], *, among: bool) -> list[Group]:
    """The groups with those parameters alone that are among some, or are not; none that is empty."""
    found = [
        {**group, "params": [one for one in group["params"] if (id(one) in some) is among]} for group in groups
    ]
    return [group for group in found if group["params"]]


def _hidden_matrices(model: nn.Module) -> set[int]:
    """Ids of what torch says Muon is for: matrices that are neither embeddings nor output layers."""
    others = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    if (outputs := getattr(model, "get_output_embeddings", lambda: None)()) is not None:
        others.add(id(outputs.weight))
    named = model.named_parameters()
    return {
        id(weight)
        for name, weight in named
        if weight.ndim == 2 and id(weight) not in others and not name.startswith("head.")
    }


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How to train.

    Attributes:
        steps: Optimizer steps.
        learning_rate: At its highest.
        head_learning_rate: The same for a value model's head; None takes `learning_rate`.
        optimizer: Which.
        weight_decay: On every parameter.
        betas: Of AdamW.
        epsilon: Likewise.
        grad_clip: Largest norm of the gradient; 0 does not clip.
        warmup_steps: Steps over which the rate rises to its full height.
        schedule: What the rate follows.
        steps_before: Steps of the trainings that this one goes on from, which warm-up and schedule count too.
        horizon: Steps, those before included, over which a schedule falls; None for all of this training, infinity
            for a rate that stays after its warm-up.
        clear_cache_interval: Steps between calls of `torch.cuda.empty_cache`; 0 never.
    """

    steps: int
    learning_rate: float
    head_learning_rate: float | None = None
    optimizer: Optimizer = Optimizer.adamw
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    grad_clip: float = 1.0
    warmup_steps: int = 0
    schedule: Schedule = Schedule.constant_with_warmup
    steps_before: int = 0
    horizon: float | None = None
    clear_cache_interval: int = 0


@dataclass
class TrainState:
    """Everything a training needs to go on: what a checkpoint holds.

    Attributes:
        drawing: Its curve.
        step: Steps done.
        history: The loss of each.
        micro_batch: Sequences at once, which may have had to be fewer than configured.
        ranks: The processes that do this training.
        told: Lists that its losses add to.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    micro_batch: BatchSize
    drawing: Drawing
    ranks: Ranks = ALONE
    told: Mapping[str, list[float]] = field(default_factory=dict)
    step: int = 0
    history: list[float] = field(default_factory=list)

    def snapshot(self) -> State:
        """For a checkpoint."""
        return training_state(
            self.model,
            self.optimizer,
            history=self.history,
            micro_batch_size=self.micro_batch.size,
            curve=[vars(row) for row in self.drawing.rows],
            told=dict(self.told),
        )

    def resume(self, checkpoint: Checkpoints) -> None:
        """Go on from the newest checkpoint, if there is one."""
        saved = checkpoint.latest(lambda found: state_problem(found.state, self.model, self.optimizer))
        if saved is not None:
            own = restore_training(saved.state, self.model, self.optimizer, ranks=self.ranks)
            self.step, self.history = saved.step, list(own["history"])
            self.drawing.begin(self.step, own["curve"])
            for name, values in own["told"].items():
                self.told[name][:] = values
            # Not a size that others have found since: the rest must be what it would have been.
            self.micro_batch.start_at(int(own["micro_batch_size"]))


def rate_at(step: int, settings: TrainSettings) -> float:
    """Learning rate of a step, counted from 0."""
    step += settings.steps_before
    end = settings.horizon or settings.steps_before + settings.steps
    schedule, warmup_steps = settings.schedule, settings.warmup_steps
    if schedule is Schedule.cosine_from_start:
        warmup = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
        gone = min(1.0, step / max(1, end))
        return settings.learning_rate * warmup * 0.5 * (1 + math.cos(math.pi * gone))
    if end == math.inf and schedule.has_end:
        schedule = Schedule.constant_with_warmup
    # With no step after the warm-up there is nothing to fall over; beyond the end a cosine would rise again.
    end = max(end, warmup_steps + 1)
    return settings.learning_rate * _factor(schedule, settings.learning_rate, warmup_steps, end)(min(step, end))


@lru_cache
def _factor(schedule: Schedule, learning_rate: float, warmup_steps: int, steps: float) -> Callable[[float], float]:
    """From a step to what transformers' scheduler multiplies the rate by."""
    from transformers import get_scheduler  # after the device has been pinned, and only where one is asked for

    nothing = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=learning_rate)
    found: Callable[[float], float] = get_scheduler(
        schedule.value, nothing, num_warmup_steps=warmup_steps, num_training_steps=cast("int", steps)
    ).lr_lambdas[0]
    return found


def train(
    model: nn.Module,
    settings: TrainSettings,
    losses_of: Callable[[int], Iterator[Tensor]],
    *,
    checkpoint: Checkpoints | None = None,
    micro_batch: BatchSize | None = None,
    ranks: Ranks = ALONE,
    curve: Curve | None = None,
    tokens_after: Callable[[int], int] = lambda _: 0,
    told: Mapping[str, list[float]] | None = None,
    before: Callable[[int], None] = lambda _: None,
    goes_on_from: Path | None = None,
    leaves_to: Path | None = None,
) -> list[float]:
    """Train a model in place; where several ranks do it, all of them call this together.

    Args:
        model: Its parameters that require gradients are trained.
        settings: How.
        losses_of: Step -> the losses of its micro-batches, weighted so that they add up to the loss of the batch.
            Each is back-propagated before the next is asked for, so that only one is in memory. The step is the
            position in the data: it may be asked for again, and the first to be asked for need not be 0.
        checkpoint: Where the training goes on from and is saved; None starts afresh and saves nothing.
        micro_batch: Its `size` is what `losses_of` cuts batches by. When memory runs out it is halved, the
            gradients of the step are dropped, and the step is done again.
        ranks: Who else does this training. `losses_of` gives the part of this rank then; see `Ranks.share`. A
            model that is spread stays so: `distributed.save_model` saves it.
        curve: Where the training's curve goes, see `JobContext.curve`; None draws none.
        tokens_after: From a number of steps to the tokens that these train on, for the curve.
        told: Lists that `losses_of` adds to. They are kept as the losses are: with checkpoints, and without what a
            step has told that is done again.
        before: Called before each step, outside of what is done again where memory runs out.
        goes_on_from: Output of a training that has left its optimizer there; None begins with a new one.
        leaves_to: Folder to leave the optimizer in for the next training; None for none.

    Returns:
        The loss of every step, of all ranks together.

    Raises:
        JobError: The optimizer that it is to go on with is another model's, or is damaged.
        JobStopped: The run is about to end; the checkpoint is saved.
        OutOfMemory: Not even the smallest micro-batch fits.
    """
    ranks.prepare(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    drawing = Drawing(curve, settings.steps, ranks=ranks, tokens_after=tokens_after)
    state = TrainState(
        model,
        _optimizer(model, settings),
        micro_batch or BatchSize(1),
        drawing,
        ranks,
        {} if told is None else told,
    )
    if goes_on_from is not None:
        restore_optimizer(goes_on_from, state.optimizer, ranks)
    if checkpoint is not None:
        state.resume(checkpoint)
    state.micro_batch.start_at(ranks.least(state.micro_batch.size))
    model.train()
    while state.step < settings.steps:
        before(state.step)
        rate = rate_at(state.step, settings)
        loss, norm = _step(state, rate, settings, trained, losses_of)
        state.history.append(loss)
        drawing.add(state.step, loss, norm, rate)
        if checkpoint is not None:
            checkpoint.after_step(state.step, state.snapshot, last=state.step == settings.steps)
    drawing.save()
    if leaves_to is not None:
        save_optimizer(leaves_to, state.optimizer, ranks)
    model.eval()
    return state.history


def _optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """Over the parameters to train, by learning rate; `scale` is what that of a step is multiplied by."""
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    groups: list[Group] = [{"params": [*trained.values()]}]
    if settings.head_learning_rate is not None:
        scale = settings.head_learning_rate / settings.learning_rate
        head = [weight for name, weight in trained.items() if name.startswith("head.")]
        rest = [weight for name, weight in trained.items() if not name.startswith("head.")]
        groups = [{"params": rest, "scale": 1.0}, {"params": head, "scale": scale}]
    how: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    adamw = {**how, "betas": settings.betas, "eps": settings.epsilon}
    if settings.optimizer is Optimizer.adamw_8bit:
        found: torch.optim.Optimizer = import_module("bitsandbytes").optim.AdamW8bit(groups, **adamw)
        return found
    matrices = _hidden_matrices(model) if settings.optimizer is Optimizer.muon else set()
    parts: list[torch.optim.Optimizer] = []
    if of_muon := _only(groups, matrices, among=True):
        # One rate serves both parts: with this adjustment a step is as large as one of AdamW (arXiv 2502.16982).
        parts.append(torch.optim.Muon(of_muon, **how, adjust_lr_fn="match_rms_adamw"))
    if others := _only(groups, matrices, among=False) or ([] if parts else groups):
        adamw |= all_at_once([weight for group in others for weight in group["params"]])
        parts.append(torch.optim.AdamW(others, **adamw))
    return parts[0] if settings.optimizer is Optimizer.adamw else Together(parts)


def _step(
    state: TrainState,
    rate: float,
    settings: TrainSettings,
    trained: list[nn.Parameter],
    losses_of: Callable[[int], Iterator[Tensor]],
) -> tuple[float, Tensor | None]:
    """One optimizer step: its loss, and the norm of its gradient where that is at hand or kept."""
    for group in state.optimizer.param_groups:
        group["lr"] = rate * group.get("scale", 1.0)
    before, told = random_state(), {name: len(values) for name, values in state.told.items()}

    ranks, drawing = state.ranks, state.drawing
    is_kept = drawing.keeps(state.step + 1)

    def clip() -> Tensor | None:
        if settings.grad_clip:
            return nn.utils.clip_grad_norm_(trained, settings.grad_clip)
        gradients = [one.grad for one in trained if one.grad is not None]
        return nn.utils.get_total_norm(gradients) if is_kept else None

    def own_gradients() -> float:
        total = torch.zeros((), dtype=torch.float64)
        for loss in losses_of(state.step):
            (loss * ranks.gradient_scale if ranks.is_sharded else loss).backward()
            # Not as a number yet, which would wait for the device with every micro-batch.
            total = total + loss.detach().double()
        return total.item()

    def gradients() -> tuple[float, Tensor | None]:
        total = _together(own_gradients, state)
        return total, clip() if ranks.size == 1 else None

    def drop() -> None:
        state.optimizer.zero_grad(set_to_none=True)
        restore_random_state(*before)
        drawing.drop()
        for name, count in told.items():
            del state.told[name][count:]

    with drawing.adding(state.step + 1):
        total, norm = state.micro_batch.run(gradients, undo=drop)
    if ranks.size > 1:
        # Not to be repeated by one rank alone: the others would be a message ahead.
        ranks.add_up_gradients(trained)
        norm = clip()
        total = ranks.sum(total)
    # Outside of what is repeated: it changes weights and moments in place, and no micro-batch makes it smaller.
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    state.step += 1
    if (
        settings.clear_cache_interval
        and state.step % settings.clear_cache_interval == 0
        and torch.cuda.is_available()
    ):
        torch.cuda.empty_cache()
    return total, norm


def _together(work: Callable[[], float], state: TrainState) -> float:
    """Do this rank's part of a step; if one rank runs out of memory, all have, so that all do it again.

    Raises:
        MemoryError: Another rank ran out of memory.
        OutOfMemory: This one did, in the middle of what it does with the others.
    """
    if state.ranks.size == 1:
        return work()
    try:
        total = work()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if state.ranks.is_sharded:
            # The others wait for this one to gather a block of the model; the attempt is over, and the next one
            # starts with less.
            raise state.micro_batch.give_up(error) from error
        state.ranks.any_of(True)
        raise
    if state.ranks.any_of(False)[0]:
        raise MemoryError("another rank ran out of memory")
    return total


# -- policy ------------------------------------------------------------------------------------------------------
# Training a model's weights: what every method does besides its loss.


# -- precision ---------------------------------------------------------------------------------------------------
# Which precision a training computes in. The weights that it changes are float32, whatever this is.


def computing_in(dtype: DType, device: str, ranks: Ranks = ALONE) -> AbstractContextManager[object]:
    """Forward passes in `bfloat16` where that is asked for; sums and losses stay in float32 (torch.autocast).

    `float16` computes in float32: its range is too small for gradients without a scale for the loss.

    Args:
        dtype: `system.dtype`.
        device: ``cpu`` or ``cuda``.
        ranks: Who shares the models; where FSDP gathers them in that type nothing is left to do.
    """
    if dtype is not DType.bfloat16 or ranks.gathers_rounded:
        return nullcontext()
    return torch.autocast(torch.device(device).type, torch.bfloat16)


_REMEDY = "Try training.gradient_checkpointing=true, shorter texts, or a device with more memory."
REMEDY_OF_POLICIES = _REMEDY.replace("=true,", "=true, lora.rank=16,")

LossOf = Callable[[Batch, NDArray[np.int64], NDArray[np.int64]], Tensor]
"""From a micro-batch, the places of its sequences and those of its whole batch to its share of the batch's loss:
the shares of all micro-batches add up to it."""

Prepare = Callable[[Sequence[NDArray[np.int64]]], Callable[[int], None]]
"""From the places of the sequences of each step's batch to what is called before each step, with its number."""


def _unprepared(_: Sequence[NDArray[np.int64]]) -> Callable[[int], None]:
    return lambda _: None


@dataclass(frozen=True)
class TrainingSet:
    """What a policy is trained on.

    Attributes:
        data: The sequences, whole groups.
        loss_of: Of a micro-batch.
        group: Sequences that belong together, and are adjacent.
        about: What ``training.json`` says of them.
        told: Lists that `loss_of` adds to, which are kept as losses are and end in ``training.json``.
        prepare: For a loss that needs to know something of the whole batch.
    """

    data: Sequences
    loss_of: LossOf
    group: int = 1
    about: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, list[float]] = field(default_factory=dict)
    prepare: Prepare = _unprepared


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """How a model is fitted, whatever the loss.

    Attributes:
        batch_size: Sequences per optimizer step.
        epochs: Passes over the data.
        learning_rate: At its highest.
        head_learning_rate: The same for a value model's head; None takes `learning_rate`.
        training: Micro-batch size, decay, clipping, schedule.
        seed: Of the order of the data.
        device: ``cpu`` or ``cuda``.
        dtype: To compute in; see `computing_in`.
        clear_cache_interval: As `TrainSettings` has it.
        on_step: Called after each step with the sequences seen so far, those of all epochs, and the tokens seen
            so far, by all ranks and before an interruption too.
        checkpoint: Where the training goes on from and is saved; None starts afresh and saves nothing.
        hints: Folder of batch sizes that fitted; None remembers nothing.
        ranks: Who else does this training; `training.micro_batch_size` is for each of them.
        curve: Where the training's curve goes; None draws none.
    """

    batch_size: int
    epochs: int
    learning_rate: float
    training: TrainingConfig
    seed: int
    device: str
    dtype: DType = DType.float32
    head_learning_rate: float | None = None
    clear_cache_interval: int = 0
    on_step: Callable[[int, int, int], None] | None = None
    checkpoint: Checkpoints | None = None
    hints: Path | None = None
    ranks: Ranks = ALONE
    curve: Curve | None = None


def fit(
    model: nn.Module,
    data: Sequences,
    fitting: Fitting,
    loss_of: LossOf,
    *,
    group: int = 1,
    backbone: PreTrainedModel | None = None,
    told: Mapping[str, list[float]] | None = None,
    prepare: Prepare = _unprepared,
) -> list[float]:
    """Train a model in place on groups of adjacent sequences, which no batch and no micro-batch ever splits.

    Args:
        model: Its parameters that require gradients are trained.
        data: Whole groups.
        fitting: How.
        loss_of: Of a micro-batch.
        group: Sequences that belong together; divides `fitting.batch_size`.
        backbone: What gradient checkpointing is switched on for; None where that is the model.
        told: Lists that `loss_of` adds to, kept as the losses are; see `loop.train`.
        prepare: See `TrainingSet`.

    Returns:
        The loss of every step.

    Raises:
        ValueError: The batch size or the data do not consist of whole groups.
    """
    if fitting.batch_size % group or len(data) % group:
        raise ValueError(f"batches of {fitting.batch_size} and {len(data)} sequences in groups of {group}")
    if len(data) == 0:
        return []
    order, ranks = grouped_order(len(data), group, fitting.epochs, fitting.seed), fitting.ranks
    micro_batch = _micro_batch(model, data, fitting, group, _REMEDY if backbone else REMEDY_OF_POLICIES)
    counts = _Counts(fitting.batch_size, data.lengths[order])
    batches = [order[at : at + fitting.batch_size] for at in range(0, len(order), fitting.batch_size)]

    def losses_of(step: int) -> Iterator[Tensor]:
        rows = batches[step]
        if fitting.training.group_by_length and len(rows) > micro_batch.size * ranks.size:
            rows = by_length(rows, data.lengths, group)
        for part, weight in ranks.share(rows, micro_batch.size, group):
            batch = batch_of(data, part, fitting.device)
            with rounding(fitting), nullcontext() if weight else not_drawn():
                loss = loss_of(batch, part, rows)
            yield loss if weight == 1 else loss * weight
        if fitting.on_step is not None:
            fitting.on_step(counts.sequences(step + 1), len(order), counts.tokens(step + 1))

    spend("training", model_cost(model).training(passes_of(model, data) * fitting.epochs))
    ranks.say_batch(fitting.batch_size, micro_batch.size)
    with _computing(model if backbone is None else backbone, fitting):
        settings = loop_settings(fitting, len(batches))
        how: dict[str, Any] = {
            "checkpoint": fitting.checkpoint,
            "ranks": ranks,
            "curve": fitting.curve,
            "told": told,
            "before": prepare(batches),
        }
        return train(model, settings, losses_of, micro_batch=micro_batch, tokens_after=counts.tokens, **how)


class _Counts:
    """How far a training is after some steps.

    Of the data and not counted on the way: a training that is resumed begins with what the steps before have done.
    """

    def __init__(self, batch_size: int, lengths: NDArray[np.int32]) -> None:
        """Take the tokens of all sequences, in the order in which they are trained on."""
        self._batch_size = batch_size
        self._tokens = np.cumsum(lengths)

    def sequences(self, steps: int) -> int:
        return min(len(self._tokens), steps * self._batch_size)

    def tokens(self, steps: int) -> int:
        return int(self._tokens[self.sequences(steps) - 1]) if steps else 0


def _micro_batch(model: nn.Module, data: Sequences, fitting: Fitting, group: int, remedy: str) -> BatchSize:
    return BatchSizes(fitting.hints, fitting.device, model).begin(
        work_of(fitting),
        min(fitting.training.micro_batch_size, fitting.batch_size, len(data) * fitting.epochs),
        length=int(data.lengths.max()),
        group=group,
        what=MICRO_BATCH,
        remedy=remedy,
    )


@contextmanager
def _computing(deep: Any, fitting: Fitting) -> Iterator[None]:
    """Have a model compute as the settings say while it is trained."""
    if fitting.training.gradient_checkpointing:
        keep_few_activations(deep)
    with without_padding(deep, fitting.training.padding_free):
        yield


def keep_few_activations(model: Any) -> None:
    """Have a model that is trained compute activations again in the backward pass."""
    checkpoint_activations(model)
    # With frozen weights below adapters no gradient would reach these otherwise.
    model.enable_input_require_grads()


def rounding(fitting: Fitting) -> AbstractContextManager[object]:
    """Compute in the type that the settings say."""
    return computing_in(fitting.dtype, fitting.device, fitting.ranks)


def work_of(fitting: Fitting) -> str:
    """What a batch size is remembered for."""
    work = "train with gradient checkpointing" if fitting.training.gradient_checkpointing else "train"
    work += " without padding" if fitting.training.padding_free else ""
    return work if fitting.ranks.size == 1 else f"{work} on {fitting.ranks}"


def loop_settings(
    fitting: Fitting, steps: int, *, steps_before: int = 0, horizon: float | None = None
) -> TrainSettings:
    """Settings of the loop; see `TrainSettings`."""
    return TrainSettings(
        steps=steps,
        learning_rate=fitting.learning_rate,
        head_learning_rate=fitting.head_learning_rate,
        optimizer=fitting.training.optimizer,
        weight_decay=fitting.training.weight_decay,
        betas=(fitting.training.adam_beta1, fitting.training.adam_beta2),
        epsilon=fitting.training.adam_epsilon,
        grad_clip=fitting.training.grad_clip,
        warmup_steps=fitting.training.warmup_steps,
        schedule=fitting.training.schedule,
        clear_cache_interval=fitting.clear_cache_interval,
        steps_before=steps_before,
        horizon=horizon,
    )


def grouped_order(count: int, group: int, epochs: int, seed: int) -> NDArray[np.int64]:
    """Indices of all epochs, groups in an order of their own in each, their members adjacent."""
    groups = epoch_order(count // group, epochs, seed)
    return (groups[:, None] * group + np.arange(group)).reshape(-1)


def by_length(rows: NDArray[np.int64], lengths: NDArray[np.int32], group: int) -> NDArray[np.int64]:
    """The sequences of a batch, groups with long ones last, so that those of a micro-batch are about as long.

    Args:
        rows: Their indices, members of a group adjacent; they stay so.
        lengths: Of all sequences.
        group: Sequences that belong together.
    """
    groups = rows.reshape(-1, group)
    found: NDArray[np.int64] = groups[np.argsort(lengths[groups].max(1), kind="stable")].reshape(-1)
    return found


def trained_tokens(data: Sequences, epochs: int) -> int:
    """Tokens of prompts and completions that a training goes over."""
    return int(data.lengths.sum()) * epochs


# -- sft ---------------------------------------------------------------------------------------------------------
# Imitation: next-token prediction on the completions of labelled sequences.


def sft_set(model: nn.Module, data: Sequences) -> TrainingSet:
    """Completions to imitate; a batch's loss is the mean over the tokens of its completions.

    Args:
        model: The policy that is trained, on its device.
        data: Completions, whatever their labels.
    """
    tokens = data.supervised

    def loss_of(batch: Batch, part: NDArray[np.int64], whole: NDArray[np.int64]) -> Tensor:  # noqa: ARG001
        return -completion_logprobs(model, batch).sum() / max(1, int(tokens[whole].sum()))

    return TrainingSet(data, loss_of, about={"sequences": len(data)})


def fit_sft(model: nn.Module, data: Sequences, fitting: Fitting) -> list[float]:
    """Train a policy in place; see `sft_set`. Returns the loss of every step, in nats per token."""
    return fit(model, data, fitting, sft_set(model, data).loss_of)


# -- online ------------------------------------------------------------------------------------------------------
# Training on batches that are drawn on the way, each by the policy as it has become by then. batch 0: drawn,
# scored -> its steps batch 1: drawn, scored -> its steps ... As TRL's `GRPOTrainer` does:
# ``steps_per_generation`` optimizer steps on each batch, ``num_iterations`` times. Who draws, and what the
# loss is, are functions; a step is as in any other training.


@dataclass(frozen=True)
class Timetable:
    """Which batch is trained on at which step. Pure.

    Attributes:
        prompts: Of the training.
        at_once: Prompts of a batch; the last one may have fewer.
        per_step: Prompts of an optimizer step.
        epochs: How often each batch is gone over.
    """

    prompts: int
    at_once: int
    per_step: int
    epochs: int = 1

    @property
    def batches(self) -> int:
        """How many are drawn."""
        return math.ceil(self.prompts / self.at_once)

    @property
    def steps(self) -> int:
        """Optimizer steps of the training."""
        whole, rest = divmod(self.prompts, self.at_once)
        return self.epochs * (whole * math.ceil(self.at_once / self.per_step) + math.ceil(rest / self.per_step))

    def at(self, step: int) -> tuple[int, int]:
        """The batch of a step, and which of its steps it is; both from 0."""
        return divmod(step, self.epochs * math.ceil(self.at_once / self.per_step))

    def rows(self, batch: int) -> tuple[int, int]:
        """The prompts of a batch, from the first to before the last."""
        return batch * self.at_once, min(self.prompts, (batch + 1) * self.at_once)

    def parts(self, batch: int) -> int:
        """Steps that one pass over a batch takes."""
        start, stop = self.rows(batch)
        return math.ceil((stop - start) / self.per_step)

    def drawn_after(self, step: int) -> int:
        """Prompts whose batch is drawn when so many steps are done."""
        return 0 if step == 0 else self.rows(self.at(step - 1)[0])[1]


@dataclass(frozen=True)
class DrawnBatch:
    """A batch that was drawn, ready to be trained on.

    Attributes:
        set: Its sequences, and their loss.
        flops: What drawing and scoring it took, by purpose.
        figures: What the curve says of it, by name: values of which a step has the mean.
        counts: What is added up over the training, by name.
    """

    set: TrainingSet
    flops: Mapping[Purpose, int] = field(default_factory=dict)
    figures: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Trained:
    """What an online training has come to.

    Attributes:
        losses: Of each step.
        tokens: That were trained on, prompts included.
        counts: Of all batches together.
    """

    losses: list[float]
    tokens: int
    counts: Mapping[str, int]


def fit_online(
    model: nn.Module,
    timetable: Timetable,
    drawn: Callable[[int], DrawnBatch],
    fitting: Fitting,
    *,
    longest: int,
    group: int = 1,
    steps_before: int = 0,
    horizon: int | None = None,
    goes_on_from: Path | None = None,
    leaves_to: Path | None = None,
) -> Trained:
    """Train a policy in place on what it draws.

    Args:
        model: On its device.
        timetable: What is drawn when.
        drawn: Draws a batch by the model as it is, or gives one again that was drawn in an earlier attempt. It is
            asked for each in turn, and for one before which a training was cut off.
        fitting: How to train; its `epochs` are those of the timetable.
        longest: Tokens that a completion may have.
        group: Sequences that belong together.
        steps_before: See `TrainSettings`.
        horizon: Steps over which the schedule of `fitting` falls, as `TrainSettings` has it; None for a rate that
            stays after its warm-up.
        goes_on_from: See `train`.
        leaves_to: See `train`.
    """
    ranks, now = fitting.ranks, _Now()
    micro_batch = BatchSizes(fitting.hints, fitting.device, model).begin(
        f"{work_of(fitting)} online",
        min(fitting.training.micro_batch_size, fitting.batch_size),
        length=longest,
        group=group,
        what=MICRO_BATCH,
        remedy=REMEDY_OF_POLICIES,
    )
    told: dict[str, list[float]] = defaultdict(list)
    cost = model_cost(model)
    if fitting.training.gradient_checkpointing:
        keep_few_activations(model)

    def before(step: int) -> None:
        """Have the batch of a step, and note what it takes."""
        number, within = timetable.at(step)
        if number != now.number:
            model.eval()
            batch = drawn(number)
            with metered() as meter:
                now.take(number, batch, timetable, fitting.seed)
            model.train()
            if within == 0:
                for name, count in chain(batch.flops.items(), meter.flops.items(), batch.counts.items()):
                    told[name].append(count)
        now.before(within)
        data, rows = now.data, now.rows(within)
        told["tokens"].append(float(data.lengths[rows].sum()) + (told["tokens"][-1] if told["tokens"] else 0))
        told["training"].append(cost.training(passes_of(model, data.some(rows))) if len(rows) else 0)

    def losses_of(step: int) -> Iterator[Tensor]:
        _, within = timetable.at(step)
        data, rows = now.data, now.rows(within)
        if is_drawn():
            add_to_curve(**now.batch.figures, staleness=within)
        if fitting.training.group_by_length and len(rows) > micro_batch.size * ranks.size:
            rows = by_length(rows, data.lengths, now.batch.set.group)
        # Not around drawing, which goes through the model in other ways.
        with without_padding(model, fitting.training.padding_free):
            for part, weight in ranks.share(rows, micro_batch.size, now.batch.set.group) if len(rows) else ():
                batch = batch_of(data, part, fitting.device)
                with rounding(fitting), nullcontext() if weight else not_drawn():
                    loss = now.batch.set.loss_of(batch, part, rows)
                yield loss if weight == 1 else loss * weight
        if fitting.on_step is not None:
            done = timetable.drawn_after(step + 1)
            fitting.on_step(done, timetable.prompts, int(told["tokens"][-1]))

    settings = loop_settings(fitting, timetable.steps, steps_before=steps_before, horizon=horizon or math.inf)
    losses = train(
        model,
        settings,
        losses_of,
        checkpoint=fitting.checkpoint,
        micro_batch=micro_batch,
        ranks=ranks,
        curve=fitting.curve,
        tokens_after=lambda steps: int(told["tokens"][steps - 1]) if steps else 0,
        told=told,
        before=before,
        goes_on_from=goes_on_from,
        leaves_to=leaves_to,
    )
    tokens = int(told.pop("tokens")[-1]) if losses else 0
    sums = {name: int(sum(values)) for name, values in told.items()}
    for purpose in _PURPOSES & sums.keys():
        spend(cast("Purpose", purpose), sums.pop(purpose))
    return Trained(losses, tokens, Counter(sums))


_PURPOSES = {"decoding", "guidance", "scoring", "rewards", "training"}


class _Now:
    """The batch that is trained on now."""

    def __init__(self) -> None:
        self.number = -1
        self.before: Callable[[int], None] = lambda _: None

    def take(self, number: int, batch: DrawnBatch, timetable: Timetable, seed: int) -> None:
        self.number, self.batch, self.data = number, batch, batch.set.data
        epochs, group, parts = timetable.epochs, batch.set.group, timetable.parts(number)
        count = len(self.data)
        if count == 0:
            self._parts, self.before = [np.zeros(0, np.int64)] * (epochs * parts), lambda _: None
            return
        # Where a pass is one step its order says nothing.
        seed_of_batch = seed * 1_000_003 + number
        order = np.arange(count) if epochs * parts == 1 else grouped_order(count, group, epochs, seed_of_batch)
        passes = order.reshape(epochs, -1, group)
        self._parts = [part.reshape(-1) for each in passes for part in np.array_split(each, parts)]
        self.before = batch.set.prepare(self._parts)

    def rows(self, within: int) -> NDArray[np.int64]:
        """Sequences of one of its steps."""
        return self._parts[within]
