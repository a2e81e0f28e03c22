"""Training on batches that are drawn on the way, each by the policy as it has become by then.

    batch 0: drawn, scored -> its steps     batch 1: drawn, scored -> its steps     ...

As TRL's `GRPOTrainer` does: ``steps_per_generation`` optimizer steps on each batch, ``num_iterations`` times.
Who draws, and what the loss is, are functions; a step is as in any other training.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.learning.models.batch_size import MICRO_BATCH, BatchSizes
from pipeline.learning.models.flops import Purpose, metered, model_cost, spend
from pipeline.learning.training.curve import add_to_curve, is_drawn, not_drawn
from pipeline.learning.training.loop import train
from pipeline.learning.training.policy import (
    REMEDY_OF_POLICIES,
    Fitting,
    TrainingSet,
    by_length,
    grouped_order,
    keep_few_activations,
    loop_settings,
    rounding,
    work_of,
)
from pipeline.learning.training.scoring import passes_of, without_padding
from pipeline.learning.training.sequences import batch_of


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
