"""The page of a sweep: what it left, read once and put into the form of `model`."""

from __future__ import annotations

import json
import math
import time
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pipeline import __version__
from pipeline.config.install import install_command
from pipeline.foreign import ForeignDataError, read_plain
from pipeline.runs.comparison.runs import headings_of
from pipeline.runs.report.format import command, count, duration, shown_path
from pipeline.runs.report.page.html import page_table, write_page
from pipeline.sweeps.recorded import RecordedSweep
from pipeline.sweeps.report.measures import curves_of, measured_of, measures_of, values_of
from pipeline.sweeps.report.model import Axis, FailedTrial, SweepPage
from pipeline.sweeps.report.status import elapsed_s, log_tail, ranked
from pipeline.sweeps.report.tables import has_uuid, trials_table
from pipeline.sweeps.space import Beta, LogNormal, LogUniform, Normal, Parameter, Quantized, Uniform, WholeUniform
from pipeline.sweeps.spec import Goal
from pipeline.sweeps.trials import Trial, TrialState, best_trial, is_number
from pipeline.sweeps.values import by_state, counted, in_words, measured, said
from pipeline.terminal.columns import cut_middle

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


# -- axes --------------------------------------------------------------------------------------------------------
# Parameters as axes: those that trials differ in, by their size, by its order of magnitude, or as choices.


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


# -- importance --------------------------------------------------------------------------------------------------
# How much each parameter decides whether a trial is among the best: PED-ANOVA, as Optuna computes it.


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


ASSETS = Path(__file__).parent / "assets"
SCRIPTS = tuple(ASSETS / name for name in ("trials.js", "search.js", "sweep.js"))
"""In order; they come after those of the frame."""
_LONGEST = 20_000
"""Characters of a reason."""
_TAIL_LINES = 20
_LONGEST_FACT = 200
"""Cells of what stands at the top."""
_UNFINISHED = {
    "running": "The sweep was going on when this page was written.",
    "stopping": "The sweep was stopped; its running trials were coming to their end when this page was written.",
    "idle": "The sweep is not over, and no agent was at work when this page was written.",
    "paused": "The sweep was paused when this page was written.",
    "stopped": "The sweep was stopped before its end.",
    "cancelled": "The sweep was cancelled before its end.",
}


def write_sweep_page(path: Path, sweep: RecordedSweep) -> None:
    """Write the page of a sweep; a browser finds the one before or this one, never a part.

    Raises:
        OSError: It cannot be written.
    """
    write_page(path, sweep_page_of(sweep, time.time()), SCRIPTS)


def sweep_page_of(sweep: RecordedSweep, now: float) -> SweepPage:
    """What the page of a sweep shows.

    Args:
        sweep: The sweep.
        now: Seconds since 1970.
    """
    view = sweep.view
    trials = [trial for _, trial in sorted(view.trials.items())]
    found = measured_of(sweep.folder, trials, view.metric)
    values = values_of(trials, found, view.metric)
    curves, about_curves = curves_of(trials, found)
    shares = importance(trials, view.goal)
    places = {trial.number: at for at, trial in enumerate(trials)}
    return SweepPage(
        title=sweep.name,
        made=f"{datetime.now():%Y-%m-%d %H:%M}",
        version=__version__,
        state=sweep.state(),
        unfinished=list(_unfinished(sweep)),
        facts=[(name, cut_middle(value, _LONGEST_FACT)) for name, value in _facts(sweep, trials, now)],
        metric=view.metric,
        goal=view.goal.value,
        target=sweep.asked.metric.target if sweep.asked is not None and sweep.asked.metric else None,
        numbers=[trial.number for trial in trials],
        states=[trial.state.value for trial in trials],
        values=[
            value if is_number(value) and trial.state not in _NOT_DONE else None
            for trial, value in zip(trials, values, strict=True)
        ],
        ended=[_after(trial, view.started, now) for trial in trials],
        words=[in_words(trial.parameters) for trial in trials],
        ranking=[places[trial.number] for trial in ranked(trials, view.goal)],
        axes=_axes(sweep, trials),
        measures=measures_of(view, trials, found),
        curves=curves,
        curves_about=about_curves,
        importance=list(shares.items()),
        importance_about=_about_importance(sweep, shares),
        table=page_table(trials_table(view, trials, now, _so_far(trials, values), brief=False)),
        tested=[(name, _number(value)) for name, value in view.tested.items()],
        failures=[_failed(sweep, trial) for trial in trials if trial.state in _NOT_DONE],
        file=_text(sweep.folder.file),
        command=""
        if view.halted == "finished"
        else command(f"sweep agent {sweep.name}", sweep.folder.path.parent.parent),
        about=list(_about(sweep)),
    )


_NOT_DONE = (TrialState.failed, TrialState.lost, TrialState.cancelled)


def _axes(sweep: RecordedSweep, trials: Sequence[Trial]) -> list[Axis]:
    return axes_of(trials, sweep.asked.parameters if sweep.asked is not None else {})


def _so_far(trials: Sequence[Trial], values: Sequence[float | None]) -> dict[int, float | None]:
    """What trials that run have logged of the metric last."""
    pairs = zip(trials, values, strict=True)
    return {trial.number: value for trial, value in pairs if trial.state is TrialState.running}


def _number(value: object) -> str:
    return measured(value) if isinstance(value, float) else said(value)


def _after(trial: Trial, began: float | None, now: float) -> float | None:
    """Seconds from the begin of the sweep to the end of a trial, or until now."""
    if began is None or trial.started is None:
        return None
    return (trial.ended or now) - began


def _unfinished(sweep: RecordedSweep) -> Iterator[str]:
    state, view = sweep.state(), sweep.view
    if state in _UNFINISHED:
        numbers = counted(by_state(view))
        yield f"{_UNFINISHED[state]} {count(len(view.trials), 'trial')} so far{numbers and f': {numbers}'}."
    if view.reason:
        yield f"Why: {view.reason}"
    if sweep.unreadable:
        yield f"{count(sweep.unreadable, 'line')} of its journal cannot be read; what they told is missing here."


def _facts(sweep: RecordedSweep, trials: Sequence[Trial], now: float) -> Iterator[tuple[str, str]]:
    view = sweep.view
    if best := best_trial(trials, view.goal):
        yield f"best {view.metric}", f"{measured(best.value)} (trial {best.number})"
        yield "with", in_words(best.parameters, [axis.name for axis in _axes(sweep, trials)] or None)
    yield "search", view.method
    if view.metric:
        yield "goal", f"{view.goal.value} {view.metric}"
    if trials:
        yield "trials", f"{len(trials):,}: {counted(by_state(view))}"
    if view.started is not None:
        yield "began", f"{datetime.fromtimestamp(view.started):%Y-%m-%d %H:%M}"
        yield "took", duration(elapsed_s(sweep, sweep.state(), now))
    if devices := {found for trial in trials for found in _devices(trial)}:
        yield "devices", next(iter(devices))[1] if len(devices) == 1 else f"{len(devices)}"


def _devices(trial: Trial) -> Iterator[tuple[str, str]]:
    """Those of a trial; a GPU is the same one for every agent, a CPU slot has its number from its agent."""
    return (("" if has_uuid(device) else trial.agent, device) for device in trial.devices)


def _about_importance(sweep: RecordedSweep, shares: object) -> str:
    view = sweep.view
    best, done = compared(list(view.trials.values()), view.goal)
    if shares:
        return (
            f"How much each parameter decides whether a trial is among the best {best} of {done} done trials "
            "(PED-ANOVA, as Optuna computes it). It says nothing about the direction; of few trials it is a hint."
        )
    if done < FEWEST:
        return f"With fewer than {FEWEST} done trials ({done}) such shares say nothing."
    return (
        "The trials do not tell which parameter matters, or Optuna is not installed "
        f"(`{install_command('sweeps')}`)."
    )


def _failed(sweep: RecordedSweep, trial: Trial) -> FailedTrial:
    log = sweep.folder.trial(trial.number).log(max(1, trial.attempts))
    return FailedTrial(
        trial=trial.number,
        state=trial.state.value,
        attempts=trial.attempts,
        reason=(trial.reason or _exit(trial))[:_LONGEST],
        parameters=in_words(trial.parameters),
        log=str(log.relative_to(sweep.folder.path)),
        tail=log_tail(sweep.folder, trial, _TAIL_LINES),
    )


def _exit(trial: Trial) -> str:
    return "" if trial.exit_code is None else f"exit code {trial.exit_code}"


def _text(path: Path) -> str:
    try:
        return read_plain(path).decode("utf-8", "replace")
    except (OSError, ForeignDataError):
        return ""


def _about(sweep: RecordedSweep) -> Iterator[tuple[str, str]]:
    yield "folder", shown_path(sweep.folder.path)
    trials = list(sweep.view.trials.values())
    for agent in sorted({trial.agent for trial in trials if trial.agent}, key=lambda agent: (len(agent), agent)):
        own = [trial for trial in trials if trial.agent == agent]
        devices = ", ".join(sorted({device for trial in own for device in trial.devices}))
        on = f" on {host}" if (host := sweep.view.hosts.get(agent)) else ""
        yield f"agent {agent}{on}", f"{count(len(own), 'trial')} with {devices}"
