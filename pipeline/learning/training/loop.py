"""Training a model's weights: what every method does besides its loss.

Deterministic: the order of the data comes from a seed, nothing is drawn while training, and a step is a function
of the weights, the optimizer's state and the number of the step, all of which `TrainState` holds.
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
# The curve of a training while it is drawn: what of a step is kept for charts, said in the log, and shown
# live. Rows are part of what a checkpoint holds, and are written when the training has ended, so that neither
# a second attempt nor a second run has any of them twice.


_SAID_PART, _SAID_S = 0.1, 30.0
"""Of the steps, and seconds, between two lines in the log: both at least."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Where the curve of a training goes.

    Attributes:
        training: Names it among the trainings of the job; a plain word.
        folder: The job's output.
        show: Takes numbers of every step, for whoever watches.
    """

    training: str
    folder: Path
    show: Callable[[Mapping[str, float | None]], None] = lambda _: None


_Added = dict[str, list[tuple[Tensor, int]]]
_ADDED: ContextVar[_Added | None] = ContextVar("added", default=None)
"""What is added at the step under way, by name: sums of values, and how many these are."""


def add_to_curve(**values: Any) -> None:
    """Add numbers of your own to the curve of the training under way: call it where the loss is computed.

    What a step has under a name is the mean of all values that were added under it, of all micro-batches and
    ranks. At steps without a line, and where nothing is trained, this does nothing.

    Args:
        values: By name, a tensor of any shape, or a number: one value for each token, sequence or pair.

    Raises:
        JobError: A name is one that every step has by itself.
    """
    if (added := _ADDED.get()) is None:
        return
    for name, value in values.items():
        if name in FIELDS:
            raise errors.JobError(
                f"add_to_curve({name}=...): each step has {', '.join(FIELDS)} by itself; use another name"
            )
        found = torch.as_tensor(value).detach()
        added.setdefault(name, []).append((found.double().sum(), found.numel()))


def is_drawn() -> bool:
    """Whether what is added now is kept: for numbers that take time to compute."""
    return _ADDED.get() is not None


def of_pairs(scores: Tensor) -> dict[str, Tensor]:
    """What pairs tell of those who score them: whether the chosen one is ahead, equals counting half, and how far.

    Args:
        scores: Of chosen and rejected completions, one after the other, shape [2P].

    Returns:
        ``accuracy`` and ``margin``, each of shape [P].
    """
    margin = scores[0::2] - scores[1::2]
    return {"accuracy": (margin.sign() + 1) / 2, "margin": margin}


@contextmanager
def _adding_to(added: _Added | None) -> Iterator[None]:
    """Have values added there meanwhile; None for nowhere, as of what is no part of the batch."""
    token = _ADDED.set(added)
    try:
        yield
    finally:
        _ADDED.reset(token)


class Drawing:
    """The curve of a training that is under way.

    Attributes:
        rows: What is kept so far.
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
            curve: Where it goes; None keeps nothing.
            steps: Of the training.
            ranks: Who does the training.
            tokens_after: From a number of steps to the tokens that these train on.
        """
        self.rows: list[TrainingStep] = []
        self._curve = curve
        self._steps = steps
        self._ranks = ranks
        self._tokens_after = tokens_after
        self._added: _Added = {}
        self._said_step, self._said_s = 0, time.monotonic()

    def begin(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Go on after some steps, of which a checkpoint has kept rows."""
        self.rows = [TrainingStep(**row) for row in rows]
        self._said_step = step

    def keeps(self, step: int) -> bool:
        """Whether a step, from 1, has a row."""
        return self._curve is not None and is_kept(step, self._steps)

    def adding(self, step: int) -> AbstractContextManager[None]:
        """Take what `add_to_curve` is given meanwhile, where the step has a row."""
        self._added.clear()
        return _adding_to(self._added if self.keeps(step) else None)

    def drop(self) -> None:
        """Forget what was added: the step is done again."""
        self._added.clear()

    def _means(self) -> dict[str, float | None]:
        """The mean of what was added under each name, over all ranks."""
        sums = {
            name: (sum(float(total) for total, _ in parts), sum(count for _, count in parts))
            for name, parts in self._added.items()
        }
        of_ranks = self._ranks.all_of(sums)
        found: dict[str, float | None] = {}
        for name in dict.fromkeys(name for own in of_ranks for name in own):
            totals, counts = zip(*(own[name] for own in of_ranks if name in own), strict=True)
            found[name] = kept_number(sum(totals) / sum(counts)) if sum(counts) else None
        return found

    def add(self, step: int, loss: float, norm: Tensor | None, rate: float) -> None:
        """Take a step that is done. All ranks call it together.

        Args:
            step: Its number, from 1.
            loss: Of its batch.
            norm: Of its gradient before it was clipped; None where the step has no row.
            rate: Its learning rate.

        Raises:
            JobError: What was added to it is more than a curve has, or has no name that can be printed.
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
        except foreign.ForeignDataError as error:  # with the first step, not when the output is held to its format
            name = self._curve.training
            raise errors.JobError(f"the curve of {name!r} cannot have what is added to it: {error}") from error
        self._say(self.rows[-1])

    def save(self) -> None:
        """Write all rows to the job's output, beside those of trainings before."""
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
    """A step for the job's log."""
    parts = [f"step {row.step:,}/{row.steps:,}", f"loss {_shown(row.loss)}", f"lr {row.learning_rate:.1e}"]
    parts.append(f"grad norm {_shown(row.grad_norm)}")
    parts += [f"{name} {_shown(value)}" for name, value in row.extra.items()]
    if tokens_per_s > 0:
        parts.append(f"{tokens_per_s:,.0f} tokens/s")
    return f"{row.training}: {', '.join(parts)}"


def _shown(value: float | None) -> str:
    return "nan" if value is None else f"{value:.3g}"


def computing_in(dtype: DType, device: str, ranks: Ranks = ALONE) -> AbstractContextManager[object]:
    """Forward passes in `bfloat16` where that is asked for; sums and losses stay in float32 (torch.autocast).

    Weights that are trained are float32, whatever this is. `float16` computes in float32: its range is too small
    for gradients without a scale for the loss.

    Args:
        dtype: `system.dtype`.
        device: ``cpu`` or ``cuda``.
        ranks: Who shares the models; where FSDP gathers them in that type nothing is left to do.
    """
    if dtype is not DType.bfloat16 or ranks.gathers_rounded:
        return nullcontext()
    return torch.autocast(torch.device(device).type, torch.bfloat16)


_REMEDY = "Try training.gradient_checkpointing=true, {}shorter texts, or a device with more memory."

LossOf = Callable[[sequences.Batch, NDArray[np.int64], NDArray[np.int64]], Tensor]
"""From a micro-batch, the places of its sequences and those of its whole batch to its share of the batch's loss:
the shares of all micro-batches add up to it."""

Prepare = Callable[[Sequence[NDArray[np.int64]]], Callable[[int], None]]
"""From the places of the sequences of each step's batch to what is called before each step, with its number."""


def _unprepared(_: Sequence[NDArray[np.int64]]) -> Callable[[int], None]:
    return lambda _: None


@dataclass(frozen=True)
class TrainingSet:
    """What a model is trained on.

    Attributes:
        data: The sequences, whole groups.
        loss_of: Of a micro-batch.
        group: Sequences that belong together, and are adjacent: no batch and no micro-batch ever splits them.
        about: What ``training.json`` says of them.
        told: Lists that `loss_of` adds to, which are kept as losses are and end in ``training.json``.
        prepare: For a loss that needs to know something of the whole batch.
    """

    data: sequences.Sequences
    loss_of: LossOf
    group: int = 1
    about: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, list[float]] = field(default_factory=dict)
    prepare: Prepare = _unprepared


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """How a model is trained, whatever the loss.

    Attributes:
        learning_rate: At its highest.
        training: Optimizer, schedule, micro-batch size, clipping.
        batch_size: Sequences per optimizer step.
        epochs: Passes over the data.
        head_learning_rate: The same for a value model's head; None takes `learning_rate`.
        seed: Of the order of the data.
        device: ``cpu`` or ``cuda``.
        dtype: To compute in; see `computing_in`.
        clear_cache_interval: Steps between calls of `torch.cuda.empty_cache`; 0 never.
        on_step: Called after each step with the sequences seen so far, those of all epochs, and the tokens seen
            so far, by all ranks and before an interruption too.
        checkpoint: Where the training goes on from and is saved; None starts afresh and saves nothing.
        hints: Folder of batch sizes that fitted; None remembers nothing.
        ranks: Who else does this training; `training.micro_batch_size` is for each of them.
        curve: Where the training's curve goes, see `JobContext.curve`; None draws none.
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

    def micro_batch(
        self, model: nn.Module, most: int, *, longest: int, group: int, policy: bool, work: str = ""
    ) -> BatchSize:
        """How many sequences of a model go at once, as many as have fitted before.

        Args:
            model: On its device.
            most: Sequences that there are.
            longest: Tokens of one.
            group: Sequences that belong together.
            policy: Whether adapters would take less memory.
            work: What it is remembered for, besides how it is trained.
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
        """This rank's share of the losses of a batch, one for each micro-batch.

        Args:
            made: What is trained on.
            rows: Places of the sequences of the batch.
            micro_batch: How many go at once.
        """
        if self.training.group_by_length and len(rows) > micro_batch.size * self.ranks.size:
            rows = by_length(rows, made.data.lengths, made.group)
        for part, weight in self.ranks.share(rows, micro_batch.size, made.group):
            batch = sequences.batch_of(made.data, part, self.device)
            with computing_in(self.dtype, self.device, self.ranks), nullcontext() if weight else _adding_to(None):
                loss = made.loss_of(batch, part, rows)
            yield loss if weight == 1 else loss * weight


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


def _optimizer(model: nn.Module, how: Fitting) -> torch.optim.Optimizer:
    """Over the parameters to train, by learning rate; `scale` is what that of a step is multiplied by."""
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    groups: list[Group] = [{"params": [*trained.values()]}]
    if how.head_learning_rate is not None:
        scale = how.head_learning_rate / how.learning_rate
        head = [weight for name, weight in trained.items() if name.startswith("head.")]
        rest = [weight for name, weight in trained.items() if not name.startswith("head.")]
        groups = [{"params": rest, "scale": 1.0}, {"params": head, "scale": scale}]
    asked = how.training
    shared: dict[str, Any] = {"lr": how.learning_rate, "weight_decay": asked.weight_decay}
    adamw = {**shared, "betas": (asked.adam_beta1, asked.adam_beta2), "eps": asked.adam_epsilon}
    if asked.optimizer is Optimizer.adamw_8bit:
        found: torch.optim.Optimizer = import_module("bitsandbytes").optim.AdamW8bit(groups, **adamw)
        return found
    matrices = _hidden_matrices(model) if asked.optimizer is Optimizer.muon else set()
    parts: list[torch.optim.Optimizer] = []
    if of_muon := _only(groups, matrices, among=True):
        # One rate serves both parts: with this adjustment a step is as large as one of AdamW (arXiv 2502.16982).
        parts.append(torch.optim.Muon(of_muon, **shared, adjust_lr_fn="match_rms_adamw"))
    if others := _only(groups, matrices, among=False) or ([] if parts else groups):
        adamw |= all_at_once([weight for group in others for weight in group["params"]])
        parts.append(torch.optim.AdamW(others, **adamw))
    return parts[0] if asked.optimizer is Optimizer.adamw else Together(parts)


def rate_at(step: int, how: Fitting, end: float) -> float:
    """Learning rate of a step.

    Args:
        step: From 0, and counted from the first training that this one goes on from.
        how: The highest rate, the schedule and its warm-up.
        end: Steps over which the schedule falls; infinity for a rate that stays after its warm-up.
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
    """From a step to what transformers' scheduler multiplies the rate by."""
    from transformers import get_scheduler  # after the device has been pinned, and only where one is asked for

    nothing = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=learning_rate)
    found: Callable[[float], float] = get_scheduler(
        schedule.value, nothing, num_warmup_steps=warmup_steps, num_training_steps=cast("int", steps)
    ).lr_lambdas[0]
    return found


# -- loop --------------------------------------------------------------------------------------------------------


@dataclass
class TrainState:
    """Everything a training needs to go on: what a checkpoint holds.

    Attributes:
        drawing: Its curve.
        micro_batch: Sequences at once, which may have had to be fewer than configured.
        told: Lists that its losses add to.
        step: Steps done.
        history: The loss of each.
    """

    model: nn.Module
    how: Fitting
    optimizer: torch.optim.Optimizer
    micro_batch: BatchSize
    drawing: Drawing
    told: Mapping[str, list[float]]
    step: int = 0
    history: list[float] = field(default_factory=list)

    def snapshot(self) -> saved.State:
        """For a checkpoint."""
        return saved.training_state(
            self.model,
            self.optimizer,
            history=self.history,
            micro_batch_size=self.micro_batch.size,
            curve=[vars(row) for row in self.drawing.rows],
            told=dict(self.told),
        )

    def resume(self, checkpoint: saved.Checkpoints) -> None:
        """Go on from the newest checkpoint, if there is one."""
        found = checkpoint.latest(lambda each: saved.state_problem(each.state, self.model, self.optimizer))
        if found is not None:
            own = saved.restore_training(found.state, self.model, self.optimizer, ranks=self.how.ranks)
            self.step, self.history = found.step, list(own["history"])
            self.drawing.begin(self.step, own["curve"])
            for name, values in own["told"].items():
                self.told[name][:] = values
            # Not a size that others have found since: the rest must be what it would have been.
            self.micro_batch.start_at(int(own["micro_batch_size"]))


def train(
    model: nn.Module,
    how: Fitting,
    steps: int,
    losses_of: Callable[[int], Iterator[Tensor]],
    *,
    micro_batch: BatchSize | None = None,
    tokens_after: Callable[[int], int] = lambda _: 0,
    told: Mapping[str, list[float]] | None = None,
    before: Callable[[int], None] = lambda _: None,
    steps_before: int = 0,
    horizon: float | None = None,
    goes_on_from: Path | None = None,
    leaves_to: Path | None = None,
) -> list[float]:
    """Train a model in place; where several ranks do it, all of them call this together.

    Args:
        model: Its parameters that require gradients are trained.
        how: Learning rate, optimizer, checkpoints, ranks, curve; the rest is for `losses_of`.
        steps: Optimizer steps.
        losses_of: Step -> the losses of its micro-batches, weighted so that they add up to the loss of the batch.
            Each is back-propagated before the next is asked for, so that only one is in memory. The step is the
            position in the data: it may be asked for again, and the first to be asked for need not be 0. Of
            several ranks it gives the part of this one; see `Ranks.share`.
        micro_batch: Its `size` is what `losses_of` cuts batches by. When memory runs out it is halved, the
            gradients of the step are dropped, and the step is done again.
        tokens_after: From a number of steps to the tokens that these train on, for the curve.
        told: Lists that `losses_of` adds to. They are kept as the losses are: with checkpoints, and without what a
            step has told that is done again.
        before: Called before each step, outside of what is done again where memory runs out.
        steps_before: Steps of the trainings that this one goes on from, which warm-up and schedule count too.
        horizon: Steps, those before included, over which a schedule falls; None for all of this training, infinity
            for a rate that stays after its warm-up.
        goes_on_from: Output of a training that has left its optimizer there; None begins with a new one.
        leaves_to: Folder to leave the optimizer in for the next training; None for none.

    Returns:
        The loss of every step, of all ranks together. A model that is spread stays so: `distributed.save_model`
        saves it.

    Raises:
        JobError: The optimizer that it is to go on with is another model's, or is damaged.
        JobStopped: The run is about to end; the checkpoint is saved.
        OutOfMemory: Not even the smallest micro-batch fits.
    """
    ranks, checkpoint = how.ranks, how.checkpoint
    ranks.prepare(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    drawing = Drawing(how.curve, steps, ranks=ranks, tokens_after=tokens_after)
    micro_batch = micro_batch or BatchSize(1)
    state = TrainState(model, how, _optimizer(model, how), micro_batch, drawing, {} if told is None else told)
    if goes_on_from is not None:
        saved.restore_optimizer(goes_on_from, state.optimizer, ranks)
    if checkpoint is not None:
        state.resume(checkpoint)
    micro_batch.start_at(ranks.least(micro_batch.size))
    model.train()
    while state.step < steps:
        before(state.step)
        rate = rate_at(steps_before + state.step, how, horizon or steps_before + steps)
        loss, norm = _step(state, rate, trained, losses_of)
        state.history.append(loss)
        drawing.add(state.step, loss, norm, rate)
        if checkpoint is not None:
            checkpoint.after_step(state.step, state.snapshot, last=state.step == steps)
    drawing.save()
    if leaves_to is not None:
        saved.save_optimizer(leaves_to, state.optimizer, ranks)
    model.eval()
    return state.history


def _step(
    state: TrainState,
    rate: float,
    trained: list[nn.Parameter],
    losses_of: Callable[[int], Iterator[Tensor]],
) -> tuple[float, Tensor | None]:
    """One optimizer step: its loss, and the norm of its gradient where that is at hand or kept."""
    for group in state.optimizer.param_groups:
        group["lr"] = rate * group.get("scale", 1.0)
    before, told = saved.random_state(), {name: len(values) for name, values in state.told.items()}

    ranks, drawing, grad_clip = state.how.ranks, state.drawing, state.how.training.grad_clip
    is_kept = drawing.keeps(state.step + 1)

    def clip() -> Tensor | None:
        if grad_clip:
            return nn.utils.clip_grad_norm_(trained, grad_clip)
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
        saved.restore_random_state(*before)
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
    # Outside of what is repeated: it changes weights and moments in place, so this attempt is over.
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
    """Do this rank's part of a step; if one rank runs out of memory, all have, so that all do it again.

    Raises:
        MemoryError: Another rank ran out of memory.
        OutOfMemory: This one did, in the middle of what it does with the others.
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
            # The others wait for this one to gather a block of the model; the attempt is over, and the next one
            # starts with less.
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
    """Train a model in place on sequences that are there beforehand.

    Args:
        model: Its parameters that require gradients are trained.
        made: The sequences, and their loss.
        fitting: How.
        backbone: What gradient checkpointing is switched on for; None where that is the model.

    Returns:
        The loss of every step.

    Raises:
        ValueError: The batch size or the data do not consist of whole groups.
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
    # Of the data and not counted on the way: one that is resumed begins with what the steps before have done.
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
    """Have a model that is trained compute activations again in the backward pass, where that is asked for."""
    if fitting.training.gradient_checkpointing:
        load.checkpoint_activations(model)
        # With frozen weights below adapters no gradient would reach these otherwise.
        model.enable_input_require_grads()


def grouped_order(count: int, group: int, epochs: int, seed: int) -> NDArray[np.int64]:
    """Indices of all epochs, groups in an order of their own in each, their members adjacent."""
    groups = sequences.epoch_order(count // group, epochs, seed)
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


def trained_tokens(data: sequences.Sequences, epochs: int) -> int:
    """Tokens of prompts and completions that a training goes over."""
    return int(data.lengths.sum()) * epochs


def sft_set(model: nn.Module, data: sequences.Sequences) -> TrainingSet:
    """Completions to imitate; a batch's loss is the mean over the tokens of its completions.

    Args:
        model: The policy that is trained, on its device.
        data: Completions, whatever their labels.
    """
    tokens = data.supervised

    def loss_of(batch: sequences.Batch, part: NDArray[np.int64], whole: NDArray[np.int64]) -> Tensor:  # noqa: ARG001
        return -scoring.completion_logprobs(model, batch).sum() / max(1, int(tokens[whole].sum()))

    return TrainingSet(data, loss_of, about={"sequences": len(data)})


def fit_sft(model: nn.Module, data: sequences.Sequences, fitting: Fitting) -> list[float]:
    """Train a policy in place; see `sft_set`. Returns the loss of every step, in nats per token."""
    return fit(model, sft_set(model, data), fitting)
