"""What `status --watch` shows: one run as far as a terminal has room, or what is new of all experiments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.text import Text

from pipeline.runs.loaded import LoadedRun
from pipeline.runs.report.format import jobs
from pipeline.runs.report.grid import chains_of
from pipeline.runs.report.notices import waited_for
from pipeline.runs.report.screen import chain_lines, first, share_lines
from pipeline.runs.report.status import Glance, run_headline, running_table
from pipeline.runs.run_view import failures
from pipeline.terminal.text import printable

_MOST_FAILURES = 3


def watched_run(run: LoadedRun, now: float, height: int) -> list[RenderableType]:
    """One run for a terminal of so many lines: how far it is, chains, what runs, what failed last."""
    engine = run.engine_runs()
    top = run_headline(run, now, engine)
    top.no_wrap, top.overflow = True, "ellipsis"
    failed = list(failures(run.view))[-_MOST_FAILURES:]
    bottom = [Text(printable(f"failed: {job.id}: {job.reason}"), "red") for job, _ in failed]
    if engine and (waits := waited_for(run.view)):
        bottom.insert(0, Text(printable(waits), "yellow"))
    for line in bottom:
        line.no_wrap, line.overflow = True, "ellipsis"
    chains, running = chains_of(run.view.cells), run.view.having("running") if engine else []
    room = height - 3 - len(top.plain.splitlines()) - len(bottom)  # a title, and the line of the cursor
    for_chains, for_jobs = share_lines(room, len(chains), len(running))
    parts: list[RenderableType] = [top]
    if for_chains:
        parts += chain_lines(run.view.cells, chains, for_chains)
    if for_jobs:
        shown, more = first(running, for_jobs, lambda _: 0)
        parts.append(running_table(run.folder, shown, now))
        if more:
            parts.append(Text(f"and {more} more", no_wrap=True, overflow="ellipsis"))
    return [*parts, *bottom]


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
