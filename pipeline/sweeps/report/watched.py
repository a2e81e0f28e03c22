"""What `sweep status --watch` shows, and what a sweep shows while it runs: as much as a terminal has room for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.text import Text

from pipeline.runs.report.format import count
from pipeline.runs.report.screen import first
from pipeline.sweeps.recorded import RecordedSweep
from pipeline.sweeps.report.status import about_table, foremost, headline
from pipeline.sweeps.report.tables import SweepRow, about_trial, trials_table
from pipeline.sweeps.trials import SweepView, Trial, TrialState
from pipeline.sweeps.values import counted, varied
from pipeline.terminal.columns import in_lines, whole_words
from pipeline.terminal.streams import printable

_MOST_FAILURES = 3
_AT_WORK = (TrialState.waiting, TrialState.running)


def is_over(sweep: RecordedSweep) -> bool:
    """Whether nothing will change any more unless somebody begins it again."""
    return sweep.state() in ("finished", "cancelled", "stopped")


def watched_sweep(
    sweep: RecordedSweep, now: float, width: int, height: int, *, said: str = ""
) -> list[RenderableType]:
    """One sweep for a terminal of so many lines: how far it is, what runs, the best trials, what failed last.

    Args:
        sweep: The sweep.
        now: Seconds since 1970.
        width: Columns of the terminal.
        height: Its lines.
        said: Stands at the bottom.
    """
    view = sweep.view
    top = whole_words(headline(sweep, now), width)
    failed = view.having(TrialState.failed, TrialState.lost)[-_MOST_FAILURES:]
    bottom = [whole_words(Text(printable(_failure(trial)), "red"), width) for trial in failed]
    bottom += [Text(line, no_wrap=True, overflow="ellipsis") for line in in_lines(printable(said).split(), width)]
    trials = foremost(list(view.trials.values()), view.goal)
    room = height - 2 - len(top.plain.splitlines()) - len(bottom)  # headings, and the line of the cursor
    parts: list[RenderableType] = [top]
    if trials and room > 0:
        table = trials_table(view, first(trials, room, lambda _: 0)[0], now, sweep.so_far())
        about = about_table(sweep, table, width)
        # Fewer rows need no more columns than more of them, and so no more lines above them.
        left = room - len(about.plain.splitlines())
        shown, more = first(trials, left, lambda _: 0) if left > 0 else ([], 0)
        if not shown:
            return [*parts, *bottom]
        parts += [about, trials_table(view, shown, now, sweep.so_far())]
        if more:
            parts.append(Text(f"and {more:,} more", no_wrap=True, overflow="ellipsis"))
    return [*parts, *bottom]


def _failure(trial: Trial) -> str:
    return f"{trial.state.value}: trial {trial.number}: {' '.join(trial.reason.split())}"


class News:
    """What is new, a line for each trial or sweep that has changed."""

    def __init__(self) -> None:
        self._last: dict[str | int, str] = {}

    def of_trials(self, view: SweepView) -> Iterator[str]:
        """Trials that are over, or tried again, since the last time."""
        names = varied(list(view.trials.values()))
        for trial in view.trials.values():
            said = trial.state.value if trial.state not in _AT_WORK else ""
            if self._last.get(trial.number, "") != said:
                self._last[trial.number] = said
                yield from [f"{trial.state.value}: {about_trial(trial, view.metric, names)}"] if said else []

    def of_sweeps(self, rows: Iterable[SweepRow]) -> Iterator[str]:
        """Sweeps that are not as they were the last time."""
        for row in rows:
            said = row.problem or ": ".join(
                filter(None, [f"{row.state}, {count(row.trials, 'trial')}", counted(row.by_state)])
            )
            if self._last.get(row.name) != said:
                self._last[row.name] = said
                yield f"{row.name}: {said}"
