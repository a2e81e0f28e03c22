"""The value that a trial counts as in a search: its own, or the one that stands for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.sweeps.spec import Goal, Impute, Metric
from pipeline.sweeps.trials import Trial, TrialState, is_number

_ENDED = {TrialState.done, TrialState.stopped}
_WITHOUT = {TrialState.failed}


@dataclass(frozen=True)
class ToldValue:
    """What a search is told of a trial.

    Attributes:
        value: Of the metric; None while there is none.
    """

    value: float | None = None


def told(trial: Trial, trials: Sequence[Trial], metric: Metric) -> ToldValue | None:
    """What a search is told of a trial; None for nothing.

    A trial that ended with a number counts as that. One that failed, or whose number is none, counts as
    `metric.impute` says; one that runs as `metric.impute_while_running` says, else as chosen and not known.

    Args:
        trial: The trial.
        trials: All of them.
        metric: Of the sweep.
    """
    if trial.state is TrialState.cancelled:
        return None
    if trial.state in _ENDED and is_number(trial.value):
        return ToldValue(trial.value)
    if trial.state in _ENDED | _WITHOUT:
        return ToldValue(_imputed(metric.impute, trial, trials, metric))
    if trial.state is TrialState.running and metric.impute_while_running is not None:
        return ToldValue(_imputed(metric.impute_while_running, trial, trials, metric))
    return ToldValue()


def _imputed(rule: Impute, trial: Trial, trials: Sequence[Trial], metric: Metric) -> float:
    """The value that stands for that of a trial.

    The worst is of the trials that have ended, 0 where none has a number, as at W&B. One that has logged nothing
    counts as the worst by every rule: W&B takes 0 then, which may be better than all others.
    """
    latest = trial.values.get(metric.name) if trial.value is None else trial.value
    own = {Impute.latest: latest, Impute.best: trial.best, Impute.worst: None}[rule]
    if own is not None and math.isfinite(own):
        return own
    known = [each.value for each in trials if each.state in _ENDED and each.value is not None]
    numbers = [value for value in known if math.isfinite(value)]
    worst = max if metric.goal is Goal.minimize else min
    return worst(numbers, default=0.0)
