"""The page of a sweep: what it left, read once and put into the form of `model`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from pipeline import __version__
from pipeline.config.install import install_command
from pipeline.foreign import ForeignDataError, read_plain
from pipeline.runs.report.format import command, count, duration, shown_path
from pipeline.runs.report.page.html import write_page
from pipeline.runs.report.page.results import page_table
from pipeline.sweeps.recorded import RecordedSweep
from pipeline.sweeps.report.axes import axes_of
from pipeline.sweeps.report.importance import FEWEST, compared, importance
from pipeline.sweeps.report.measures import curves_of, measured_of, measures_of, values_of
from pipeline.sweeps.report.model import Axis, FailedTrial, SweepPage
from pipeline.sweeps.report.status import elapsed_s, ranked
from pipeline.sweeps.report.tables import has_uuid, trials_table
from pipeline.sweeps.report.tails import log_tail
from pipeline.sweeps.trials import Trial, TrialState, best_trial, is_number
from pipeline.sweeps.values import by_state, counted, in_words, measured, said
from pipeline.terminal.shorten import cut_middle

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
