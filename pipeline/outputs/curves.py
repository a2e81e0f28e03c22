"""The curves of trainings: ``metrics.jsonl`` in the output of a job that trains, a step on every line.

What stands there follows from the job's key alone, so nothing of time or machine is in it: how long things took is
in ``timings.jsonl`` of the run. Nothing that decides a result reads it, and outputs of older versions have none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from pipeline.files import json_text
from pipeline.foreign import ForeignDataError, converted, read_json, read_plain
from pipeline.outputs.formats import LARGEST, Count, Name, Number

CURVES = "metrics.jsonl"
MAX_STEPS = 500
"""Steps of a training that are kept, besides the first and the last."""
_DIGITS = 6
"""Of a number that is kept: more than any reader needs, and a third of the file."""

_Step = Annotated[int, Meta(ge=1, le=2**53)]
_Extra = Annotated[dict[Name, Number | None], Meta(max_length=50)]


@dataclass(frozen=True, kw_only=True)
class TrainingStep:
    """One optimizer step of a training: a line of ``metrics.jsonl``.

    Attributes:
        training: Which of the job's trainings, as ``policy``, ``value``, ``reference``, ``reward_model``.
        step: Its number, from 1.
        steps: How many the training has.
        tokens: Of prompts and completions that were trained on up to here.
        loss: Of the step's batch; None where it is no finite number, as of a training that has diverged.
        grad_norm: Norm of the gradient before it is clipped; None likewise.
        learning_rate: Of the step; the head of a value model may have another one.
        extra: What else the method tells of the step, as ``accuracy`` or ``kl``; in the file beside the others.
    """

    training: Name
    step: _Step
    steps: _Step
    tokens: Count
    loss: Number | None
    grad_norm: Number | None
    learning_rate: Number
    extra: _Extra = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (self.training, *self.extra):
            if not name.isprintable() or name != name.strip():
                raise ValueError(
                    f"expected a name that can be printed, without blanks around it, got {name[:40]!a}"
                )
        if self.step > self.steps:
            raise ValueError(f"expected `step` <= `steps`, got {self.step} and {self.steps}")


FIELDS = tuple(name for name in TrainingStep.__dataclass_fields__ if name != "extra")
"""What every line has."""


def is_kept(step: int, steps: int) -> bool:
    """Whether a step, from 1, has a line: the first, the last, and at equal distances `MAX_STEPS` at most."""
    return step in (1, steps) or step % math.ceil(steps / MAX_STEPS) == 0


def kept_number(value: float) -> float | None:
    """A number as a line has it; None for what is no finite number, or too large for one."""
    return float(f"{value:.{_DIGITS}g}") if abs(value) <= LARGEST else None


def write_curve(folder: Path, rows: Iterable[TrainingStep]) -> None:
    """Add the steps of a training to those of the trainings before it, if there are any.

    Raises:
        OSError: They cannot be written.
    """
    with (folder / CURVES).open("a", encoding="utf-8", newline="") as file:
        file.writelines(json_text(_line(row)) + "\n" for row in rows)


def read_curve(folder: Path) -> list[TrainingStep]:
    """Read the steps of all trainings of an output; none where it has no curves.

    Raises:
        ForeignDataError: They are not as they must be; says in which line.
        OSError: They cannot be read.
    """
    try:
        lines = read_plain(folder / CURVES).splitlines()
    except FileNotFoundError:
        return []
    rows: list[TrainingStep] = []
    last: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = _row(line)
            if row.step <= last.get(row.training, 0):
                raise ForeignDataError(
                    f"expected a `step` of {row.training!r} after {last[row.training]}, got {row.step}"
                )
        except ForeignDataError as error:
            raise ForeignDataError(f"line {number}: {error}") from error
        last[row.training] = row.step
        rows.append(row)
    return rows


def _line(row: TrainingStep) -> dict[str, Any]:
    return {**{name: getattr(row, name) for name in FIELDS}, **row.extra}


def _row(line: bytes) -> TrainingStep:
    found: dict[str, Any] = read_json(line, dict[str, Any])
    extra = converted({name: value for name, value in found.items() if name not in FIELDS}, _Extra)
    return converted({**{name: found[name] for name in FIELDS if name in found}, "extra": extra}, TrainingStep)


def by_training(rows: Iterable[TrainingStep]) -> Mapping[str, list[TrainingStep]]:
    """The steps of each training, in the order in which trainings begin."""
    found: dict[str, list[TrainingStep]] = {}
    for row in rows:
        found.setdefault(row.training, []).append(row)
    return found
