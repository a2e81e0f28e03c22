"""The page of a sweep, as plain data from which its scripts draw: what it left, read once."""

from __future__ import annotations

import json
import math
import re
import time
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pipeline import __version__
from pipeline.engine.journal import whole_lines
from pipeline.files import open_plain
from pipeline.foreign import ForeignDataError, read_plain
from pipeline.runs.comparison.runs import headings_of
from pipeline.runs.looks import Looks
from pipeline.runs.report.format import command, count, duration, shown_path
from pipeline.runs.report.page.html import Numbers, page_table, points_each, thinned, write_page
from pipeline.sweeps.file import Goal
from pipeline.sweeps.metrics import latest_values, parsed
from pipeline.sweeps.report import (
    by_state,
    counted,
    devices_in_words,
    elapsed_s,
    in_words,
    log_tail,
    measured,
    ranked,
    said,
    seconds_of,
    tested,
    trials_table,
)
from pipeline.sweeps.storage import STATES, Record, Trial, best_trial
from pipeline.terminal.columns import cut_middle

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = tuple(_ASSETS / name for name in ("trials.js", "search.js", "sweep.js"))
"""In order; they come after those of the frame."""
_LESS_IS_BETTER = re.compile(
    r"loss|error|perplexity|ppl|(^|[/._])kl|regret|crash|truncated|second|time|latency|memory|flops|cost",
    re.IGNORECASE,
)
_MOST_MEASURES = 12
"""Measures that a page offers, those that most trials have; one that is the same in all of them tells nothing."""
_FEW = 6
"""Numbers that are tried again and again, and are no more than so many, stand in equal distances."""
_FEWEST = 10
"""Trials with a value, below which importance says nothing; and so many the best are, but never more than half."""
_NOT_DONE = ("failed", "lost", "cancelled")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A parameter that trials differ in: its name, a short one, how it is drawn, and its value of each trial.

    Of ``choices``, which stand in equal distances, the index among these; None where a trial has none.
    """

    name: str
    heading: str
    kind: Literal["linear", "log", "choices"]
    values: Numbers
    choices: list[str] = field(default_factory=list)


def write_sweep_page(path: Path, sweep: Record) -> None:
    """Write the page of a sweep; a browser finds the one before or this one, never a part.

    Raises:
        OSError: It cannot be written.
    """
    write_page(path, page_of(sweep, time.time()), _SCRIPTS)


def page_of(sweep: Record, now: float) -> dict[str, Any]:
    """Gather what the page of a sweep shows; lists are columns of trials, which the scripts draw from.

    Args:
        sweep: The sweep.
        now: Seconds since 1970.
    """
    about, trials, metric = sweep.about, list(sweep.trials.values()), sweep.about.metric
    paths = {trial.number: sweep.folder.trial(trial.number).metrics(trial.attempts) for trial in trials}
    logged = {trial.number: {**latest_values(paths[trial.number]), **trial.values} for trial in trials}
    values = [trial.value if trial.value is not None else logged[trial.number].get(metric) for trial in trials]
    curves = [_curve(paths[trial.number], trial.number, metric, points_each(len(trials))) for trial in trials]
    shown = [each for each in curves if len(each["steps"]) > 1]
    points, known = sum(len(each["steps"]) for each in shown), sum(each["logged"] for each in shown)
    shares = importance(trials, about.goal)
    places = {trial.number: at for at, trial in enumerate(trials)}
    running = {
        trial.number: value for trial, value in zip(trials, values, strict=True) if trial.state == "running"
    }
    axes = axes_of(trials)
    return {
        "title": sweep.name,
        "made": f"{datetime.now():%Y-%m-%d %H:%M}",
        "version": __version__,
        "state": sweep.state(),
        "unfinished": list(_unfinished(sweep)),
        "facts": [(name, cut_middle(value, 200)) for name, value in _facts(sweep, axes, now)],
        "metric": metric,
        "goal": about.goal,
        "target": sweep.asked.metric.target if sweep.asked is not None and sweep.asked.metric else None,
        "numbers": list(sweep.trials),
        "states": [trial.state for trial in trials],
        "values": [
            None if trial.state in _NOT_DONE else value for trial, value in zip(trials, values, strict=True)
        ],
        "ended": [None if trial.started is None else (trial.ended or now) - about.started for trial in trials],
        "words": [in_words(trial.parameters) for trial in trials],
        "ranking": [places[trial.number] for trial in ranked(trials, about.goal)],
        "axes": axes,
        "measures": _measures(sweep, values, [logged[trial.number] for trial in trials], now),
        "curves": shown,
        "curves_about": f"{points:,} of {known:,} values that were logged, evenly spread."
        if points < known
        else "",
        "importance": list(shares.items()),
        "importance_about": _about_importance(trials, about.goal, shares),
        "table": page_table(trials_table(sweep, trials, now, running, brief=False)),
        "tested": [(name, measured(value)) for name, value in tested(sweep).items()],
        "failures": [_failure(sweep, trial) for trial in trials if trial.state in _NOT_DONE],
        "file": _text(sweep.folder.file),
        "command": ""
        if about.halted == "finished"
        else command(f"sweep agent {sweep.name}", sweep.folder.output_dir),
        "about": list(_about(sweep)),
        "looks": Looks(),
    }


def _curve(path: Path, number: int, metric: str, most: int) -> dict[str, Any]:
    """The metric while a trial ran, thinned to so many points, and of how many they are."""
    lines: list[bytes] = []
    with suppress(OSError), open_plain(path) as file:
        # Many lines are written, and few need to be read.
        names = {json.dumps(metric, ensure_ascii=escaped).encode(errors="replace") for escaped in (True, False)}
        lines = [line for line in whole_lines(file) if metric and any(name in line for name in names)]
    points = [
        (at if known.step is None else known.step, known.values[metric])
        for at, line in thinned(list(enumerate(lines, 1)), most)
        for known in parsed([line])
        if metric in known.values
    ]
    steps, values = [step for step, _ in points], [value for _, value in points]
    return {"trial": number, "steps": steps, "values": values, "logged": len(lines)}


def _measures(
    sweep: Record, values: list[float | None], logged: Sequence[Mapping[str, float | None]], now: float
) -> list[dict[str, Any]]:
    """The metric, other metrics, and seconds."""
    metric, trials = sweep.about.metric, sweep.trials.values()
    columns = {
        name: [each.get(name) for each in logged]
        for name in dict.fromkeys(name for each in logged for name in each)
    }
    telling = [name for name, column in columns.items() if name != metric and len(set(column) - {None}) > 1]
    others = sorted(telling, key=lambda name: columns[name].count(None))[:_MOST_MEASURES]
    seconds = [seconds_of(trial, now) if trial.state == "done" else None for trial in trials]
    found = [{"name": metric, "goal": sweep.about.goal, "values": values}] if metric else []
    for name in others:
        goal = "minimize" if _LESS_IS_BETTER.search(name) else "maximize"
        found.append({"name": name, "goal": goal, "values": columns[name]})
    return [*found, {"name": "seconds", "goal": "minimize", "values": seconds}]


def _unfinished(sweep: Record) -> Iterator[str]:
    if (state := sweep.state()) != "finished":
        numbers = counted(by_state(sweep.trials.values(), STATES))
        many = count(len(sweep.trials), "trial")
        yield f"The sweep was {state} when this page was written. {many} so far: {numbers}."
    if sweep.about.reason:
        yield f"Why: {sweep.about.reason}"


def _facts(sweep: Record, axes: Sequence[Axis], now: float) -> Iterator[tuple[str, str]]:
    about, trials = sweep.about, sweep.trials
    if best := best_trial(trials, about.goal):
        yield f"best {about.metric}", f"{measured(best.value)} (trial {best.number})"
        yield "with", in_words(best.parameters, [axis.name for axis in axes] or None)
    yield "search", about.method
    if about.metric:
        yield "goal", f"{about.goal} {about.metric}"
    if trials:
        yield "trials", f"{len(trials):,}: {counted(by_state(trials.values(), STATES))}"
    yield "began", f"{datetime.fromtimestamp(about.started):%Y-%m-%d %H:%M}"
    yield "took", duration(elapsed_s(sweep, now))


def _failure(sweep: Record, trial: Trial) -> dict[str, Any]:
    log = sweep.folder.trial(trial.number).log(trial.attempts)
    return {
        "trial": trial.number,
        "state": trial.state,
        "attempts": trial.attempts,
        "reason": trial.reason[:20_000],
        "parameters": in_words(trial.parameters),
        "log": str(log.relative_to(sweep.folder.path)),
        "tail": log_tail(sweep, trial, 20),
    }


def _text(path: Path) -> str:
    with suppress(OSError, ForeignDataError):
        return read_plain(path).decode("utf-8", "replace")
    return ""


def _about(sweep: Record) -> Iterator[tuple[str, str]]:
    yield "folder", shown_path(sweep.folder.path)
    for agent in sorted({trial.agent for trial in sweep.trials.values() if trial.agent}):
        own = [trial for trial in sweep.trials.values() if trial.agent == agent]
        devices = devices_in_words(sorted({device for trial in own for device in trial.devices}))
        yield f"agent {agent}", f"{count(len(own), 'trial')} with {devices}"


# -- axes --------------------------------------------------------------------------------------------------------


def axes_of(trials: Sequence[Trial]) -> list[Axis]:
    """Parameters that not all trials have the same of."""
    found: dict[str, dict[int, Any]] = {}
    for at, trial in enumerate(trials):
        for name, value in trial.parameters.items():
            found.setdefault(name, {})[at] = value
    differing = {
        name: own for name, own in found.items() if len(set(map(_key, own.values()))) > 1 or len(own) < len(trials)
    }
    headings = headings_of(list(differing), found)
    drawn = trials[0].distributions if trials else {}
    return [
        _axis(name, headings[name], own, len(trials), log=getattr(drawn.get(name), "log", None))
        for name, own in differing.items()
    ]


def _axis(name: str, heading: str, own: Mapping[int, Any], trials: int, *, log: bool | None) -> Axis:
    values = list(own.values())
    different = {_key(value): value for value in values}
    if _are_numbers(values) and (len(different) > _FEW or len(different) == len(values)):
        numbers = [float(own[at]) if at in own else None for at in range(trials)]
        log = min(values) > 0 and (log or by_size(values))
        return Axis(name=name, heading=heading, kind="log" if log else "linear", values=numbers)
    order = sorted(
        different.items(), key=lambda each: (0, each[1], "") if _are_numbers([each[1]]) else (1, 0, said(each[1]))
    )
    places = {key: float(place) for place, (key, _) in enumerate(order)}
    shown = [places[_key(own[at])] if at in own else None for at in range(trials)]
    return Axis(
        name=name, heading=heading, kind="choices", values=shown, choices=[said(value) for _, value in order]
    )


def _key(value: Any) -> str:
    """What two values have in common that are the same one, lists and mappings too; 1, 1.0 and true are three."""
    return json.dumps(value, sort_keys=True)


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(
        isinstance(each, int | float) and not isinstance(each, bool) and abs(each) < 1e300 for each in values
    )


def by_size(values: Sequence[Any]) -> bool:
    """Whether numbers are best seen by their order of magnitude, as learning rates are.

    Their median tells: it stands near the middle on the axis on which they are evenly spread.
    """
    if min(values) <= 0 or max(values) / 50 < min(values):
        return False
    off = []
    for on in (float, math.log):
        there = sorted(map(on, values))
        off.append(abs((median(there) - there[0]) / (there[-1] - there[0]) - 0.5))
    return off[1] < off[0]


# -- importance --------------------------------------------------------------------------------------------------


def importance(trials: Sequence[Trial], goal: Goal) -> dict[str, float]:
    """How much each parameter decides whether a trial is among the best: PED-ANOVA, as Optuna computes it.

    Of parameters that are searched, the largest first; they add up to 1. Nothing where there are too few
    trials, or where they tell nothing.
    """
    ended = [trial for trial in trials if trial.state == "done" and trial.value is not None]
    told = [trial for trial in ended if trial.distributions and trial.distributions == ended[0].distributions]
    if len(told) < _FEWEST or len({trial.value for trial in told}) < 2:
        return {}
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(direction=goal)
        for trial in told:
            given = {"params": dict(trial.sampled), "distributions": dict(trial.distributions)}
            study.add_trial(optuna.trial.create_trial(value=trial.value, **given))  # type: ignore[arg-type]
        part = (_best_of(len(told)) - 0.5) / len(told)  # Optuna rounds up: of a whole number that may be the next
        found = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=part).evaluate(study)
    whole = sum(value for value in found.values() if math.isfinite(value))
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0])) if whole > 0 else []
    return {name: value / whole for name, value in ordered if math.isfinite(value)}


def _best_of(trials: int) -> int:
    """How many of so many trials are the best ones, which are compared with all."""
    return max(trials // 10, min(_FEWEST, trials // 2))


def _about_importance(trials: Sequence[Trial], goal: str, shares: object) -> str:
    sign = -1.0 if goal == "maximize" else 1.0
    values = sorted(sign * trial.value for trial in trials if trial.state == "done" and trial.value is not None)
    if shares:
        best = bisect_right(values, values[_best_of(len(values)) - 1])
        return (
            f"How much each parameter decides whether a trial is among the best {best} of {len(values)} done "
            "trials "
            "(PED-ANOVA, as Optuna computes it). It says nothing about the direction; of few trials it is a hint."
        )
    few = f"With fewer than {_FEWEST} done trials ({len(values)}) such shares say nothing."
    return few if len(values) < _FEWEST else "The trials do not tell which parameter matters."
