"""Choose the settings of a sweep to try next, and the trials to stop early: pure for the trials so far.

Optuna's samplers choose. A study is made anew of the trials whenever one is asked, so that whoever holds the
sweep's lock can ask, and a killed agent loses nothing. Trials without a value yet count as running, so that those
that run at once are chosen apart.
"""

import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.sweeps.file import Hyperband, Metric, Sweep
from pipeline.sweeps.storage import Trial


def ask(sweep: Sweep, trials: Sequence[Trial]) -> Trial | None:
    """Choose the settings of the next new trial, the same ones for the same trials; None where none is left.

    Args:
        sweep: The sweep.
        trials: All that were chosen so far, in their order, whatever became of them.
    """
    if sweep.method == "grid":
        return _point(sweep, len(trials))
    import optuna

    distributions = {name: spec.distribution for name, spec in sweep.parameters.items() if spec.kind != "constant"}
    drawn = hashlib.sha256(f"{sweep.options.seed}/{len(trials)}".encode()).digest()
    seed, metric = int.from_bytes(drawn[:4], "big"), sweep.metric or Metric(name="")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed=seed)
        if sweep.method == "bayes":
            sampler = optuna.samplers.TPESampler(multivariate=True, group=True, constant_liar=True, seed=seed)
        study = optuna.create_study(sampler=sampler, direction=metric.goal)
        for trial in trials if sweep.method == "bayes" else ():
            value = told_value(trial, trials, metric)
            if value is not None and trial.distributions.keys() == distributions.keys():
                study.add_trial(
                    optuna.trial.create_trial(
                        state=optuna.trial.TrialState.RUNNING if value == () else optuna.trial.TrialState.COMPLETE,
                        values=value or None,
                        params=dict(trial.sampled),
                        distributions=dict(trial.distributions),
                    )
                )
        sampled = study.ask(distributions).params
    parameters = {
        name: spec.given["value"] if spec.kind == "constant" else spec.value(sampled[name])
        for name, spec in sweep.parameters.items()
    }
    return Trial(number=len(trials), parameters=parameters, sampled=sampled, distributions=distributions)


def _point(sweep: Sweep, number: int) -> Trial | None:
    """Return a point of the grid in W&B's order: names are sorted, and the last one varies fastest."""
    points, rest = dict[str, Any](), number
    for spec in sorted(sweep.parameters.values(), key=lambda spec: spec.path, reverse=True):
        rest, position = divmod(rest, len(spec.points))
        points[spec.name] = spec.points[position]
    if rest:
        return None
    sampled = [name for name, spec in sweep.parameters.items() if spec.kind in ("categorical", "int_uniform")]
    return Trial(
        number=number,
        parameters={
            name: spec.value(points[name]) if name in sampled else points[name]
            for name, spec in sweep.parameters.items()
        },
        sampled={name: points[name] for name in sampled},
        distributions={name: sweep.parameters[name].distribution for name in sampled},
    )


def most_trials(sweep: Sweep) -> int | None:
    """Return the most trials of a sweep; None for no bound."""
    bounds = [sweep.run_cap] if sweep.run_cap is not None else []
    if sweep.method == "grid":
        bounds.append(math.prod(len(parameter.points) for parameter in sweep.parameters.values()))
    return min(bounds, default=None)


# -- the value that a trial counts as ----------------------------------------------------------------------------


def told_value(trial: Trial, trials: Sequence[Trial], metric: Metric) -> tuple[float] | tuple[()] | None:
    """Return a trial's value for the search, () for a trial without a value yet, None to ignore it.

    One that failed, or whose number is none, counts as `metric.impute` says; one that runs as
    `metric.impute_while_running` says, if it does. The worst is of the trials that have ended, 0 where none has a
    number, as at W&B. One that has logged nothing counts as the worst by every rule: W&B takes 0 then, which may
    be better than all others.
    """
    if trial.state == "cancelled":
        return None
    ended = trial.state in ("done", "stopped", "failed")
    rule: str = metric.impute if ended else metric.impute_while_running
    if not ended:
        if trial.state != "running" or rule == "false":
            return ()
    elif trial.state != "failed" and trial.value is not None:
        return (trial.value,)
    latest = trial.values.get(metric.name) if trial.value is None else trial.value
    own = {"latest": latest, "best": trial.best}.get(rule)
    values = [other.value for other in trials if other.state in ("done", "stopped") and other.value is not None]
    return (own if own is not None else (min if metric.goal == "maximize" else max)(values, default=0.0),)


# -- early stopping ----------------------------------------------------------------------------------------------


def why_stop(rule: Hyperband, goal: str, number: int, values: Mapping[int, Sequence[float]]) -> str | None:
    """Say why to end a running trial early, or None: exactly W&B's ``early_terminate``.

    At the last band that the trial has come to, it is compared with all trials that have come there: of `n`, the
    best ``n / eta`` go on.

    Args:
        rule: The rule.
        goal: Direction of better values.
        number: Number of the trial.
        values: Number of each trial -> what it has logged so far that is finite, in order.
    """
    sign = -1.0 if goal == "maximize" else 1.0
    own = [sign * value for value in values.get(number, ())]
    band = max((band for band in rule.bands if band <= len(own)), default=None)
    if band is None:
        return None
    there = sorted(sign * of[band - 1] for of in values.values() if len(of) >= band)
    threshold = there[int(1 / rule.eta * len(there))]
    reached = own[band - 1] if rule.strict else min(own)
    if reached <= threshold:
        return None
    what = f"value {band}" if rule.strict else "best value"
    best = f"{sign * threshold:.6g}, where the best 1/{rule.eta:g} of {len(there)} trials are at {band}"
    return f"hyperband: its {what} of the metric, {sign * reached:.6g}, is worse than {best}"
