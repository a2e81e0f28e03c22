"""Bayesian search by Optuna's TPE, its study made anew of the trials whenever it is asked.

A distribution that Optuna has is its own; of every other one it searches shares of the probability, and W&B's rule
makes values of them. Trials that have no value yet are told as running, so that several at once are chosen apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.config.install import install_command
from pipeline.errors import ConfigError
from pipeline.sweeps import space
from pipeline.sweeps.searching.impute import ToldValue, told
from pipeline.sweeps.searching.random_search import share
from pipeline.sweeps.spec import Metric, Sweep
from pipeline.sweeps.trials import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

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
