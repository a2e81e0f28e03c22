"""Bayesian search by Optuna's TPE, its study made anew of the trials whenever it is asked.

A distribution that Optuna has is its own; of every other one it searches shares of the probability, and W&B's rule
makes values of them. Trials that have no value yet are told as running, so that several at once are chosen apart.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.config.install import install_command
from pipeline.errors import ConfigError
from pipeline.sweeps import space
from pipeline.sweeps.searching.search import share
from pipeline.sweeps.spec import Goal, Impute, Metric, Sweep
from pipeline.sweeps.trials import Trial, TrialState, is_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


# -- impute ------------------------------------------------------------------------------------------------------
# The value that a trial counts as in a search: its own, or the one that stands for it.


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


_LARGEST_WHOLE = 1 << 53
_MOST_LABELS = 1_000
"""Values of a choice that are told apart; of more, no search learns which is best."""


def check_installed() -> None:
    """Whether there is Optuna.

    Raises:
        ConfigError: There is not; says how to install it.
    """
    if not installed():
        raise ConfigError(
            f"method: bayes is Optuna's search, which is not installed: {install_command('sweeps')}, or say "
            "`method: random`"
        )


def installed() -> bool:
    """Whether there is Optuna."""
    from importlib.util import find_spec

    return find_spec("optuna") is not None


def suggest(sweep: Sweep, metric: Metric, trials: Sequence[Trial]) -> dict[str, Any]:
    """Parameters of the next trial, by dotted name; the same ones for the same trials.

    Args:
        sweep: The sweep.
        metric: Its metric.
        trials: All so far.
    """
    axes = {name: axis_of(parameter) for name, parameter in searched(sweep).items()}
    with quiet():
        study = _study(sweep, metric, len(trials))
        for trial in trials:
            frozen = _frozen(trial, told(trial, trials, metric), axes)
            if frozen is not None:
                study.add_trial(frozen)
        asked = study.ask({name: axis.distribution for name, axis in axes.items()}).params
    return {
        name: axes[name].value(asked[name]) if name in axes else parameter.distribution.at(0.5)
        for name, parameter in sweep.parameters.items()
    }


def searched(sweep: Sweep) -> dict[str, space.Parameter]:
    """Parameters that have more than one value."""
    return {
        name: each for name, each in sweep.parameters.items() if not isinstance(each.distribution, space.Constant)
    }


@contextmanager
def quiet() -> Iterator[None]:
    """Without Optuna's log of each trial, and its notes that options of its samplers may change."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def _study(sweep: Sweep, metric: Metric, number: int) -> Study:
    """An empty study; its draws depend on the seed of the sweep and the number of the trial alone."""
    import optuna

    seed = int(share(f"{sweep.options.seed}/{number}") * (1 << 32))
    sampler = optuna.samplers.TPESampler(multivariate=True, group=True, constant_liar=True, seed=seed)
    return optuna.create_study(sampler=sampler, direction=metric.goal.value)


def _frozen(trial: Trial, known: ToldValue | None, axes: Mapping[str, Axis]) -> FrozenTrial | None:
    """A trial as Optuna knows it; None for one that says nothing, or is of other parameters."""
    from optuna.trial import TrialState, create_trial

    if known is None or not all(name in trial.parameters for name in axes):
        return None
    given = {name: axis.told(trial.parameters[name]) for name, axis in axes.items()}
    if any(value is None for value in given.values()):
        return None
    return create_trial(
        state=TrialState.RUNNING if known.value is None else TrialState.COMPLETE,
        value=known.value,
        params=given,
        distributions={name: axis.distribution for name, axis in axes.items()},
    )


# -- parameters as Optuna has them -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """A parameter as Optuna searches it: by what it calls the values.

    Attributes:
        distribution: Optuna's.
        of: Ours.
        labels: Names of the values of a choice; none for numbers.
        shares: Whether shares of the probability are searched.
    """

    distribution: BaseDistribution
    of: space.Distribution
    labels: tuple[str, ...] = ()
    shares: bool = False

    def value(self, asked: Any) -> Any:
        """What Optuna has chosen, as a value of ours."""
        if isinstance(self.of, space.Choice) and self.labels:
            return self.of.values[self.labels.index(asked)]
        return self.of.at(min(max(asked, space.LEAST_SHARE), 1 - space.LEAST_SHARE)) if self.shares else asked

    def told(self, value: Any) -> Any:
        """A value of ours as Optuna's; None for one that the distribution does not have."""
        try:
            if isinstance(self.of, space.Choice) and self.labels:
                return self.labels[self.of.position(value)]
            found = self.of.below(value) if self.shares else value
            inside = self.distribution._contains(self.distribution.to_internal_repr(found))
        except (TypeError, ValueError):  # another type: the file was changed
            return None
        return found if inside else None


def axis_of(parameter: space.Parameter) -> Axis:
    """How a parameter is searched."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    match parameter.distribution:
        case space.Choice(values=values, probabilities=None) as of if len(values) <= _MOST_LABELS:
            labels = labels_of(values)
            return Axis(CategoricalDistribution(labels), of, labels)
        case space.WholeUniform(min=low, max=high) as of if max(abs(low), abs(high)) <= _LARGEST_WHOLE:
            return Axis(IntDistribution(low, high), of)
        case space.Uniform(min=low, max=high) as of:
            return Axis(FloatDistribution(low, high), of)
        case space.LogUniform(min=low, max=high) as of:
            return Axis(FloatDistribution(low, high, log=True), of)
        case of:
            return Axis(FloatDistribution(0.0, 1.0), of, shares=True)


def shown_axis(parameter: space.Parameter) -> Axis:
    """How the values of a parameter are shown: as themselves, where they are searched by shares."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    axis = axis_of(parameter)
    match parameter.distribution:
        case space.Choice(values=values) as of if len(values) <= _MOST_LABELS:
            return Axis(CategoricalDistribution(labels_of(values)), of, labels_of(values))
        case space.Quantized(of=inner, q=q) as of:
            low, high = inner.at(space.LEAST_SHARE), inner.at(1 - space.LEAST_SHARE)
            return Axis(FloatDistribution(low - q, high + q), of)
        case space.Normal() | space.LogNormal() | space.Beta() | space.WholeUniform() as of if axis.shares:
            return Axis(FloatDistribution(of.at(space.LEAST_SHARE), of.at(1 - space.LEAST_SHARE)), of)
    return axis


def labels_of(values: Sequence[Any]) -> tuple[str, ...]:
    """Names of values, all different: ``True`` and ``1`` are equal for Optuna, and tables are none of its."""
    plain = tuple(str(value) for value in values)
    return plain if len(set(plain)) == len(plain) else tuple(f"{n}: {each}" for n, each in enumerate(plain))
