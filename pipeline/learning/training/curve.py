"""The curve of a training while it is drawn: what of a step is kept for charts, said in the log, and shown live.

Rows are part of what a checkpoint holds, and are written when the training has ended, so that neither a second
attempt nor a second run has any of them twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from pipeline.errors import JobError
from pipeline.foreign import ForeignDataError, converted
from pipeline.learning.training.distributed import Ranks
from pipeline.outputs.formats import FIELDS, TrainingStep, is_kept, kept_number, write_curve

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


class _Sums:
    """Values that were added at one step, by name."""

    def __init__(self) -> None:
        self._added: dict[str, list[tuple[Tensor, int]]] = {}

    def add(self, name: str, values: Any) -> None:
        if name in FIELDS:
            raise JobError(
                f"add_to_curve({name}=...): every step has that by itself; give it another name. Taken are "
                f"{', '.join(FIELDS)}"
            )
        found = torch.as_tensor(values).detach()
        self._added.setdefault(name, []).append((found.double().sum(), found.numel()))

    def clear(self) -> None:
        self._added.clear()

    def means(self, ranks: Ranks) -> dict[str, float | None]:
        """The mean of each name over all ranks, which must all ask for it together."""
        own = {
            name: (sum(float(total) for total, _ in parts), sum(count for _, count in parts))
            for name, parts in self._added.items()
        }
        of_ranks = ranks.all_of(own)
        found = {}
        for name in dict.fromkeys(name for said in of_ranks for name in said):
            said = [one[name] for one in of_ranks if name in one]
            total, count = sum(total for total, _ in said), sum(count for _, count in said)
            found[name] = kept_number(total / count) if count else None
        return found


_SUMS: ContextVar[_Sums | None] = ContextVar("sums", default=None)


def add_to_curve(**values: Any) -> None:
    """Add numbers of your own to the curve of the training under way: call it where the loss is computed.

    What a step has under a name is the mean of all values that were added under it, of all micro-batches and
    ranks. At steps without a line, and where nothing is trained, this does nothing.

    Args:
        values: By name, a tensor of any shape, or a number: one value for each token, sequence or pair.

    Raises:
        JobError: A name is one that every step has by itself.
    """
    if (sums := _SUMS.get()) is not None:
        for name, value in values.items():
            sums.add(name, value)


def is_drawn() -> bool:
    """Whether what is added now is kept: for numbers that take time to compute."""
    return _SUMS.get() is not None


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
def not_drawn() -> Iterator[None]:
    """Let nothing be added meanwhile: what is computed is no part of the batch."""
    token = _SUMS.set(None)
    try:
        yield
    finally:
        _SUMS.reset(token)


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without a step.

        Args:
            curve: Where it goes; None keeps nothing.
            steps: Of the training.
            ranks: Who does the training.
            tokens_after: From a number of steps to the tokens that these train on.
            clock: Seconds.
        """
        self.rows: list[TrainingStep] = []
        self._curve = curve
        self._training = "" if curve is None else curve.training
        self._steps = steps
        self._ranks = ranks
        self._tokens_after = tokens_after
        self._clock = clock
        self._sums = _Sums()
        self._said_step, self._said_s = 0, clock()

    def begin(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Go on after some steps, of which a checkpoint has kept rows."""
        self.rows = [TrainingStep(**row) for row in rows]
        self._said_step = step

    def keeps(self, step: int) -> bool:
        """Whether a step, from 1, has a row."""
        return self._curve is not None and is_kept(step, self._steps)

    @contextmanager
    def adding(self, step: int) -> Iterator[None]:
        """Take what `add_to_curve` is given meanwhile, where the step has a row."""
        self._sums.clear()
        token = _SUMS.set(self._sums if self.keeps(step) else None)
        try:
            yield
        finally:
            _SUMS.reset(token)

    def drop(self) -> None:
        """Forget what was added: the step is done again."""
        self._sums.clear()

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
            "training": self._training,
            "step": step,
            "steps": self._steps,
            "tokens": self._tokens_after(step),
            "loss": kept_number(loss),
            "grad_norm": kept_number(float(norm.full_tensor() if isinstance(norm, DTensor) else norm)),
            "learning_rate": kept_number(rate) or 0.0,
            "extra": self._sums.means(self._ranks),
        }
        try:
            self.rows.append(converted(row, TrainingStep))
        except (
            ForeignDataError
        ) as error:  # told with the first step, and not when the output is held to its format
            raise JobError(f"the curve of {self._training!r} cannot have what is added to it: {error}") from error
        self._say(self.rows[-1])

    def save(self) -> None:
        """Write all rows to the job's output, beside those of trainings before."""
        if self._curve is not None and self._ranks.is_first:
            write_curve(self._curve.folder, self.rows)

    def _say(self, row: TrainingStep) -> None:
        now_s = self._clock()
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
