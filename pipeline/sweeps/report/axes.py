"""Parameters as axes: those that trials differ in, by their size, by its order of magnitude, or as choices."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from statistics import median
from types import MappingProxyType
from typing import Any

from pipeline.runs.comparison.runs import headings_of
from pipeline.sweeps.report.model import Axis
from pipeline.sweeps.space import Beta, LogNormal, LogUniform, Normal, Parameter, Quantized, Uniform, WholeUniform
from pipeline.sweeps.trials import Trial
from pipeline.sweeps.values import said

_ORDERS = 50.0
"""A positive parameter whose largest value is so many times its smallest one is seen by its order of magnitude."""
_FEW = 6
"""Numbers that are tried again and again, and are no more than so many, stand in equal distances."""
_EVEN = (Uniform, WholeUniform, Normal, Beta)
"""What is drawn so is seen by its size."""


def axes_of(trials: Sequence[Trial], asked: Mapping[str, Parameter] = MappingProxyType({})) -> list[Axis]:
    """Parameters that not all trials have the same of.

    Args:
        trials: The trials.
        asked: Parameters of the sweep file, as far as that can be read.
    """
    found: dict[str, list[tuple[int, Any]]] = {}
    for at, trial in enumerate(trials):
        for name, value in trial.parameters.items():
            found.setdefault(name, []).append((at, value))
    differing = {
        name: dict(own)
        for name, own in found.items()
        if len({key_of(value) for _, value in own}) > 1 or len(own) < len(trials)
    }
    headings = headings_of(list(differing), found)
    return [
        _axis(name, headings[name], own, len(trials), log=_log(asked.get(name), list(own.values())))
        for name, own in differing.items()
    ]


def _log(parameter: Parameter | None, values: Sequence[Any]) -> bool:
    """Whether the axis is one of orders of magnitude: by what the values were drawn from, else by how they lie."""
    if not are_numbers(values) or min(values) <= 0:
        return False
    drawn = parameter.distribution if parameter else None
    drawn = drawn.of if isinstance(drawn, Quantized) else drawn
    if isinstance(drawn, LogUniform | LogNormal):
        return True
    return not isinstance(drawn, _EVEN) and by_size(values)


def _axis(name: str, heading: str, own: Mapping[int, Any], trials: int, *, log: bool) -> Axis:
    values = list(own.values())
    different = len({key_of(value) for value in values})
    if are_numbers(values) and (different > _FEW or different == len(values)):
        numbers = [float(own[at]) if at in own else None for at in range(trials)]
        return Axis(name=name, heading=heading, kind="log" if log else "linear", values=numbers)
    choices = sorted({key_of(value): value for value in values}.items(), key=lambda item: _order(item[1]))
    places = {key: float(place) for place, (key, _) in enumerate(choices)}
    return Axis(
        name=name,
        heading=heading,
        kind="choices",
        values=[places[key_of(own[at])] if at in own else None for at in range(trials)],
        choices=[said(value) for _, value in choices],
    )


def key_of(value: Any) -> str:
    """What two values have in common that are the same one, lists and mappings too; 1, 1.0 and true are three."""
    return json.dumps(value, sort_keys=True)


def _order(value: Any) -> tuple[int, float, str]:
    """Numbers by their size, before texts."""
    return (0, float(value), "") if are_numbers([value]) else (1, 0.0, said(value))


def are_numbers(values: Sequence[Any]) -> bool:
    """Whether values stand on an axis of numbers."""
    return all(
        isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300
        for value in values
    )


def by_size(values: Sequence[Any]) -> bool:
    """Whether numbers are best seen by their order of magnitude, as learning rates are.

    Their median tells: it stands near the middle on the axis on which they are evenly spread.
    """
    if min(values) <= 0 or max(values) / _ORDERS < min(values):
        return False
    off_linear, off_log = (_off_middle(list(map(on, values))) for on in (float, math.log))
    return off_log < off_linear


def _off_middle(values: Sequence[float]) -> float:
    """How far from the middle of its ends the median stands, as a part of the whole."""
    return abs((median(values) - min(values)) / (max(values) - min(values)) - 0.5)
