"""What a sweep shows while it runs: one view on a terminal, a line for each trial that ends elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from pipeline.sweeps.recorded import RecordedSweep
from pipeline.sweeps.report.watched import News, watched_sweep
from pipeline.terminal.console import say
from pipeline.terminal.watch import in_place


@contextmanager
def shown_on(console: Console) -> Iterator[Callable[[RecordedSweep], None]]:
    """Show a sweep that goes on.

    Yields:
        What shows where the sweep is now, as far as it was read.
    """
    if not console.is_interactive:
        news = News()

        def tell(sweep: RecordedSweep) -> None:
            for line in news.of_trials(sweep.view):
                say(console, line)

        yield tell
        return
    with in_place(console) as draw:
        yield lambda sweep: draw(watched_sweep(sweep, time.time(), console.height))
