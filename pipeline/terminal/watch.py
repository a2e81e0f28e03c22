"""Showing something again and again: redrawn in place on a terminal, elsewhere only what is new."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from pipeline.terminal.console import say
from pipeline.terminal.streams import is_gone

Draw = Callable[[Iterable[RenderableType]], None]
_WAITING = "Waiting for it; Ctrl-C ends that."


@contextmanager
def in_place(console: Console, *, stays: bool = False) -> Iterator[Draw]:
    """A part of the terminal that is drawn anew each time; what does not fit in it is cut off.

    Args:
        console: A terminal that can move its cursor.
        stays: Leave what was drawn last where it is; else it is taken away in the end.
    """
    with ExitStack() as drawn:
        live, size = drawn.enter_context(_live(console, stays=stays)), console.size

        def draw(parts: Iterable[RenderableType]) -> None:
            nonlocal live, size
            if console.size != size:
                # The terminal has broken or cut the lines that are there, so nobody knows where they began.
                live.update("")
                drawn.close()
                console.clear()
                live, size = drawn.enter_context(_live(console, stays=stays)), console.size
            # A terminal shows ^C where the cursor waits: at the end of a full line it would shift the view.
            live.update(Group(*parts, Text("")), refresh=True)

        yield draw


def _live(console: Console, *, stays: bool) -> Live:
    return Live(console=console, auto_refresh=False, transient=not stays, vertical_overflow="crop")


def watch(
    console: Console,
    every_s: float,
    look: Callable[[], bool],
    page: Callable[[int, int], Iterable[RenderableType]],
    lines: Callable[[], Iterable[str]],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Look again and again and show it, until there is no more to see, nobody reads, or Ctrl-C.

    Args:
        console: Where to.
        every_s: Seconds between two looks.
        look: Looks; whether anything may still change.
        page: What a terminal of so many columns and lines shows.
        lines: What is new, where a page cannot be redrawn.
        sleep: Waits.

    Raises:
        KeyboardInterrupt: The user has seen enough.
    """
    if console.is_interactive:
        with in_place(console, stays=True) as draw:
            while _again(console, look, lambda: draw(page(*console.size))):
                sleep(every_s)
        return

    def print_lines() -> None:
        for line in lines():
            say(console, line)

    while _again(console, look, print_lines):
        sleep(every_s)


def wait_for(console: Console, every_s: float, missing: Callable[[], str]) -> None:
    """Wait until what is to be watched is there, or nobody reads; says once what is waited for.

    A terminal that can take it away again shows it only for as long as it is true.

    Args:
        console: Where to.
        every_s: Seconds between two looks.
        missing: Looks; what is missing, in words, or "".

    Raises:
        KeyboardInterrupt: The user has waited enough.
    """
    told = False
    with ExitStack() as shown:
        while (what := missing()) and not _is_gone(console):
            if not told and console.is_interactive:
                shown.enter_context(in_place(console))([Text(f"{what} {_WAITING}")])
            elif not told:
                say(console, f"{what} {_WAITING}")
            told = True
            time.sleep(every_s)


def _again(console: Console, look: Callable[[], bool], show: Callable[[], object]) -> bool:
    more = look()
    show()
    return more and not _is_gone(console)


def _is_gone(console: Console) -> bool:
    return is_gone(sys.stderr if console.stderr else sys.stdout)
