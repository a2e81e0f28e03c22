"""What was measured of trials: the last values of all that they logged, the metric while they ran, their time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pipeline.runs.report.page.html import points_each, thinned
from pipeline.sweeps.folder import SweepFolder
from pipeline.sweeps.recorded import last_values, logged_lines, naming, parsed
from pipeline.sweeps.report.model import Curve, Measure
from pipeline.sweeps.trials import SweepView, Trial, TrialState

SECONDS = "seconds"
_LAST = 50
"""Lines at the end of a log in which every metric is named that is still logged."""
_MOST = 12
"""Measures that a page offers, those that most trials have; one that is the same in all of them tells nothing."""
_LESS_IS_BETTER = re.compile(
    r"loss|error|perplexity|ppl|(^|[/._])kl|regret|crash|truncated|second|time|latency|memory|flops|cost",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was read of one trial.

    Attributes:
        values: Metric -> what was logged last.
        curve: Steps of the sweep's metric, thinned, and its values.
        logged: How many of those there are.
    """

    values: Mapping[str, float | None] = field(default_factory=dict)
    curve: Sequence[tuple[int, float | None]] = ()
    logged: int = 0


def measured_of(folder: SweepFolder, trials: Sequence[Trial], metric: str) -> list[Measured]:
    """Read what trials have logged, each no further than can be drawn."""
    most = points_each(len(trials))
    return [_read(folder, trial, metric, most) for trial in trials]


def _read(folder: SweepFolder, trial: Trial, metric: str, most: int) -> Measured:
    lines = logged_lines(folder.trial(trial.number).metrics(max(1, trial.attempts)))
    of_metric = naming(lines, metric) if metric else []
    points = [
        (number if said.step is None else said.step, said.values[metric])
        for number, line in thinned(list(enumerate(of_metric, 1)), most)
        for said in parsed([line])
        if metric in said.values
    ]
    return Measured(
        values={**last_values(parsed(lines[-_LAST:])), **trial.values}, curve=points, logged=len(of_metric)
    )


def values_of(trials: Sequence[Trial], measured: Sequence[Measured], metric: str) -> list[float | None]:
    """The metric of each trial: at its end, or as far as it has come."""
    return [
        trial.value if trial.value is not None else found.values.get(metric)
        for trial, found in zip(trials, measured, strict=True)
    ]


def measures_of(view: SweepView, trials: Sequence[Trial], measured: Sequence[Measured]) -> list[Measure]:
    """The metric, other metrics, and seconds."""
    found: dict[str, list[float | None]] = {}
    for at, one in enumerate(measured):
        for name, value in one.values.items():
            found.setdefault(name, [None] * len(trials))[at] = value
    found.pop(view.metric, None)
    telling = [name for name, values in found.items() if len(set(values) - {None}) > 1]
    others = sorted(telling, key=lambda name: -sum(value is not None for value in found[name]))[:_MOST]
    seconds = [_seconds(trial) for trial in trials]
    own = [Measure(name=view.metric, goal=view.goal.value, values=values_of(trials, measured, view.metric))]
    return [
        *(own if view.metric else []),
        *(Measure(name=name, goal=_goal(name), values=found[name]) for name in others),
        Measure(name=SECONDS, goal="minimize", values=seconds),
    ]


def _seconds(trial: Trial) -> float | None:
    if trial.state is not TrialState.done or trial.started is None or trial.ended is None:
        return None
    return trial.ended - trial.started


def _goal(name: str) -> Literal["minimize", "maximize"]:
    return "minimize" if _LESS_IS_BETTER.search(name) else "maximize"


def curves_of(trials: Sequence[Trial], measured: Sequence[Measured]) -> tuple[list[Curve], str]:
    """The metric of trials that have logged it more than once, and how many points these are of how many."""
    shown = [(trial, found) for trial, found in zip(trials, measured, strict=True) if len(found.curve) > 1]
    curves = [
        Curve(
            trial=trial.number,
            steps=[step for step, _ in found.curve],
            values=[value for _, value in found.curve],
        )
        for trial, found in shown
    ]
    points, logged = sum(len(found.curve) for _, found in shown), sum(found.logged for _, found in shown)
    about = f"{points:,} of {logged:,} values that were logged, evenly spread." if points < logged else ""
    return curves, about
