"""Train a model's weights: everything that methods share except the loss.

Training is deterministic: a seed gives the order of the data, no other random numbers are used, and a step is a
function of the weights, the optimizer's state and the step number, all of which are in `TrainState`.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from pipeline import errors, foreign
from pipeline.config.schema import DType, Optimizer, Schedule, TrainingConfig
from pipeline.learning.models import flops, load
from pipeline.learning.models.batch_size import MICRO_BATCH, BatchSize, BatchSizes, is_out_of_memory
from pipeline.learning.training import checkpoint as saved
from pipeline.learning.training import scoring, sequences
from pipeline.learning.training.distributed import ALONE, Ranks
from pipeline.outputs.formats import FIELDS, TrainingStep, is_kept, kept_number, write_curve

# -- curve -------------------------------------------------------------------------------------------------------
# The curve of a training: which metrics of a step are kept for charts, logged, and shown live. Rows are part of
# checkpoints, and are written when the training has ended, so that a second attempt or run does not repeat any.


_SAID_PART, _SAID_S = 0.1, 30.0
"""Least fraction of the steps, and least seconds, between two log lines; both must have passed."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Destination of a training's curve.

    Attributes:
        training: Name of the training within the job; a plain word.
        folder: Output folder of the job.
        show: Called with the metrics of every step, for live display.
    """

    training: str
    folder: Path
    show: Callable[[Mapping[str, float | None]], None] = lambda _: None


_Added = dict[str, list[tuple[Tensor, int]]]
_ADDED: ContextVar[_Added | None] = ContextVar("added", default=None)
"""Metrics added during the current step, by name: sums of values, and their counts."""


def add_to_curve(**values: Any) -> None:
    """Add metrics of your own to the curve of the current training; call it where the loss is computed.

    A step's metric is the mean of all values added under its name, over all micro-batches and ranks. At steps
    without a row, and outside of training, this does nothing.

    Args:
        values: Tensors of any shape, or numbers, by name: one value for each token, sequence or pair.

    Raises:
        JobError: The name is one of the built-in metrics.
    """
    if (added := _ADDED.get()) is None:
        return
    for name, value in values.items():
        if name in FIELDS:
            raise errors.JobError(
                f"add_to_curve({name}=...): each step has {', '.join(FIELDS)} by itself; use another name"
            )
        tensor = torch.as_tensor(value).detach()
        added.setdefault(name, []).append((tensor.double().sum(), tensor.numel()))


def is_drawn() -> bool:
    """Return whether metrics added now are kept: check it before computing expensive ones."""
    return _ADDED.get() is not None


def of_pairs(scores: Tensor) -> dict[str, Tensor]:
    """Return metrics of scored pairs: whether the chosen completion is ahead (ties count half), and by how much.

    Args:
        scores: Scores of chosen and rejected completions in turn, shape [2P].

    Returns:
        ``accuracy`` and ``margin``, each of shape [P].
    """
    margin = scores[0::2] - scores[1::2]
    return {"accuracy": (margin.sign() + 1) / 2, "margin": margin}


@contextmanager
def _adding_to(added: _Added | None) -> Iterator[None]:
    """Collect metrics in `added` inside; None discards them, for passes that are not part of the batch."""
    token = _ADDED.set(added)
    try:
        yield
    finally:
        _ADDED.reset(token)


class Drawing:
    """The curve of a training in progress.

    Attributes:
        rows: Rows kept so far.
    """

    def __init__(
        self,
        curve: Curve | None,
        steps: int,
        *,
        ranks: Ranks,
        tokens_after: Callable[[int], int],
    ) -> None:
        """Begin without a step.

        Args:
            curve: Destination; None keeps nothing.
            steps: Number of steps of the training.
            ranks: Ranks of the training.
            tokens_after: Returns the tokens trained on after a number of steps.
        """
        self.rows: list[TrainingStep] = []
        self._curve = curve
        self._steps = steps
        self._ranks = ranks
        self._tokens_after = tokens_after
        self._added: _Added = {}
        self._said_step, self._said_s = 0, time.monotonic()

    def begin(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Continue after some steps, with the rows of a checkpoint."""
        self.rows = [TrainingStep(**row) for row in rows]
        self._said_step = step

    def keeps(self, step: int) -> bool:
        """Return whether a step (from 1) has a row."""
        return self._curve is not None and is_kept(step, self._steps)

    def adding(self, step: int) -> AbstractContextManager[None]:
        """Collect metrics of `add_to_curve` inside, if the step has a row."""
        self._added.clear()
        return _adding_to(self._added if self.keeps(step) else None)

    def drop(self) -> None:
        """Discard the metrics of a step that is repeated."""
        self._added.clear()

    def _means(self) -> dict[str, float | None]:
        """Return the mean of the metrics under each name, over all ranks."""
        sums = {
            name: (sum(float(total) for total, _ in parts), sum(count for _, count in parts))
            for name, parts in self._added.items()
        }
        of_ranks = self._ranks.all_of(sums)
        means: dict[str, float | None] = {}
        for name in dict.fromkeys(name for own in of_ranks for name in own):
            totals, counts = zip(*(own[name] for own in of_ranks if name in own), strict=True)
            means[name] = kept_number(sum(totals) / sum(counts)) if sum(counts) else None
        return means

    def add(self, step: int, loss: float, norm: Tensor | None, rate: float) -> None:
        """Record a finished step. All ranks call it together.

        Args:
            step: Step number, from 1.
            loss: Loss of its batch.
            norm: Gradient norm before clipping; None if the step has no row.
            rate: Its learning rate.

        Raises:
            JobError: Too many metrics were added, or a name is not printable.
        """
        if self._curve is None:
            return
        self._curve.show({"loss": loss})
        if not self.keeps(step) or norm is None:
            return
        row = {
            "training": self._curve.training,
            "step": step,
            "steps": self._steps,
            "tokens": self._tokens_after(step),
            "loss": kept_number(loss),
            "grad_norm": kept_number(float(norm.full_tensor() if isinstance(norm, DTensor) else norm)),
            "learning_rate": kept_number(rate) or 0.0,
            "extra": self._means(),
        }
        try:
            self.rows.append(foreign.converted(row, TrainingStep))
        except foreign.ForeignDataError as error:  # at the first step rather than when the output is validated
            name = self._curve.training
            raise errors.JobError(f"the curve of {name!r} cannot have what is added to it: {error}") from error
        self._say(self.rows[-1])

    def save(self) -> None:
        """Write all rows to the job's output, after those of earlier trainings."""
        if self._curve is not None and self._ranks.is_first:
            write_curve(self._curve.folder, self.rows)

    def _say(self, row: TrainingStep) -> None:
        now_s = time.monotonic()
        waited = now_s - self._said_s >= _SAID_S and row.step - self._said_step >= _SAID_PART * self._steps
        if not self._ranks.is_first or not (waited or row.step == self._steps):
            return
        tokens = row.tokens - self._tokens_after(self._said_step)
        with suppress(OSError):
            print(line_of(row, tokens / max(now_s - self._said_s, 1e-9)), flush=True)  # noqa: T201 - the job's log
        self._said_step, self._said_s = row.step, now_s


def line_of(row: TrainingStep, tokens_per_s: float) -> str:
    """Format a step for the job's log."""
    parts = [f"step {row.step:,}/{row.steps:,}", f"loss {_shown(row.loss)}", f"lr {row.learning_rate:.1e}"]
    parts.append(f"grad norm {_shown(row.grad_norm)}")
    parts += [f"{name} {_shown(value)}" for name, value in row.extra.items()]
    if tokens_per_s > 0:
        parts.append(f"{tokens_per_s:,.0f} tokens/s")
    return f"{row.training}: {', '.join(parts)}"


def _shown(value: float | None) -> str:
    return "nan" if value is None else f"{value:.3g}"


def computing_in(dtype: DType, device: str, ranks: Ranks = ALONE) -> AbstractContextManager[object]:
    """Return a context with forward passes in `bfloat16` if asked for; sums and losses stay in float32 (autocast).

    Trained weights are float32 in any case. `float16` computes in float32: its range is too small for gradients
    without a scale for the loss.

    Args:
        dtype: The setting `system.dtype`.
        device: ``cpu`` or ``cuda``.
        ranks: Ranks that share the models; if FSDP gathers weights in that type, the context does nothing.
    """
    if dtype is not DType.bfloat16 or ranks.gathers_rounded:
        return nullcontext()
    return torch.autocast(torch.device(device).type, torch.bfloat16)


_REMEDY = "Try training.gradient_checkpointing=true, {}shorter texts, or a device with more memory."

LossOf = Callable[[sequences.Batch, NDArray[np.int64], NDArray[np.int64]], Tensor]
"""Function from a micro-batch, the indices of its sequences, and those of its whole batch to its share of the
batch's loss: the shares of all micro-batches add up to it."""

Prepare = Callable[[Sequence[NDArray[np.int64]]], Callable[[int], None]]
"""Function from the sequence indices of each step's batch to a function called before each step, with its number.
"""


def _unprepared(_: Sequence[NDArray[np.int64]]) -> Callable[[int], None]:
    return lambda _: None


@dataclass(frozen=True)
class TrainingSet:
    """The data that a model is trained on, with the loss.

    Attributes:
        data: The sequences, whole groups.
        loss_of: Loss of a micro-batch.
        group: Number of adjacent sequences that belong together: no batch and no micro-batch splits them.
        about: Entries for ``training.json``.
        told: Lists to which `loss_of` appends, which are kept like losses and written to ``training.json``.
        prepare: For a loss that needs to know the whole batch.
    """

    data: sequences.Sequences
    loss_of: LossOf
    group: int = 1
    about: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, list[float]] = field(default_factory=dict)
    prepare: Prepare = _unprepared


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """Settings of a training, for any loss.

    Attributes:
        learning_rate: Peak learning rate.
        training: Optimizer, schedule, micro-batch size, clipping.
        batch_size: Sequences per optimizer step.
        epochs: Passes over the data.
        head_learning_rate: Peak learning rate of a value model's head; None takes `learning_rate`.
        seed: Seed of the order of the data.
        device: ``cpu`` or ``cuda``.
        dtype: Compute type; see `computing_in`.
        clear_cache_interval: Steps between calls of `torch.cuda.empty_cache`; 0 never.
        on_step: Called after each step with the sequences seen so far, those of all epochs, and the tokens seen so
            far, over all ranks and including the steps before an interruption.
        checkpoint: Checkpoints to resume from and save to; None starts anew and saves nothing.
        hints: Folder with batch sizes that fit; None remembers none.
        ranks: Ranks of this training; `training.micro_batch_size` is per rank.
        curve: Destination of the training's curve, see `JobContext.curve`; None draws none.
        steps_before: Steps of the trainings that this one continues; warm-up and schedule count them too.
        horizon: Steps, including those before, of the schedule; None for all of this training, infinity for a
            constant rate after the warm-up.
        goes_on_from: Output of a training that has left its optimizer state; None starts with a new one.
        leaves_to: Folder in which to leave the optimizer state for the next training; None for none.
    """

    learning_rate: float
    training: TrainingConfig
    batch_size: int = 1
    epochs: int = 1
    head_learning_rate: float | None = None
    seed: int = 0
    device: str = "cpu"
    dtype: DType = DType.float32
    clear_cache_interval: int = 0
    on_step: Callable[[int, int, int], None] | None = None
    checkpoint: saved.Checkpoints | None = None
    hints: Path | None = None
    ranks: Ranks = ALONE
    curve: Curve | None = None
    steps_before: int = 0
    horizon: float | None = None
    goes_on_from: Path | None = None
    leaves_to: Path | None = None

    def micro_batch(
        self, model: nn.Module, most: int, *, longest: int, group: int, policy: bool, work: str = ""
    ) -> BatchSize:
        """Return the micro-batch size of a model: as many sequences as have fitted before.

        Args:
            model: On its device.
            most: Number of sequences.
            longest: Tokens of the longest sequence.
            group: Sequences that belong together.
            policy: Whether to suggest adapters when memory runs out.
            work: Name under which the size is remembered, besides the training settings.
        """
        kind = "train with gradient checkpointing" if self.training.gradient_checkpointing else "train"
        kind += " without padding" if self.training.padding_free else ""
        kind += "" if self.ranks.size == 1 else f" on {self.ranks}"
        return BatchSizes(self.hints, self.device, model).begin(
            kind + work,
            min(self.training.micro_batch_size, self.batch_size, most),
            length=longest,
            group=group,
            what=MICRO_BATCH,
            remedy=_REMEDY.format("lora.rank=16, " if policy else ""),
        )

    def losses(self, made: TrainingSet, rows: NDArray[np.int64], micro_batch: BatchSize) -> Iterator[Tensor]:
        """Yield this rank's losses of a batch, one per micro-batch.

        Args:
            made: The data and the loss.
            rows: Indices of the batch's sequences.
            micro_batch: Sequences at once.
        """
        if self.training.group_by_length and len(rows) > micro_batch.size * self.ranks.size:
            rows = by_length(rows, made.data.lengths, made.group)
        for part, weight in self.ranks.share(rows, micro_batch.size, made.group):
            batch = sequences.batch_of(made.data, part, self.device)
            with computing_in(self.dtype, self.device, self.ranks), nullcontext() if weight else _adding_to(None):
                loss = made.loss_of(batch, part, rows)
            yield loss if weight == 1 else loss * weight


# -- optimizers --------------------------------------------------------------------------------------------------
# Each keeps only tensors and plain values, which checkpoints can hold.


Group = dict[str, Any]


class Together(torch.optim.Optimizer):
    """Several optimizers of different parameters as one: one state, in the order of their groups."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._parts = parts

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take a step of each optimizer."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        groups = iter(self.param_groups)
        for part in self._parts:
            # Loading a state replaces both objects.
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state
            part.step()
        return loss


def all_at_once(trained: Sequence[nn.Parameter]) -> dict[str, bool]:
    """Return AdamW's options for updating many parameters at once."""
    # On the CPU `foreach` has MKL take square roots, which begin with an approximation of the processor's own.
    fused = all(weight.device.type == "cpu" and not hasattr(weight, "full_tensor") for weight in trained)
    # On a GPU it needs 4 temporary bytes per parameter, `fused` needs none.
    fused |= all(weight.device.type == "cuda" for weight in trained)
    return {"fused" if fused else "foreach": True}


def _only(groups: Sequence[Group], some: set[int], *, among: bool) -> list[Group]:
    """Return the groups restricted to parameters that are (or are not) among some; empty groups are dropped."""
    kept = [
        {**group, "params": [one for one in group["params"] if (id(one) in some) is among]} for group in groups
    ]
    return [group for group in kept if group["params"]]


def _hidden_matrices(model: nn.Module) -> set[int]:
    """Return ids of the parameters that torch recommends for Muon: matrices except embeddings and outputs."""
    others = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    if (outputs := getattr(model, "get_output_embeddings", lambda: None)()) is not None:
        others.add(id(outputs.weight))
    named = model.named_parameters()
    return {
        id(weight)
        for name, weight in named
        if weight.ndim == 2 and id(weight) not in others and not name.startswith("head.")
    }


def _optimizer(model: nn.Module, how: Fitting) -> torch.optim.Optimizer:
    """Return an optimizer over the trainable parameters; a group's `scale` multiplies a step's learning rate."""
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    groups: list[Group] = [{"params": [*trained.values()]}]
    if how.head_learning_rate is not None:
        scale = how.head_learning_rate / how.learning_rate
        head = [weight for name, weight in trained.items() if name.startswith("head.")]
        rest = [weight for name, weight in trained.items() if not name.startswith("head.")]
        groups = [{"params": rest, "scale": 1.0}, {"params": head, "scale": scale}]
    settings = how.training
    shared: dict[str, Any] = {"lr": how.learning_rate, "weight_decay": settings.weight_decay}
    adamw = {**shared, "betas": (settings.adam_beta1, settings.adam_beta2), "eps": settings.adam_epsilon}
    if settings.optimizer is Optimizer.adamw_8bit:
        optimizer: torch.optim.Optimizer = import_module("bitsandbytes").optim.AdamW8bit(groups, **adamw)
        return optimizer
    matrices = _hidden_matrices(model) if settings.optimizer is Optimizer.muon else set()
    parts: list[torch.optim.Optimizer] = []
    if of_muon := _only(groups, matrices, among=True):
        # One learning rate serves both parts: with this adjustment a step is as large as AdamW's (arXiv
        # 2502.16982).
        parts.append(torch.optim.Muon(of_muon, **shared, adjust_lr_fn="match_rms_adamw"))
    if others := _only(groups, matrices, among=False) or ([] if parts else groups):
        adamw |= all_at_once([weight for group in others for weight in group["params"]])
        parts.append(torch.optim.AdamW(others, **adamw))
    return parts[0] if settings.optimizer is Optimizer.adamw else Together(parts)


def rate_at(step: int, how: Fitting, end: float) -> float:
    """Return the learning rate of a step.

    Args:
        step: Step from 0, counted from the first training that this one continues.
        how: Peak rate, schedule and warm-up.
        end: Last step of the schedule; infinity for a constant rate after the warm-up.
    """
    schedule, warmup_steps = how.training.schedule, how.training.warmup_steps
    if schedule is Schedule.cosine_from_start:
        warmup = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
        gone = min(1.0, step / max(1, end))
        return how.learning_rate * warmup * 0.5 * (1 + math.cos(math.pi * gone))
    if end == math.inf and schedule.has_end:
        schedule = Schedule.constant_with_warmup
    # With no step after the warm-up there is nothing to fall over; beyond the end a cosine would rise again.
    end = max(end, warmup_steps + 1)
    return how.learning_rate * _factor(schedule, how.learning_rate, warmup_steps, end)(min(step, end))


@lru_cache
def _factor(schedule: Schedule, learning_rate: float, warmup_steps: int, steps: float) -> Callable[[float], float]:
    """Return the function from a step to the factor of transformers' scheduler."""
    from transformers import get_scheduler  # after the device was pinned, and only if a schedule is used

    nothing = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=learning_rate)
    factor: Callable[[float], float] = get_scheduler(
        schedule.value, nothing, num_warmup_steps=warmup_steps, num_training_steps=cast("int", steps)
    ).lr_lambdas[0]
    return factor


# -- loop --------------------------------------------------------------------------------------------------------


@dataclass
class TrainState:
    """Everything that a training needs to resume: the content of a checkpoint.

    Attributes:
        drawing: Its curve.
        micro_batch: Sequences at once, possibly reduced after running out of memory.
        told: Lists of plain data to which its losses append.
        step: Number of steps done.
        history: Loss of each step.
    """

    model: nn.Module
    how: Fitting
    optimizer: torch.optim.Optimizer
    micro_batch: BatchSize
    drawing: Drawing
    told: Mapping[str, list[Any]]
    step: int = 0
    history: list[float] = field(default_factory=list)

    def snapshot(self) -> saved.State:
        """Return the state for a checkpoint."""
        return saved.training_state(
            self.model,
            self.optimizer,
            history=self.history,
            micro_batch_size=self.micro_batch.size,
            curve=[vars(row) for row in self.drawing.rows],
            told=dict(self.told),
        )

    def resume(self, checkpoint: saved.Checkpoints) -> None:
        """Resume from the newest checkpoint, if there is one."""
        newest = checkpoint.latest(self._problem)
        if newest is not None:
            own = saved.restore_training(newest.state, self.model, self.optimizer, ranks=self.how.ranks)
            self.step, self.history = newest.step, list(own["history"])
            self.drawing.begin(self.step, own["curve"])
            for name, values in own["told"].items():
                self.told[name][:] = values
            # Not a size found by other jobs since: the rest must be the same as without interruption.
            self.micro_batch.start_at(int(own["micro_batch_size"]))

    def _problem(self, old: saved.Saved) -> str | None:
        if old.state.values["own"]["told"].keys() != self.told.keys():
            return "it keeps other lists, as another version of this code does"
        return saved.state_problem(old.state, self.model, self.optimizer)


def train(
    model: nn.Module,
    how: Fitting,
    steps: int,
    losses_of: Callable[[int], Iterator[Tensor]],
    *,
    micro_batch: BatchSize | None = None,
    tokens_after: Callable[[int], int] = lambda _: 0,
    told: Mapping[str, list[Any]] | None = None,
    before: Callable[[int], None] = lambda _: None,
) -> list[float]:
    """Train a model in place; with several ranks, all of them call this together.

    Args:
        model: Its parameters that require gradients are trained.
        how: Learning rate, optimizer, checkpoints, ranks, curve, trainings before and after; the other fields are
            for `losses_of`.
        steps: Optimizer steps.
        losses_of: Step -> the losses of its micro-batches, weighted so that they add up to the loss of the batch.
            Each is back-propagated before the next is requested, so that only one is in memory. The step is the
            position in the data: it may be requested again, and the first one need not be 0. With several ranks it
            gives this rank's part; see `Ranks.share`.
        micro_batch: `losses_of` splits batches by its `size`. When memory runs out the size is halved, the
            gradients of the step are dropped, and the step is repeated.
        tokens_after: Returns the tokens trained on after a number of steps, for the curve.
        told: Lists of plain data to which `losses_of` appends. They are kept like losses: in checkpoints, and
            without the entries of a step that is repeated.
        before: Called before each step, outside of the part that is repeated when memory runs out.

    Returns:
        The loss of every step, over all ranks. A sharded model stays so: `distributed.save_model` saves it.

    Raises:
        JobError: The optimizer state belongs to another model, or is damaged.
        JobStopped: The run is about to end; the checkpoint is saved.
        OutOfMemory: Not even the smallest micro-batch fits.
    """
    ranks, checkpoint = how.ranks, how.checkpoint
    ranks.prepare(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    drawing = Drawing(how.curve, steps, ranks=ranks, tokens_after=tokens_after)
    micro_batch = micro_batch or BatchSize(1)
    state = TrainState(model, how, _optimizer(model, how), micro_batch, drawing, {} if told is None else told)
    if how.goes_on_from is not None:
        saved.restore_optimizer(how.goes_on_from, state.optimizer, ranks)
    if checkpoint is not None:
        state.resume(checkpoint)
    micro_batch.start_at(ranks.least(micro_batch.size))
    model.train()
    while state.step < steps:
        before(state.step)
        rate = rate_at(how.steps_before + state.step, how, how.horizon or how.steps_before + steps)
        loss, norm = _step(state, rate, trained, losses_of)
        state.history.append(loss)
        drawing.add(state.step, loss, norm, rate)
        if checkpoint is not None:
            checkpoint.after_step(state.step, state.snapshot, last=state.step == steps)
    drawing.save()
    if how.leaves_to is not None:
        saved.save_optimizer(how.leaves_to, state.optimizer, ranks)
    model.eval()
    return state.history


def _step(
    state: TrainState,
    rate: float,
    trained: list[nn.Parameter],
    losses_of: Callable[[int], Iterator[Tensor]],
) -> tuple[float, Tensor | None]:
    """Do one optimizer step; return its loss, and the norm of its gradient if computed."""
    for group in state.optimizer.param_groups:
        group["lr"] = rate * group.get("scale", 1.0)
    before, lengths = saved.random_state(), {name: len(values) for name, values in state.told.items()}

    ranks, drawing, grad_clip = state.how.ranks, state.drawing, state.how.training.grad_clip
    is_kept = drawing.keeps(state.step + 1)

    def clip() -> Tensor | None:
        if grad_clip:
            return nn.utils.clip_grad_norm_(trained, grad_clip)
        gradients = [weight.grad for weight in trained if weight.grad is not None]
        return nn.utils.get_total_norm(gradients) if is_kept else None

    def own_gradients() -> float:
        total = torch.zeros((), dtype=torch.float64)
        for loss in losses_of(state.step):
            (loss * ranks.gradient_scale if ranks.is_sharded else loss).backward()
            # Stays a tensor, as converting it would wait for the device at every micro-batch.
            total = total + loss.detach().double()
        return total.item()

    def gradients() -> tuple[float, Tensor | None]:
        total = _together(own_gradients, state)
        return total, clip() if ranks.size == 1 else None

    def drop() -> None:
        state.optimizer.zero_grad(set_to_none=True)
        saved.restore_random_state(*before)
        drawing.drop()
        for name, count in lengths.items():
            del state.told[name][count:]

    with drawing.adding(state.step + 1):
        total, norm = state.micro_batch.run(gradients, undo=drop)
    if ranks.size > 1:
        # Not to be repeated by one rank alone, which would be out of step with the others.
        ranks.add_up_gradients(trained)
        norm = clip()
        total = ranks.sum(total)
    # Outside of the part that is repeated: weights and moments change in place, so a failure ends this attempt.
    try:
        state.optimizer.step()
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise state.micro_batch.give_up(error) from error
        raise
    state.optimizer.zero_grad(set_to_none=True)
    state.step += 1
    interval = state.how.clear_cache_interval
    if interval and state.step % interval == 0 and torch.cuda.is_available():
        torch.cuda.empty_cache()
    return total, norm


def _together(work: Callable[[], float], state: TrainState) -> float:
    """Do this rank's part of a step; if one rank runs out of memory, it counts for all, so that all repeat it.

    Raises:
        MemoryError: Another rank ran out of memory.
        OutOfMemory: This rank did, in the middle of a collective.
    """
    ranks = state.how.ranks
    if ranks.size == 1:
        return work()
    try:
        total = work()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if ranks.is_sharded:
            # The others wait for this rank's part of a block; the attempt fails, and the next one starts with a
            # smaller size.
            raise state.micro_batch.give_up(error) from error
        ranks.any_of(True)
        raise
    if ranks.any_of(False)[0]:
        raise MemoryError("another rank ran out of memory")
    return total


# -- fit ---------------------------------------------------------------------------------------------------------


def fit(
    model: nn.Module, made: TrainingSet, fitting: Fitting, *, backbone: PreTrainedModel | None = None
) -> list[float]:
    """Train a model in place on existing sequences.

    Args:
        model: Its parameters that require gradients are trained.
        made: The sequences, and their loss.
        fitting: Settings of the training.
        backbone: Module for gradient checkpointing; None for the model itself.

    Returns:
        The loss of every step.

    Raises:
        ValueError: The batch size or the data are not whole groups.
    """
    data, group, size = made.data, made.group, fitting.batch_size
    if size % group or len(data) % group:
        raise ValueError(f"batches of {size} and {len(data)} sequences in groups of {group}")
    if len(data) == 0:
        return []
    order = grouped_order(len(data), group, fitting.epochs, fitting.seed)
    longest, policy = int(data.lengths.max()), backbone is None
    micro_batch = fitting.micro_batch(model, len(order), longest=longest, group=group, policy=policy)
    batches = [order[at : at + size] for at in range(0, len(order), size)]
    # Computed from the data instead of counted, so that a resumed training includes earlier steps.
    tokens = np.cumsum(data.lengths[order])

    def tokens_after(steps: int) -> int:
        return int(tokens[min(len(order), steps * size) - 1]) if steps else 0

    def losses_of(step: int) -> Iterator[Tensor]:
        yield from fitting.losses(made, batches[step], micro_batch)
        if fitting.on_step is not None:
            fitting.on_step(min(len(order), (step + 1) * size), len(order), tokens_after(step + 1))

    flops.spend("training", flops.model_cost(model).training(scoring.passes_of(model, data) * fitting.epochs))
    fitting.ranks.say_batch(size, micro_batch.size)
    keep_few_activations(backbone or model, fitting)
    with scoring.without_padding(backbone or model, fitting.training.padding_free):
        how: dict[str, Any] = {"told": made.told, "before": made.prepare(batches)}
        return train(
            model, fitting, len(batches), losses_of, micro_batch=micro_batch, tokens_after=tokens_after, **how
        )


def keep_few_activations(model: Any, fitting: Fitting) -> None:
    """Enable gradient checkpointing if the settings ask for it."""
    if fitting.training.gradient_checkpointing:
        load.checkpoint_activations(model)
        # Otherwise no gradient would reach it with frozen weights below adapters.
        model.enable_input_require_grads()


def grouped_order(count: int, group: int, epochs: int, seed: int) -> NDArray[np.int64]:
    """Return indices of all epochs: groups in a new random order in each, with adjacent members."""
    groups = sequences.epoch_order(count // group, epochs, seed)
    return (groups[:, None] * group + np.arange(group)).reshape(-1)


def by_length(rows: NDArray[np.int64], lengths: NDArray[np.int32], group: int) -> NDArray[np.int64]:
    """Sort a batch by length, groups with long sequences last, so that lengths in a micro-batch are similar.

    Args:
        rows: Their indices; members of a group are adjacent and stay so.
        lengths: Lengths of all sequences.
        group: Sequences that belong together.
    """
    groups = rows.reshape(-1, group)
    ordered: NDArray[np.int64] = groups[np.argsort(lengths[groups].max(1), kind="stable")].reshape(-1)
    return ordered


def trained_tokens(data: sequences.Sequences, epochs: int) -> int:
    """Return the tokens of prompts and completions that a training goes over."""
    return int(data.lengths.sum()) * epochs


def sft_set(model: nn.Module, data: sequences.Sequences) -> TrainingSet:
    """Return completions to imitate; a batch's loss is the mean over the tokens of its completions.

    Args:
        model: The trained policy, on its device.
        data: Completions; labels are ignored.
    """
    tokens = data.supervised

    def loss_of(batch: sequences.Batch, part: NDArray[np.int64], whole: NDArray[np.int64]) -> Tensor:  # noqa: ARG001
        return -scoring.completion_logprobs(model, batch).sum() / max(1, int(tokens[whole].sum()))

    return TrainingSet(data, loss_of, about={"sequences": len(data)})


def fit_sft(model: nn.Module, data: sequences.Sequences, fitting: Fitting) -> list[float]:
    """Train a policy in place; see `sft_set`. Return the loss of every step, in nats per token."""
    return fit(model, sft_set(model, data), fitting)
