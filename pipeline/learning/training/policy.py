"""Training a model's weights: what every method does besides its loss."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.config.schema import DType, TrainingConfig
from pipeline.learning.models.batch_size import MICRO_BATCH, BatchSize, BatchSizes
from pipeline.learning.models.flops import Purpose, metered, model_cost, spend
from pipeline.learning.models.load import checkpoint_activations
from pipeline.learning.training.checkpoint import Checkpoints
from pipeline.learning.training.curve import Curve, add_to_curve, is_drawn, not_drawn
from pipeline.learning.training.distributed import ALONE, Ranks
from pipeline.learning.training.loop import TrainSettings, train
from pipeline.learning.training.scoring import completion_logprobs, passes_of
from pipeline.learning.training.sequences import Batch, Sequences, batch_of, epoch_order
from pipeline.learning.training.unpadded import without_padding

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
