"""Parameters and metrics in words, and which parameters tell trials apart."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.runs.report.format import short
from pipeline.sweeps.trials import SweepView, Trial, TrialState
from pipeline.terminal.streams import on_one_line


def said(value: Any) -> str:
    """A parameter on one line, as it would be typed: numbers with as many digits as tell something."""
    return short(value) if isinstance(value, float) else on_one_line(typed(value))


def typed(value: Any) -> str:
    """A parameter as it is typed, all digits of it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def plain(value: Any) -> Any:
    """Plain data in which all is JSON: a number that is infinite, or none, is said in words."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {name: plain(part) for name, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
    return value


def measured(value: float | None) -> str:
    """A value of the metric, or ""."""
    return "" if value is None else f"{value:.5g}"


def in_words(parameters: Mapping[str, Any], names: Iterable[str] | None = None) -> str:
    """Parameters in a line: ``lr=0.0003 eta=1``; those of the given names, where there are any."""
    chosen = parameters if names is None else [name for name in names if name in parameters]
    return " ".join(f"{on_one_line(name)}={said(parameters[name])}" for name in chosen)


def by_state(view: SweepView) -> dict[str, int]:
    """How many trials are in each state; they add up to all."""
    return {state.value: len(view.having(state)) for state in TrialState}


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
    every = {name: sum(name in trial.parameters for trial in trials) == len(trials) for name in values}
    told = [name for name, found in values.items() if len(found) > 1 or not every[name]]
    return told or list(values)
