"""What follows from the trials so far: which comes next, when no more do, and what an end of one means. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.errors import ConfigError, describe_exit, known_names
from pipeline.sweeps.spec import Goal, Metric, Sweep
from pipeline.sweeps.trials import SweepView, Trial, TrialState, is_number

MAX_LOSSES = 5
"""Agents that may die with a trial: one that takes its machine along would do so for ever."""
NUM_GPUS = "num_gpus"
"""The parameter that says how many devices a trial needs."""


def devices_needed(parameters: Mapping[str, Any], otherwise: int) -> int:
    """How many devices a trial with these parameters needs.

    Args:
        parameters: Dotted name -> value.
        otherwise: The number where it is no parameter.

    Raises:
        ConfigError: It is no number of devices.
    """
    given = parameters.get(NUM_GPUS, otherwise)
    if isinstance(given, bool) or not isinstance(given, int | float) or given != given // 1 or given < 1:
        raise ConfigError(f"parameter {NUM_GPUS}={given!r}: how many devices a trial needs, 1 or more")
    return int(given)


def ready(view: SweepView, max_attempts: int) -> list[Trial]:
    """The trials that wait to be begun, or begun again, in the order in which they were chosen.

    One that ended well and has told no value of the metric would do the same again.
    """
    failed = view.having(TrialState.failed)
    again = {trial.number for trial in failed if trial.failures < max_attempts and trial.exit_code != 0}
    waiting = view.having(TrialState.waiting, TrialState.lost, TrialState.failed)
    return [trial for trial in waiting if trial.state is not TrialState.failed or trial.number in again]


def next_of(trials: Sequence[Trial], pool: int) -> Trial | None:
    """The trial whose turn it is on so many devices; None where there is none that they would do for.

    It keeps its turn until it has its devices: smaller ones that could start now would keep a large one waiting
    for as long as there are such.
    """
    return next((trial for trial in trials if trial.num_gpus <= pool), None)


def too_large(trials: Sequence[Trial], pool: int) -> list[Trial]:
    """Those that need more devices than there are."""
    return [trial for trial in trials if trial.num_gpus > pool]


def may_create(view: SweepView, sweep: Sweep) -> bool:
    """Whether a further trial may be chosen: neither the file nor the command that began the sweep has enough."""
    caps = [cap for cap in (sweep.run_cap, view.count) if cap is not None]
    return len(view.trials) < min(caps, default=len(view.trials) + 1)


def reached(view: SweepView, metric: Metric | None) -> str:
    """Which trial has reached the target, in words; "" where none has, or there is no target."""
    if metric is None or metric.target is None:
        return ""
    sign = 1 if metric.goal is Goal.minimize else -1
    for trial in view.having(TrialState.done, TrialState.stopped):
        if trial.value is not None and is_number(trial.value) and sign * trial.value <= sign * metric.target:
            return f"trial {trial.number} has reached the target: {metric.name} {trial.value:g}"
    return ""


def why_stop(view: SweepView, max_failures: int) -> str:
    """Why no more trials are to be begun, in words; "" to go on."""
    if len(view.failing) < max_failures:
        return ""
    last = view.trials[view.failing[-1]]
    return f"{len(view.failing)} trials in a row failed, the last of them trial {last.number}: {last.reason}"


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How an attempt has ended: the fields of `TrialEnded`."""

    state: TrialState
    value: float | None = None
    best: float | None = None
    values: Mapping[str, float | None]
    exit_code: int | None = None
    reason: str = ""

    def fields(self) -> dict[str, Any]:
        """As they are written."""
        return {
            "state": self.state.value,
            "value": self.value,
            "best": self.best,
            "values": dict(self.values),
            "exit_code": self.exit_code,
            "reason": self.reason,
        }


def ending(
    metric: Metric | None,
    curve: Sequence[float | None],
    values: Mapping[str, float | None],
    exit_code: int | None,
    asked: tuple[TrialState, str] | None,
) -> Ending:
    """What the end of an attempt means.

    Args:
        metric: What trials are judged by.
        curve: What it has logged of that, in order; None for what is no finite number.
        values: What it logged last, of everything.
        exit_code: Of its program; negative or above 128 for a signal, None where that is not known.
        asked: What it was ended for, if it was.
    """
    ended = Ending(
        state=TrialState.done,
        value=curve[-1] if curve else None,
        best=_best(metric, curve),
        values=values,
        exit_code=exit_code,
    )
    if asked is not None and not (exit_code == 0 and asked[0] is TrialState.waiting):
        value = ended.value if asked[0] is TrialState.stopped else None
        return replace(ended, state=asked[0], reason=asked[1], value=value)
    if exit_code != 0:
        reason = describe_exit(_as_signal(exit_code))
        return replace(ended, state=TrialState.failed, reason=reason, value=None)
    if metric is not None and not curve:
        return replace(ended, state=TrialState.failed, reason=_logged_nothing(metric, values))
    if metric is not None and ended.value is None:
        return replace(ended, reason=f"{metric.name} was no finite number at the end")
    return ended


def as_given(ended: Ending, others: Sequence[str], exit_code: int = 0) -> Ending:
    """The same, but that a trial has failed which W&B knows with other settings, or as failed: it has no value.

    Args:
        ended: How it ended.
        others: Settings that W&B has and the sweep did not give, in words.
        exit_code: With which its run at W&B ended: of a program that goes on after an exception, not that of its
            process.
    """
    if others and ended.state in (TrialState.done, TrialState.stopped):
        reason = f"it ran with other settings: W&B's file of it has {'; '.join(others)}"
    elif exit_code and ended.state is TrialState.done:
        reason = f"its run at W&B failed, with exit code {exit_code}, though its program ended well"
    else:
        return ended
    return replace(ended, state=TrialState.failed, value=None, best=None, reason=reason)


def so_far(trial: Trial, metric: Metric | None, curve: Sequence[float | None]) -> Trial:
    """A running trial with the last and the best number of the metric that it has logged.

    Args:
        trial: The trial.
        metric: What trials are judged by.
        curve: What it has logged of that, in order; None for what is no finite number.
    """
    return replace(trial, value=next(reversed(_finite(curve)), None), best=_best(metric, curve))


def _finite(curve: Sequence[float | None]) -> list[float]:
    return [value for value in curve if value is not None and is_number(value)]


def _best(metric: Metric | None, curve: Sequence[float | None]) -> float | None:
    finite = _finite(curve)
    if metric is None or not finite:
        return None
    return min(finite) if metric.goal is Goal.minimize else max(finite)


def _as_signal(exit_code: int | None) -> int | None:
    """The exit code of a shell for a signal, as Python has it."""
    return 128 - exit_code if exit_code is not None and 128 < exit_code < 160 else exit_code


def _logged_nothing(metric: Metric, values: Mapping[str, float | None]) -> str:
    said = f"it ended well, but has told no value of {metric.name}"
    call = f"pipeline.sweeps.log({_as_argument(metric.name)})"
    if not values:
        return (
            f"{said}: nothing that it logged was found; call {call}. W&B's client leaves nothing to be found "
            "where its mode is disabled, and where it is silent and has a dir of its own"
        )
    return f"{said}.{known_names(metric.name, values)} Set metric.name of the sweep to one of them, or call {call}"


def _as_argument(name: str) -> str:
    return f"{name}=..." if name.isidentifier() else f'{{"{name}": ...}}'
