"""What a sweep shows while this process works on it: one view on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console

from pipeline.errors import StoreError
from pipeline.sweeps.agents.agent import SweepListener
from pipeline.sweeps.folder import SweepFolder
from pipeline.sweeps.recorded import RecordedSweep
from pipeline.sweeps.report.watched import watched_sweep
from pipeline.sweeps.trials import SweepView
from pipeline.terminal.console import in_place, say


@contextmanager
def told_on(console: Console, folder: SweepFolder) -> Iterator[SweepListener]:
    """Show what agents tell of a sweep.

    Yields:
        To be told: on a terminal it draws where the sweep stands, and the last line that was said below; elsewhere
        every line is printed.

    Raises:
        StoreError: The journal of the sweep cannot be read.
    """
    if not console.is_interactive:
        yield SweepListener(say=lambda text: say(console, text))
        return
    sweep, last = RecordedSweep(folder), [""]
    with in_place(console) as draw:

        def show(_view: SweepView) -> None:
            with suppress(StoreError):  # it cannot be opened just now: what was read before is shown
                sweep.refresh()
            draw(watched_sweep(sweep, time.time(), *console.size, said=last[0]))

        def hear(text: str) -> None:
            last[0] = text
            show(sweep.view)

        yield SweepListener(say=hear, show=show)
