"""Show the state and results of sweeps: tables of the terminal, plain data for other programs, the page."""

from __future__ import annotations

import json
import math
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from rich.console import Console, RenderableType
from rich.text import Text

from pipeline import __version__
from pipeline.engine.journal import whole_lines
from pipeline.errors import ConfigError, StoreError
from pipeline.files import open_plain
from pipeline.foreign import ForeignDataError, read_plain
from pipeline.machine.children import last_lines
from pipeline.runs.compare import headings_of
from pipeline.runs.record import csv_text
from pipeline.runs.report.format import LOOKS, command, count, duration, short, shown_path
from pipeline.runs.report.html import Numbers, page_table, points_each, thinned, write_page
from pipeline.runs.report.screen import first
from pipeline.sweeps.file import Goal
from pipeline.sweeps.metrics import latest_values, parsed
from pipeline.sweeps.search import most_trials
from pipeline.sweeps.storage import STATES, Once, Record, Trial, best_trial
from pipeline.terminal import columns as tables
from pipeline.terminal.columns import Column, FittedTable, Told, shorten, told_table, whole_words
from pipeline.terminal.console import in_place, say, say_styled
from pipeline.terminal.streams import on_one_line, printable

STYLES = {
    **dict.fromkeys(("done", "finished"), "green"),
    "running": "bold",
    "failed": "bold red",
    **dict.fromkeys(("lost", "cancelled"), "red"),
    **dict.fromkeys(("stopped", "paused", "stopping"), "yellow"),
}
"""Styles of the states of trials and of sweeps."""
_LEAST_NAME, _MOST_ROWS, _MOST_FAILURES = 12, 50, 10
_ALIKE = 3
"""Trials from which on it tells something that they have all come to the same value."""
_TIMES = "gradient_accumulation_steps"

# -- words -------------------------------------------------------------------------------------------------------


def label(value: Any) -> str:
    """Format a parameter on one line, numbers with significant digits only."""
    return short(value) if isinstance(value, float) else on_one_line(typed(value))


def typed(value: Any) -> str:
    """Format a parameter as typed, with all digits."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def measured(value: Any) -> str:
    """Format a value of the metric, or ""."""
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else label(value)


def in_words(parameters: Mapping[str, Any], names: Iterable[str] | None = None) -> str:
    """Parameters in a line: ``lr=0.0003 eta=1``; those of the given names, where there are any."""
    chosen = parameters if names is None else [name for name in names if name in parameters]
    return " ".join(f"{on_one_line(name)}={label(parameters[name])}" for name in chosen)


def by_state(trials: Iterable[Trial]) -> dict[str, int]:
    """Count the trials in each state."""
    counts = Counter(trial.state for trial in trials)
    return {state: counts[state] for state in STATES}


def counted(trials: Iterable[Trial]) -> str:
    """Format the counts, without empty states: ``17 done, 7 stopped``."""
    return ", ".join(f"{number:,} {state}" for state, number in by_state(trials).items() if number)


def varied(trials: Sequence[Trial]) -> list[str]:
    """Return the parameters that differ between trials, in the order in which they were first chosen.

    Of one trial alone that is all of them.
    """
    values = _values(trials)
    return list(_differing(values, len(trials))) or list(values)


def _values(trials: Sequence[Trial]) -> dict[str, dict[int, Any]]:
    """Return parameter -> index of a trial -> its value there."""
    values: dict[str, dict[int, Any]] = {}
    for at, trial in enumerate(trials):
        for name, value in trial.parameters.items():
            values.setdefault(name, {})[at] = value
    return values


def _differing(values: Mapping[str, dict[int, Any]], trials: int) -> dict[str, dict[int, Any]]:
    return {
        name: own for name, own in values.items() if len(set(map(_key, own.values()))) > 1 or len(own) < trials
    }


def effective_batch(parameters: Mapping[str, Any], num_gpus: int) -> int | None:
    """Sequences of one step of the optimizer: of a device, times devices, times micro-batches.

    Args:
        parameters: Parameters of the trial, by dotted name; ``batch_size`` is of one device, as with torchrun.
        num_gpus: Devices of the trial.

    Returns:
        None where the parameters do not tell: without a batch size, or with nothing that it is multiplied by.
    """
    for name, size in parameters.items():
        section, _, last = name.rpartition(".")
        times = parameters.get(f"{section}.{_TIMES}" if section else _TIMES)
        is_complete = times is not None or (not section and (num_gpus > 1 or "num_gpus" in parameters))
        factors = (size, 1 if times is None else times, num_gpus)
        if last == "batch_size" and is_complete and all(type(factor) is int and factor > 0 for factor in factors):
            return math.prod(factors)
    return None


# -- all sweeps --------------------------------------------------------------------------------------------------


def row_of(sweep: Record, now: float) -> dict[str, Any]:
    """Return a sweep in one row, as plain data."""
    best = best_trial(sweep.trials, sweep.about.goal)
    return {
        "name": sweep.name,
        "state": sweep.state(),
        "method": sweep.about.method,
        "started": sweep.about.started,
        "elapsed_s": round(elapsed_s(sweep, now), 3),
        "trials": len(sweep.trials),
        **by_state(sweep.trials.values()),
        "metric": sweep.about.metric,
        "best": None if best is None else best.number,
        "value": None if best is None else best.value,
    }


def elapsed_s(sweep: Record, now: float) -> float:
    """Return the seconds since a sweep began, up to the last sign of life if no agent is at work."""
    heard = [sweep.about.time, *(trial.ended or trial.started or 0.0 for trial in sweep.trials.values())]
    until = now if sweep.state() in ("running", "stopping") else max(heard)
    return max(0.0, until - sweep.about.started)


def sweeps_table(rows: Sequence[Mapping[str, Any]]) -> FittedTable:
    """Return a table of all sweeps, latest first, with the states that occur."""
    states = [state for state in STATES if state == "done" or any(row.get(state) for row in rows)]
    counts = ("trials", *states)

    def cell(name: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda row: str(row.get(name) or "")

    columns: list[Told] = [
        (Column(heading="sweep", least=_LEAST_NAME), cell("name")),
        (Column(heading="state", rank=1), lambda row: _state(row.get("state", "unreadable"))),
        (Column(heading="method", rank=7), cell("method")),
        *((Column(heading=name, right=True, rank=4 if name in states else 2), cell(name)) for name in counts),
        (Column(heading="best", right=True, rank=3), lambda row: measured(row.get("value"))),
        (Column(heading="metric", rank=8, least=_LEAST_NAME), cell("metric")),
        (Column(heading="time", right=True, rank=6), lambda row: duration(row.get("elapsed_s", 0.0))),
    ]
    newest = sorted(rows, key=lambda row: row.get("started", 0.0), reverse=True)
    return told_table(columns, [newest], lines=False)


def _state(state: str) -> Text:
    return Text(state, style=STYLES.get(state, ""))


# -- trials ------------------------------------------------------------------------------------------------------


def trials_table(
    sweep: Record,
    shown: Sequence[Trial],
    now: float,
    values: Mapping[int, float | None] = MappingProxyType({}),
    *,
    brief: bool = True,
) -> FittedTable:
    """Trials, a row each.

    Args:
        sweep: The sweep: all its trials decide which parameters tell them apart.
        shown: Trials to show.
        now: Seconds since 1970.
        values: Number -> what a trial that has not ended has logged of the metric last.
        brief: Cut long headings, which would leave no room for other columns.
    """
    trials, metric = list(sweep.trials.values()), sweep.about.metric
    headings = headings_of(varied(trials), {name for trial in trials for name in trial.parameters})
    cut = shorten([metric, *headings.values()], 14 if brief else 10_000)
    batches = {trial.number: effective_batch(trial.parameters, trial.num_gpus) for trial in trials}

    def value(trial: Trial) -> str:
        return measured(trial.value if trial.value is not None else values.get(trial.number))

    def parameter(name: str) -> Callable[[Trial], str]:
        return lambda trial: label(trial.parameters[name]) if name in trial.parameters else ""

    heading = on_one_line(cut[metric]) or "value"
    columns: list[Told] = [
        (Column(heading="trial", right=True), lambda trial: str(trial.number)),
        (Column(heading="state", rank=2, width=len("cancelled")), lambda trial: _state(trial.state)),
        (Column(heading=heading, right=True, rank=1, width=len("-1.2345e-05")), value),
    ]
    for at, (name, long) in enumerate(headings.items()):
        # Nothing of a number is cut: digits of one are another number.
        numbers = any(isinstance(trial.parameters.get(name), int | float) for trial in shown)
        rank, least = 3 if at < 2 else 6, None if numbers else 6
        columns.append(
            (Column(heading=on_one_line(cut[long]), right=True, rank=rank, least=least), parameter(name))
        )
    if any(batches.values()):
        columns.append(
            (Column(heading="batch", right=True, rank=5), lambda trial: str(batches[trial.number] or ""))
        )
    time_taken = Column(heading="time", right=True, rank=4, width=len("59 min 59 s"))
    columns.append((time_taken, lambda trial: _taken(trial, now)))
    order = "running first, then best first" if sweep.having("running") else "best first"
    elsewhere = f"a wider terminal or `{_command(sweep, 'export')}` has them"
    return told_table(columns, [shown], lines=False, title=order if brief else "", elsewhere=elsewhere)


def _taken(trial: Trial, now: float) -> str:
    return "" if (seconds := seconds_of(trial, now)) is None else duration(seconds)


def seconds_of(trial: Trial, now: float) -> float | None:
    """Return how long its last attempt took, or has taken so far; None without one."""
    ended = now if trial.state == "running" else trial.ended
    return None if trial.started is None or ended is None else max(0.0, ended - trial.started)


def so_far(sweep: Record) -> dict[int, float | None]:
    """Return number of each running trial -> its last value of the metric."""
    return {
        trial.number: latest_values(_metrics(sweep, trial)).get(sweep.about.metric)
        for trial in sweep.having("running")
    }


def _metrics(sweep: Record, trial: Trial) -> Path:
    return sweep.folder.trial(trial.number).metrics(trial.attempts)


def about_trial(trial: Trial, metric: str, names: Sequence[str]) -> str:
    """Describe a trial with some parameters: ``trial 7: val/loss 0.4123, lr=0.0003 eta=1``."""
    value = f"{on_one_line(metric) or 'value'} {measured(trial.value)}, " if trial.value is not None else ""
    return f"trial {trial.number}: {value}{in_words(trial.parameters, names)}"


def ranked(trials: Iterable[Trial], goal: str) -> list[Trial]:
    """Trials, those with the best values first, also where they were stopped early, then others, newest first."""
    sign = -1.0 if goal == "maximize" else 1.0

    def order(trial: Trial) -> tuple[bool, float, int]:
        if trial.state in ("done", "stopped") and trial.value is not None:
            return False, sign * trial.value, trial.number
        return True, 0.0, -trial.number

    return sorted(trials, key=order)


def foremost(sweep: Record) -> list[Trial]:
    """Trials, those first that one wants to see: what runs, the best ones, then those without a value."""
    rest = [trial for trial in ranked(sweep.trials.values(), sweep.about.goal) if trial.state != "running"]
    return [*sweep.having("running"), *rest]


# -- one sweep ---------------------------------------------------------------------------------------------------


def _most(sweep: Record) -> int | None:
    """Return the most trials of a sweep; None if unknown, or if there are already more."""
    bounds = [sweep.about.count, most_trials(sweep.asked) if sweep.asked is not None else None]
    most = min((bound for bound in bounds if bound is not None), default=None)
    return None if most is None or most < len(sweep.trials) else most


def headline(sweep: Record, now: float) -> Text:
    """Return its name and state, and what to do if it is not well."""
    about, state, trials = sweep.about, sweep.state(), list(sweep.trials.values())
    why, *log = about.reason.split("\n")
    text = Text.assemble((f"{sweep.name}: ", "bold"), _state(state), f" ({on_one_line(why)})" if why else "")
    text.append(f", {duration(elapsed_s(sweep, now))}")
    for line in log:  # the end of what the preparation printed
        text.append(f"\n{printable(line)}", style="red")
    judged = f"{about.goal} {on_one_line(about.metric)}" if about.metric else ""
    many = f"{len(trials):,} of {count(most, 'trial')}" if (most := _most(sweep)) else count(len(trials), "trial")
    agents = count(len(present), "agent") if (present := sweep.agents()) else ""
    text.append("\n" + ", ".join(filter(None, [about.method, judged, many, counted(trials), agents])))
    if best := best_trial(sweep.trials, about.goal):
        text.append(f"\nbest: {about_trial(best, about.metric, varied(trials))}")
    done = [trial.value for trial in trials if trial.state == "done"]
    if best and len(done) >= _ALIKE and len(set(done)) == 1:
        text.append(
            "\nAll trials have come to the same value: does the program read its parameters?", style="yellow"
        )
    if word := {"idle": "agent", "paused": "resume", "stopped": "resume"}.get(state):
        text.append(f"\n`{_command(sweep, word)}` goes on.", style="bold")
    return text


def _command(sweep: Record, word: str, *more: str) -> str:
    return command(" ".join(["sweep", word, sweep.name, *more]), sweep.folder.output_dir)


def print_sweep(sweep: Record, now: float, console: Console) -> None:
    """Print one sweep. Only the table is fitted to the terminal: paths and reasons stay whole."""
    say_styled(console, headline(sweep, now))
    if trials := foremost(sweep):
        table = trials_table(sweep, trials[:_MOST_ROWS], now, so_far(sweep))
        say_styled(console, Text())
        console.print(table)
        if len(trials) > _MOST_ROWS:
            say(console, f"and {len(trials) - _MOST_ROWS:,} more; `{_command(sweep, 'export')}` lists all")
    failed = sweep.having("failed", "lost")
    for trial in failed[-_MOST_FAILURES:]:
        say(console, f"trial {trial.number} {trial.state}: {printable(trial.reason)}", "red")
        if last := log_tail(sweep, trial, 1):
            say(console, f"  it said last: {printable(last)}")
    if failed:
        say(console, f"read more: `{_command(sweep, 'logs', str(failed[-1].number))}`")


def log_tail(sweep: Record, trial: Trial, lines: int) -> str:
    """Return the last lines of the log of a trial's last attempt; "" without a readable log.

    W&B's client says at the end of each program where its files are: such lines count only where there are no
    others.
    """
    printed = last_lines(sweep.folder.trial(trial.number).log(trial.attempts))
    own = [number for number, line in enumerate(printed, 1) if not line.startswith("wandb:")]
    return "\n".join(printed[: max(own, default=None)][-lines:])


def watched_sweep(sweep: Record, now: float, width: int, height: int, *, last: str = "") -> list[RenderableType]:
    """Return the view of one sweep for a terminal: progress, running and best trials, last failures.

    Args:
        sweep: The sweep.
        now: Seconds since 1970.
        width: Columns of the terminal.
        height: Lines of the terminal.
        last: Line at the bottom.
    """
    top, trials = whole_words(headline(sweep, now), width), foremost(sweep)
    failed = (
        f"{trial.state}: trial {trial.number}: {' '.join(trial.reason.split())}"
        for trial in sweep.having("failed", "lost")[-3:]
    )
    bottom: list[RenderableType] = [whole_words(Text(printable(line), "red"), width) for line in failed]
    bottom += [whole_words(Text(printable(last)), width)] if last else []
    # Three lines are the order, headings, and the line of the cursor.
    room = height - 3 - len(top.plain.splitlines()) - len(bottom)
    if not trials or room <= 0:
        return [top, *bottom]
    shown, more = first(trials, room, lambda _: 0)
    table = trials_table(sweep, shown, now, so_far(sweep))
    table.elsewhere = ""
    return [top, table, *([Text(f"and {more:,} more")] if more else []), *bottom]


@contextmanager
def shown_on(console: Console, sweep: Record) -> Iterator[tuple[Any, Any]]:
    """Show what an agent tells of a sweep.

    Yields:
        What is told a line, and what is told that the sweep may have changed: on a terminal they draw where it
        stands, and the last line below; elsewhere every line is printed.
    """
    if not console.is_interactive:
        yield (lambda text: say(console, text)), (lambda _record: None)
        return
    last = [""]
    with in_place(console) as draw:

        def show(record: Record) -> None:
            with suppress(StoreError):  # it cannot be opened just now: what was read before is shown
                record.refresh()
            draw(watched_sweep(record, time.time(), *console.size, last=last[0]))

        def hear(text: str) -> None:
            last[0] = text
            show(sweep)

        yield hear, show


def news(sweep: Record, shown: dict[int, str]) -> Iterator[str]:
    """Yield a line for each trial that has ended since, or ended differently; `shown` is updated."""
    names = varied(list(sweep.trials.values()))
    for number, trial in sweep.trials.items():
        line = f"{trial.state}: {about_trial(trial, sweep.about.metric, names)}"
        if trial.state not in ("waiting", "running") and shown.get(number) != line:
            shown[number] = line
            yield line


# -- plain data --------------------------------------------------------------------------------------------------


def sweep_json(sweep: Record, now: float) -> dict[str, Any]:
    """Return one sweep as plain data, nothing truncated."""
    return {
        **row_of(sweep, now),
        "folder": str(sweep.folder.path),
        "goal": sweep.about.goal,
        "reason": sweep.about.reason or None,
        "agents": sweep.agents(),
        "tested": tested(sweep) or None,
        "all_trials": [trial_json(trial, now) for trial in sweep.trials.values()],
    }


def tested(sweep: Record) -> Mapping[str, Any]:
    """Return the best trial's metrics on held-out data."""
    return sweep.once.get("winner", Once()).results


def trial_json(trial: Trial, now: float) -> dict[str, Any]:
    """Return a trial as plain data."""
    left_out, seconds = ("sampled", "distributions", "key"), seconds_of(trial, now)
    return {
        "number": trial.number,
        **{name: _plain(value) for name, value in vars(trial).items() if name not in left_out},
        "seconds": None if seconds is None else round(seconds, 3),
        "effective_batch": effective_batch(trial.parameters, trial.num_gpus),
    }


def _plain(value: Any) -> Any:
    """Plain data in which all is JSON: a number that is infinite, or none, is said in words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def export_rows(sweep: Record, now: float) -> list[dict[str, Any]]:
    """Trials as plain data, by number, with what they have logged last; every row has the same names."""
    rows = [trial_json(trial, now) for trial in sweep.trials.values()]
    for row, trial in zip(rows, sweep.trials.values(), strict=True):
        row["metrics"] = {**latest_values(_metrics(sweep, trial)), **row.pop("values")}
    kinds = ("parameters", "metrics")
    names = {table: dict.fromkeys(name for row in rows for name in row[table]) for table in kinds}
    return [
        {
            **{name: value for name, value in row.items() if name not in kinds},
            **{f"{table}.{name}": row[table].get(name) for table in kinds for name in names[table]},
        }
        for row in rows
    ]


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as CSV, with lists and mappings as JSON."""
    cells = (
        [typed(value) if isinstance(value, bool | list | dict) else value for value in row.values()]
        for row in rows
    )
    return csv_text(list(rows[0]) if rows else [], cells)


# -- the best trial ----------------------------------------------------------------------------------------------


def best_json(sweep: Record, now: float) -> dict[str, Any]:
    """Return the best trial as plain data.

    Raises:
        ConfigError: There is none, and why.
    """
    about, best = sweep.about, best_trial(sweep.trials, sweep.about.goal)
    if not about.metric:
        raise ConfigError(f"the file of sweep {sweep.name} names no metric, so no trial is the best one.")
    if best is None:
        done = f"{len(sweep.having('done')):,} trials are done"
        raise ConfigError(f"sweep {sweep.name} has no value of {about.metric} yet: {done}.")
    return {
        "sweep": sweep.name,
        "metric": about.metric,
        "goal": about.goal,
        **trial_json(best, now),
        "folder": str(sweep.folder.trial(best.number).path),
        "tested": tested(sweep) or None,
    }


def best_lines(sweep: Record) -> Iterator[tuple[str, str]]:
    """Yield the best trial: its value, its searched settings, and its place.

    Yields:
        A line, and what follows it and is to be copied, or "".

    Raises:
        ConfigError: There is none.
    """
    best = best_json(sweep, time.time())
    reached = f"{best['metric']} {measured(best['value'])}"
    yield f"trial {best['number']}: {reached} ({best['goal']}; {counted(sweep.trials.values())})", ""
    parameters, differing = sweep.trials[best["number"]].parameters, varied(list(sweep.trials.values()))
    searched = [name for name in differing if name in parameters]
    yield from ((f"  {name}={on_one_line(typed(parameters[name]))}", "") for name in searched)
    if same := len(parameters) - len(searched):
        yield f"  and {count(same, 'setting')} that all trials have", ""
    if held_out := tested(sweep):
        value = measured(held_out.get(best["metric"])) or "-"
        yield f"on held-out data: {best['metric']} {value} (all metrics with --json)", ""
    yield "folder:", shown_path(Path(best["folder"]))
    if sweep.folder.report.is_file():
        yield "report of the sweep:", shown_path(sweep.folder.report)


# -- page --------------------------------------------------------------------------------------------------------
# The page of a sweep, as plain data from which its scripts draw: what it left, read once.

_SCRIPTS = tuple(Path(__file__).parent / "assets" / name for name in ("trials.js", "search.js", "sweep.js"))
"""Scripts of the page, in order, after those of the frame."""
_LESS_IS_BETTER = re.compile(
    r"loss|error|perplexity|ppl|(^|[/._])kl|regret|crash|truncated|second|time|latency|memory|flops|cost",
    re.IGNORECASE,
)
_MOST_MEASURES = 12
"""Measures that a page offers, those that most trials have; one that is the same in all of them tells nothing."""
_FEW = 6
"""Numbers that are tried again and again, and are no more than so many, stand in equal distances."""
_SPREAD = 50
"""Positive numbers of which the largest is so many times the smallest are seen by their order of magnitude."""
_FEWEST = 10
"""Trials with a value, below which importance says nothing; and so many the best are, but never more than half."""
_NOT_DONE = ("failed", "lost", "cancelled")


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
    about, trials, metric, state = sweep.about, list(sweep.trials.values()), sweep.about.metric, sweep.state()
    logged = [{**latest_values(_metrics(sweep, trial)), **trial.values} for trial in trials]
    values = [
        trial.value if trial.value is not None else known.get(metric)
        for trial, known in zip(trials, logged, strict=True)
    ]
    curves = [_curve(sweep, trial, points_each(len(trials))) for trial in trials]
    shown = [curve for curve in curves if len(curve["steps"]) > 1]
    points, known = sum(len(curve["steps"]) for curve in shown), sum(curve["logged"] for curve in shown)
    running = {
        trial.number: value for trial, value in zip(trials, values, strict=True) if trial.state == "running"
    }
    axes, shares = axes_of(trials), importance(trials, about.goal)
    unfinished = f"The sweep was {state} when this page was written. {count(len(trials), 'trial')} so far: "
    return {
        "title": sweep.name,
        "made": f"{datetime.now():%Y-%m-%d %H:%M}",
        "version": __version__,
        "state": state,
        "unfinished": [
            *([f"{unfinished}{counted(trials)}."] if state != "finished" else []),
            *([f"Why: {about.reason}"] if about.reason else []),
        ],
        "facts": [(name, tables.cut_middle(value, 200)) for name, value in _facts(sweep, axes, now)],
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
        "ranking": [trials.index(trial) for trial in ranked(trials, about.goal)],
        "axes": axes,
        "measures": _measures(sweep, values, logged, now),
        "curves": shown,
        "curves_about": f"{points:,} of {known:,} values that were logged, evenly spread."
        if points < known
        else "",
        "importance": list(shares.items()),
        "importance_about": (
            "How much each parameter decides whether a trial is among the best: PED-ANOVA, as Optuna computes it. "
            "It says nothing about the direction; of few trials it is a hint."
            if shares
            else f"Too few trials to tell, fewer than {_FEWEST}, or they do not tell which parameter matters."
        ),
        "table": page_table(trials_table(sweep, trials, now, running, brief=False)),
        "tested": [(name, measured(value)) for name, value in tested(sweep).items()],
        "failures": [_failure(sweep, trial) for trial in trials if trial.state in _NOT_DONE],
        "file": _text(sweep.folder.file),
        "command": "" if about.halted == "finished" else _command(sweep, "agent"),
        "about": [("folder", shown_path(sweep.folder.path))],
        "looks": LOOKS,
    }


def _curve(sweep: Record, trial: Trial, most: int) -> dict[str, Any]:
    """Return the metric over a trial, thinned to some points, and the number of all points."""
    metric, lines = sweep.about.metric, list[bytes]()
    with suppress(OSError), open_plain(_metrics(sweep, trial)) as file:
        # Many lines are written, and few need to be read.
        names = {json.dumps(metric, ensure_ascii=escaped).encode(errors="replace") for escaped in (True, False)}
        lines = [line for line in whole_lines(file) if metric and any(name in line for name in names)]
    points = [
        (at if row.step is None else row.step, row.values[metric])
        for at, line in thinned(list(enumerate(lines, 1)), most)
        for row in parsed([line])
        if metric in row.values
    ]
    steps, values = [step for step, _ in points], [value for _, value in points]
    return {"trial": trial.number, "steps": steps, "values": values, "logged": len(lines)}


def _measures(
    sweep: Record, values: list[float | None], logged: Sequence[Mapping[str, float | None]], now: float
) -> list[dict[str, Any]]:
    """Return the metric, other metrics, and seconds."""
    metric, names = sweep.about.metric, dict.fromkeys(name for row in logged for name in row)
    columns = {name: [row.get(name) for row in logged] for name in names if name != metric}
    telling = [name for name, column in columns.items() if len(set(column) - {None}) > 1]
    measures = [{"name": metric, "goal": sweep.about.goal, "values": values}] if metric else []
    for name in sorted(telling, key=lambda name: columns[name].count(None))[:_MOST_MEASURES]:
        goal = "minimize" if _LESS_IS_BETTER.search(name) else "maximize"
        measures.append({"name": name, "goal": goal, "values": columns[name]})
    trials = sweep.trials.values()
    seconds = [seconds_of(trial, now) if trial.state == "done" else None for trial in trials]
    return [*measures, {"name": "seconds", "goal": "minimize", "values": seconds}]


def _facts(sweep: Record, axes: Sequence[Axis], now: float) -> Iterator[tuple[str, str]]:
    about, trials = sweep.about, sweep.trials
    if best := best_trial(trials, about.goal):
        yield f"best {about.metric}", f"{measured(best.value)} (trial {best.number})"
        yield "with", in_words(best.parameters, [axis.name for axis in axes] or None)
    yield "search", about.method
    if about.metric:
        yield "goal", f"{about.goal} {about.metric}"
    if trials:
        yield "trials", f"{len(trials):,}: {counted(trials.values())}"
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


def axes_of(trials: Sequence[Trial]) -> list[Axis]:
    """Parameters that not all trials have the same of."""
    values = _values(trials)
    differing = _differing(values, len(trials))
    headings = headings_of(list(differing), values)
    return [_axis(name, headings[name], own, len(trials)) for name, own in differing.items()]


def _axis(name: str, heading: str, own: Mapping[int, Any], trials: int) -> Axis:
    values, different = list(own.values()), {_key(value): value for value in own.values()}
    if all(map(_is_number, values)) and (len(different) > _FEW or len(different) == len(values)):
        numbers = [float(own[at]) if at in own else None for at in range(trials)]
        log = min(values) > 0 and max(values) / min(values) > _SPREAD
        return Axis(name=name, heading=heading, kind="log" if log else "linear", values=numbers)
    order = sorted(different.values(), key=lambda item: (0, item, "") if _is_number(item) else (1, 0, label(item)))
    places = {_key(value): float(position) for position, value in enumerate(order)}
    shown = [places[_key(own[at])] if at in own else None for at in range(trials)]
    return Axis(name=name, heading=heading, kind="choices", values=shown, choices=list(map(label, order)))


def _key(value: Any) -> str:
    """Return a key that is the same for equal values, including lists and mappings; 1, 1.0 and true differ."""
    return json.dumps(value, sort_keys=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def importance(trials: Sequence[Trial], goal: Goal) -> dict[str, float]:
    """Return how much each parameter decides whether a trial is among the best: PED-ANOVA from Optuna.

    Of parameters that are searched, the largest first; they add up to 1. Nothing where there are too few
    trials, or where they tell nothing.
    """
    ended = [trial for trial in trials if trial.state == "done" and trial.value is not None]
    alike = [trial for trial in ended if trial.distributions and trial.distributions == ended[0].distributions]
    if len(alike) < _FEWEST or len({trial.value for trial in alike}) < 2:
        return {}
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(direction=goal)
        for trial in alike:
            origin = {"params": dict(trial.sampled), "distributions": dict(trial.distributions)}
            study.add_trial(optuna.trial.create_trial(value=trial.value, **origin))  # type: ignore[arg-type]
        best = max(len(alike) // 10, min(_FEWEST, len(alike) // 2))
        part = (best - 0.5) / len(alike)  # Optuna rounds up: of a whole number that may be the next
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=part)
        shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: share for name, share in shares.items() if math.isfinite(share)}
