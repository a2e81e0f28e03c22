"""Trials in words: parameters and metrics, in which of them trials differ, how many there are in each state."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.runs.report.format import short
from pipeline.terminal.streams import on_one_line

if TYPE_CHECKING:
    from pipeline.sweeps.storage import Trial


def said(value: Any) -> str:
    """A parameter on one line, as it would be typed: numbers with as many digits as tell something."""
    return short(value) if isinstance(value, float) else on_one_line(typed(value))


def typed(value: Any) -> str:
    """A parameter as it is typed, all digits of it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def plain(value: Any) -> Any:
    """Plain data in which all is JSON: a number that is infinite, or none, is said in words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def measured(value: Any) -> str:
    """A value of the metric, or ""."""
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else said(value)


def in_words(parameters: Mapping[str, Any], names: Iterable[str] | None = None) -> str:
    """Parameters in a line: ``lr=0.0003 eta=1``; those of the given names, where there are any."""
    chosen = parameters if names is None else [name for name in names if name in parameters]
    return " ".join(f"{on_one_line(name)}={said(parameters[name])}" for name in chosen)


def by_state(trials: Iterable[Trial], states: Iterable[str]) -> dict[str, int]:
    """How many trials are in each state; they add up to all."""
    found = dict.fromkeys(states, 0)
    for trial in trials:
        found[trial.state] += 1
    return found


def counted(numbers: Mapping[str, int]) -> str:
    """The same in words, without states that no trial is in: ``17 done, 7 stopped``."""
    return ", ".join(f"{number:,} {state}" for state, number in numbers.items() if number)


def varied(trials: Sequence[Trial]) -> list[str]:
    """Names of parameters that not all trials have the same of, in the order in which they were first chosen.

    Of one trial alone that is all of them.
    """
    values: dict[str, set[str]] = {}
    for trial in trials:
        for name, value in trial.parameters.items():
            values.setdefault(name, set()).add(said(value))
    every = {name: all(name in trial.parameters for trial in trials) for name in values}
    return [name for name, found in values.items() if len(found) > 1 or not every[name]] or list(values)


def effective_batch(parameters: Mapping[str, Any], num_gpus: int) -> int | None:
    """Sequences of one step of the optimizer: of a device, times devices, times micro-batches.

    Args:
        parameters: Of the trial, by dotted name. ``batch_size`` is that of one device, as with torchrun.
        num_gpus: Devices of the trial.

    Returns:
        None where the parameters do not tell: without a batch size, or with nothing that it is multiplied by.
    """
    for name, size in parameters.items():
        section, _, last = name.rpartition(".")
        times = parameters.get(f"{section}.{_TIMES}" if section else _TIMES)
        known = times is not None or (not section and (num_gpus > 1 or "num_gpus" in parameters))
        factors = (size, 1 if times is None else times)
        if last == "batch_size" and known and all(type(factor) is int and factor > 0 for factor in factors):
            return int(factors[0] * factors[1] * max(1, num_gpus))
    return None


_TIMES = "gradient_accumulation_steps"
