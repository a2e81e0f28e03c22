"""How much each parameter decides whether a trial is among the best: PED-ANOVA, as Optuna computes it."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.sweeps.report.axes import are_numbers, by_size, key_of
from pipeline.sweeps.spec import Goal
from pipeline.sweeps.trials import Trial, TrialState, is_number

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

FEWEST = 10
"""Trials with a value, below which such a share says nothing."""
_BEST = 10
"""Trials that the best are, where a tenth of all would be fewer; but never more than half of all."""


def importance(trials: Sequence[Trial], goal: Goal) -> dict[str, float]:
    """Share of each parameter that every trial has and that differs, the largest first; they add up to 1.

    Nothing where there are too few trials, where they tell nothing, or where Optuna is not installed.
    """
    ended = _ended(trials)
    names = shared(ended)
    if len(ended) < FEWEST or not names or len({trial.value for trial in ended}) < 2:
        return {}
    try:
        import optuna
        from optuna.importance import PedAnovaImportanceEvaluator
    except ImportError:
        return {}
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(direction=goal.value)
        spaces = {name: distribution([trial.parameters[name] for trial in ended]) for name in names}
        for trial in ended:
            given = {name: as_told(trial.parameters[name], space) for name, space in spaces.items()}
            study.add_trial(optuna.trial.create_trial(params=given, distributions=spaces, value=trial.value))
        part = (best_of(len(ended)) - 0.5) / len(ended)  # Optuna rounds up: of a whole number that may be the next
        return _shares(PedAnovaImportanceEvaluator(target_quantile=part).evaluate(study))


def best_of(trials: int) -> int:
    """How many of so many trials are the best ones, which are compared with all."""
    return max(trials // 10, min(_BEST, trials // 2))


def compared(trials: Sequence[Trial], goal: Goal) -> tuple[int, int]:
    """How many trials count as the best ones, those that are as good as the last of them too, and of how many."""
    sign = 1.0 if goal is Goal.minimize else -1.0
    values = sorted(sign * trial.value for trial in _ended(trials) if trial.value is not None)
    return (bisect_right(values, values[best_of(len(values)) - 1]) if len(values) > 1 else 0), len(values)


def _ended(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.state is TrialState.done and is_number(trial.value)]


def _shares(found: Mapping[str, float]) -> dict[str, float]:
    whole = sum(value for value in found.values() if math.isfinite(value))
    if not whole > 0:
        return {}
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return {name: value / whole for name, value in ordered if math.isfinite(value)}


def shared(trials: Sequence[Trial]) -> list[str]:
    """Parameters that all of the trials have, and not all the same value of."""
    names = trials[0].parameters if trials else ()
    return [
        name
        for name in names
        if all(name in trial.parameters for trial in trials)
        and len({key_of(trial.parameters[name]) for trial in trials}) > 1
    ]


def distribution(values: Sequence[Any]) -> BaseDistribution:
    """What the values of a parameter were chosen from, as far as they tell."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if are_numbers(values):
        return FloatDistribution(float(min(values)), float(max(values)), log=by_size(values))
    return CategoricalDistribution(sorted({key_of(value) for value in values}))


def as_told(value: Any, space: BaseDistribution) -> Any:
    """A value as Optuna has it: lists and mappings, which it cannot keep, as text."""
    return key_of(value) if hasattr(space, "choices") else float(value)
