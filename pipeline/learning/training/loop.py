"""One training loop for every method: optimizer, warm-up, schedule, clipping, accumulated micro-batches.

Deterministic: the order of the data comes from a seed, nothing is drawn while training, and a step is a function
of the weights, the optimizer's state and the number of the step, all of which `TrainState` holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from pipeline.config.schema import Optimizer, Schedule
from pipeline.learning.models.batch_size import BatchSize, is_out_of_memory
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
from pipeline.learning.training.curve import Curve, Drawing
from pipeline.learning.training.distributed import ALONE, Ranks

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
