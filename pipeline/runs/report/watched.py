"""What `status --watch` shows: one run as far as a terminal has room, or what is new of all experiments."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from pipeline.runs.loaded import LoadedRun
from pipeline.runs.report.format import jobs
from pipeline.runs.report.moved import moved_in_words
from pipeline.runs.report.screen import chain_lines, chains_of, first, share_lines, waited_for
from pipeline.runs.report.status import Glance, run_headline, running_table
from pipeline.runs.run_view import failures
from pipeline.terminal.streams import printable

_MOST_FAILURES = 3
_ABOVE = 3
"""Lines that are neither a row nor a sentence: headings of two tables, and that of the cursor."""
_RULER = Console(file=io.StringIO(), color_system=None)


def watched_run(run: LoadedRun, now: float, width: int, height: int) -> list[RenderableType]:
    """One run for a terminal of that size: how far it is, chains, what runs, what moved, what failed last."""
    engine = run.engine_runs()
    top = _wrapped(run_headline(run, now, engine), width)
    bottom = _below(run, engine, width, height - _ABOVE - len(top))
    chains, running = chains_of(run.view.cells), run.view.having("running") if engine else []
    room = height - _ABOVE - len(top) - len(bottom)
    for_chains, for_jobs = share_lines(room, len(chains), len(running))
    parts: list[RenderableType] = [*top]
    if for_chains:
        parts += chain_lines(run.view.cells, chains, for_chains)
    if for_jobs:
        shown, more = first(running, for_jobs, lambda _: 0)
        parts.append(running_table(run.folder, shown, now))
        if more:
            parts.append(Text(f"and {more} more", no_wrap=True, overflow="ellipsis"))
    return [*parts, *bottom]


def _below(run: LoadedRun, engine: bool | None, width: int, room: int) -> list[Text]:
    """What is said below the tables: whole where that leaves room for them, else less of it, or the beginnings."""
    waits = waited_for(run.view) if engine else ""
    failed = [f"failed: {job.id}: {job.reason}" for job, _ in list(failures(run.view))[-_MOST_FAILURES:]]
    said = [
        *(Text(printable(line)) for line in moved_in_words(run)),
        *([Text(printable(waits), "yellow")] if waits else []),
        *(Text(printable(line), "red") for line in failed),
    ]
    whole = [line for text in said for line in _wrapped(text, width)]
    if len(whole) <= room // 2:
        return whole
    for text in said:
        text.no_wrap, text.overflow = True, "ellipsis"
    needed = len(failed) + bool(waits)
    return said[max(0, len(said) - max(needed, room // 2)) :]


def _wrapped(text: Text, width: int) -> list[Text]:
    """Lines of a terminal of so many columns, broken between words."""
    return list(text.wrap(_RULER, width))


class News:
    """What is new of all experiments, a line for each that has changed."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def of(self, rows: Iterable[Glance]) -> Iterator[str]:
        """Those that are not as they were the last time."""
        for row in rows:
            text = row.problem or f"{row.state}, {row.done:,}/{jobs(row.jobs)} done"
            text += f", {row.failed} failed" if row.failed else ""
            if self._last.get(row.name) != text:
                self._last[row.name] = text
                yield f"{row.name} {row.run}: {text}"
