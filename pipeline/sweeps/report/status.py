"""Where a sweep stands: a headline, its trials, what went wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from statistics import fmean
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from pipeline.files import open_plain
from pipeline.runs.report.format import command, count, duration, roughly
from pipeline.sweeps.batch import effective_batch
from pipeline.sweeps.folder import SweepFolder
from pipeline.sweeps.recorded import RecordedSweep
from pipeline.sweeps.report.tables import STYLES, SweepRow, about_trial, seconds_of, trials_table
from pipeline.sweeps.spec import Goal
from pipeline.sweeps.trials import Trial, TrialState, best_trial, is_number
from pipeline.sweeps.values import by_state, counted, plain, varied
from pipeline.terminal.columns import FittedTable, in_lines
from pipeline.terminal.console import say_styled
from pipeline.terminal.streams import on_one_line, printable, without_colours

# -- pace --------------------------------------------------------------------------------------------------------
# How long a sweep will still take, as far as its trials so far tell. Pure.


_ENDED = (TrialState.done, TrialState.stopped)
_GIVEN_UP = (TrialState.failed, TrialState.cancelled)


def remaining_s(trials: Sequence[Trial], most: int | None, now: float) -> float | None:
    """Seconds until so many trials have ended, if those to come take as long and as many run at the same time.

    Args:
        trials: All so far.
        most: How many there will be; None where nobody knows.
        now: Seconds since 1970.

    Returns:
        None where nothing tells: none has ended, none runs, or nobody knows how many there will be.
    """
    taken = [
        trial.ended - trial.started
        for trial in trials
        if trial.state in _ENDED and trial.started is not None and trial.ended is not None
    ]
    running = [
        now - trial.started for trial in trials if trial.state is TrialState.running and trial.started is not None
    ]
    if most is None or not taken or not running:
        return None
    each = fmean(taken)
    settled = sum(trial.state in (*_ENDED, *_GIVEN_UP) for trial in trials)
    already = sum(min(each, max(0.0, so_far)) for so_far in running)
    return max(0.0, each * (most - settled) - already) / len(running)


# -- tails -------------------------------------------------------------------------------------------------------
# The end of what a trial printed, where one looks first when it has failed.


_MOST = 8000
"""Bytes of it."""
_OF_WANDB = "wandb:"


def log_tail(folder: SweepFolder, trial: Trial, lines: int) -> str:
    """The last lines of the log of a trial's last attempt; "" where there is none, or it cannot be read.

    W&B's client says at the end of each program where its files are, whatever that has said of its failure: such
    lines at the end count only where there are no others.
    """
    try:
        with open_plain(folder.trial(trial.number).log(max(1, trial.attempts))) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST))
            said = without_colours(file.read(_MOST).decode("utf-8", "replace")).strip().split("\n")
    except OSError:
        return ""
    own = [number for number, line in enumerate(said, 1) if not line.startswith(_OF_WANDB)]
    return "\n".join(said[: max(own, default=None)][-lines:])


MOST_ROWS = 50
"""Trials that are listed; the others are counted."""
MOST_FAILURES = 10


def row_of(sweep: RecordedSweep, now: float) -> SweepRow:
    """A sweep in one row."""
    view, state = sweep.view, sweep.state()
    best, numbers = best_trial(view.trials.values(), view.goal), by_state(view)
    return SweepRow(
        name=sweep.name,
        state=state,
        method=view.method,
        started=view.started,
        elapsed_s=round(elapsed_s(sweep, state, now), 3),
        trials=len(view.trials),
        waiting=numbers["waiting"],
        running=numbers["running"],
        done=numbers["done"],
        failed=numbers["failed"],
        stopped=numbers["stopped"],
        cancelled=numbers["cancelled"],
        lost=numbers["lost"],
        metric=view.metric,
        best=None if best is None else best.number,
        value=None if best is None else best.value,
    )


def elapsed_s(sweep: RecordedSweep, state: str, now: float) -> float:
    """Seconds in which agents have worked on a sweep, up to its last event where none does now."""
    view = sweep.view
    if view.started is None:
        return 0.0
    until = now if state in ("running", "stopping") else view.last or view.started
    return max(0.0, until - view.started - view.rested_s)


def print_sweep(sweep: RecordedSweep, now: float, console: Console) -> None:
    """Print one sweep. Only the table is fitted to the terminal: paths and reasons stay whole."""
    for part in sweep_page(sweep, now, console.width):
        if isinstance(part, Text):
            say_styled(console, part)
        else:
            console.print(part)


def sweep_page(sweep: RecordedSweep, now: float, width: int) -> list[RenderableType]:
    """One sweep in so many columns: a headline, trials, and what went wrong."""
    view = sweep.view
    trials = [trial for _, trial in sorted(view.trials.items())]
    parts: list[RenderableType] = [headline(sweep, now)]
    if trials:
        shown = foremost(trials, view.goal)[:MOST_ROWS]
        table = trials_table(view, shown, now, sweep.so_far())
        parts += ["", about_table(sweep, table, width), table]
        if len(trials) > len(shown):
            parts.append(Text(f"and {len(trials) - len(shown):,} more; `sweep export {sweep.name}` lists all"))
    lines = [*_failed(sweep, trials), *_unreadable(sweep)]
    return parts + [Text(printable(text), style=style) for text, style in lines]


def about_table(sweep: RecordedSweep, table: FittedTable, width: int) -> Text:
    """What stands above a table of trials: their order, and which columns have no room in so many cells."""
    trials = list(sweep.view.trials.values())
    order = "best first" if any(map(_has_rank, trials)) else "newest first"
    if sweep.view.having(TrialState.running):
        order = f"running first, then {order}"
    pieces = order.split(" ")
    if left_out := [*map(on_one_line, table.left_out(width))]:
        pieces[-1] += ";"
        pieces += ["no", "room", "for", *(f"{name}," for name in left_out[:-1]), f"{left_out[-1]}:"]
        pieces += ["a", "wider", "terminal", "or", f"`{_command(sweep, 'export')}`", "has", "them"]
    return Text("\n".join(in_lines(pieces, width)), style="italic", no_wrap=True, overflow="ellipsis")


def headline(sweep: RecordedSweep, now: float) -> Text:
    """What it is, how it stands, and what to do where that is not well."""
    view, state = sweep.view, sweep.state()
    text = Text()
    text.append(f"{sweep.name}: ", style="bold")
    text.append(state, style=STYLES.get(state, ""))
    why, *log = view.reason.split("\n")
    if why:
        text.append(f" ({on_one_line(why)})")
    if view.started is not None:
        text.append(f", {duration(elapsed_s(sweep, state, now))}")
    left = remaining_s(list(view.trials.values()), sweep.most, now) if state == "running" else None
    if left is not None:
        text.append(f", about {roughly(left)} left")
    for line in log:  # the end of what the preparation printed
        text.append(f"\n{printable(line)}", style="red")
    text.append("\n" + ", ".join(_counted(sweep)))
    if best := best_trial(view.trials.values(), view.goal):
        text.append(f"\nbest: {about_trial(best, view.metric, varied(list(view.trials.values())))}")
    if hint := _hint(sweep, state):
        text.append(f"\n{hint}", style="bold")
    return text


def _counted(sweep: RecordedSweep) -> Iterator[str]:
    view = sweep.view
    judged = f", {view.goal.value} {on_one_line(view.metric)}" if view.metric else ""
    known, most = len(view.trials), sweep.most
    yield f"{view.method}{judged}: " + (f"{known:,} of {count(most, 'trial')}" if most else count(known, "trial"))
    yield from filter(None, [counted(by_state(view))])
    if living := sweep.living_agents():
        yield count(len(living), "agent")


def _hint(sweep: RecordedSweep, state: str) -> str:
    return {
        "idle": f"No agent is at work; `{_command(sweep, 'agent')}` goes on.",
        "paused": f"`{_command(sweep, 'resume')}` goes on.",
        "stopped": f"`{_command(sweep, 'resume')}` lets it go on.",
    }.get(state, "")


def _command(sweep: RecordedSweep, word: str, *more: str) -> str:
    return command(" ".join(["sweep", word, sweep.name, *more]), sweep.folder.path.parent.parent)


def foremost(trials: Sequence[Trial], goal: Goal) -> list[Trial]:
    """Trials, those first that one wants to see: what runs, the best ones, then those without a value."""
    running = [trial for trial in trials if trial.state is TrialState.running]
    return [*running, *(trial for trial in ranked(trials, goal) if trial.state is not TrialState.running)]


def ranked(trials: Sequence[Trial], goal: Goal) -> list[Trial]:
    """Trials, those with the best values first, also where they were stopped early, then others, newest first."""
    sign = 1.0 if goal is Goal.minimize else -1.0

    def place(trial: Trial) -> tuple[bool, float, int]:
        if _has_rank(trial):
            return False, sign * (trial.value or 0.0), trial.number
        return True, 0.0, -trial.number

    return sorted(trials, key=place)


def _has_rank(trial: Trial) -> bool:
    return trial.state in (TrialState.done, TrialState.stopped) and is_number(trial.value)


def _failed(sweep: RecordedSweep, trials: Sequence[Trial]) -> Iterator[tuple[str, str]]:
    found = [trial for trial in trials if trial.state in (TrialState.failed, TrialState.lost)]
    if found:
        yield f"\nnot done: {count(len(found), 'trial')}", "bold red"
    for trial in found[-MOST_FAILURES:]:
        yield f"  trial {trial.number}: {trial.state.value}", ""
        yield f"    {trial.reason or f'exit code {trial.exit_code}'}", "red"
        if said := log_tail(sweep.folder, trial, 1):
            yield f"    it said last: {said}", ""
    if found:
        yield f"  read more: `{_command(sweep, 'logs', str(found[-1].number))}`", ""
    if len(found) > MOST_FAILURES:
        yield f"  and {len(found) - MOST_FAILURES} more before; --json lists all", ""


def _unreadable(sweep: RecordedSweep) -> Iterator[tuple[str, str]]:
    if sweep.unreadable:
        said = count(sweep.unreadable, "line")
        yield f"\n{said} of journal.jsonl cannot be read; what they told is missing here", "bold"


def sweep_json(sweep: RecordedSweep, now: float) -> dict[str, Any]:
    """One sweep as plain data, nothing cut off."""
    view = sweep.view
    started = None if view.started is None else datetime.fromtimestamp(view.started).astimezone().isoformat()
    return {
        **asdict(row_of(sweep, now)),
        "folder": str(sweep.folder.path),
        "started_at": started,
        "goal": view.goal.value,
        "reason": view.reason or None,
        "agents": {agent: sweep.agent_lives(agent) for agent in sweep.agents()},
        "hosts": view.hosts,
        "tested": view.tested or None,
        "unreadable_lines": sweep.unreadable,
        "all_trials": [trial_json(trial, now) for _, trial in sorted(view.trials.items())],
    }


def trial_json(trial: Trial, now: float) -> dict[str, Any]:
    """A trial as plain data."""
    seconds = seconds_of(trial, now)
    return {
        **asdict(trial),
        "parameters": plain(trial.parameters),
        "state": trial.state.value,
        "seconds": None if seconds is None else round(seconds, 3),
        "effective_batch": effective_batch(trial.parameters, trial.num_gpus),
    }
