"""The console of every command: what is foreign is shown as it is, and only what is ours is styled.

Markup is off: a square bracket in a name is a square bracket. Styled text is a `rich.text.Text`.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import IO, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from pipeline.terminal.columns import in_lines
from pipeline.terminal.streams import is_gone, obeyed, printable

_WORD = re.compile(r"((?:`[^`]*`|(?<![^ (=])'(?:[^']{,60}|[\w.]+=[^']*)'(?![^ ).,:;])|[^ ])*)(?: |$)")
NO_TERMINAL_WIDTH = 1000
"""Columns where output is no terminal and so has no width of its own: enough for every table."""
NOTEBOOK_WIDTH = 100
"""Columns of the output of a notebook's cell, on the screens that most have."""


class Terminal(Console):
    """A console that lets nothing through to a terminal but text and what this program styles."""

    @property
    def file(self) -> IO[str]:
        """Return the stream for rendered text, which needs no filter any more."""
        file = super().file
        unfiltered: IO[str] = getattr(file, "unfiltered", file)
        return unfiltered

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render_str(self, text: str, **how: Any) -> Text:
        """Render a string: every string that is printed or is in a table goes through here."""
        return super().render_str(printable(text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render any other text."""
        if isinstance(renderable, Text) and obeyed(renderable.plain):
            renderable = _text_shown(renderable)
        return super().render(renderable, options)


def make_console(*, stderr: bool = False) -> Terminal:
    """Return the console of standard output, or of standard error.

    A notebook breaks lines that are wider than its cell, and asks the programs that it starts for colours. A
    terminal that does not say what it is is taken for one that knows no cursor movement.
    """
    stream = sys.stderr if stderr else sys.stdout
    is_terminal = stream is not None and stream.isatty()
    is_notebook = type(stream).__module__.startswith("ipykernel.")
    real = is_terminal and os.environ.get("TERM", "dumb").lower() not in ("", "dumb", "unknown")
    return Terminal(
        stderr=stderr,
        width=None if is_terminal else NOTEBOOK_WIDTH if is_notebook else NO_TERMINAL_WIDTH,
        force_jupyter=False,  # what rich shows in a notebook by itself does not go through here
        force_interactive=real,
        color_system="auto" if real or ("FORCE_COLOR" in os.environ and not is_notebook) else None,
        markup=False,
        emoji=False,
    )


def say(console: Console, text: str, style: str | None = None, *, copy: str = "") -> None:
    """Print text whole, with no path, id or command broken, so that these can be copied.

    On a terminal lines end between words. What is too wide for a line begins one, and the terminal itself wraps
    it, so that it is whole when it is copied; so is what stands between backticks, and a short text in quotes.
    Elsewhere lines stay as they are.

    Args:
        console: Console to print to.
        text: Text, foreign or ours.
        style: Style of the whole text.
        copy: A command, or a path that may have spaces, to follow after a space and be copied.
    """
    # In a style of its own: one that is given to `print` would colour a live view below it as well.
    console.print(Text(_laid_out(console, text, copy), style=style or ""), highlight=False, soft_wrap=True)


def say_error(console: Console, text: str) -> None:
    """Print what went wrong, as `say` prints it, so that whoever looks for errors finds them."""
    say_styled(console, Text.assemble(("error:", "bold red"), f" {text}"))


def say_styled(console: Console, text: Text) -> None:
    """Print text of several styles, as `say` prints it."""
    shown = _text_shown(text)
    shown.plain = _laid_out(console, shown.plain)  # as long as before: spaces have become ends of lines
    console.print(shown, highlight=False, soft_wrap=True)


def _laid_out(console: Console, text: str, copy: str = "") -> str:
    text, copy = printable(text), printable(copy)
    if not console.is_terminal:
        return f"{text} {copy}" if copy else text
    lines = [in_lines(_words(line), console.width) for line in text.split("\n")]
    if copy:
        lines[-1] = in_lines([*lines[-1], copy], console.width)
    return "\n".join("\n".join(parts) for parts in lines)


def _words(line: str) -> list[str]:
    """Split a line at spaces; a command in backticks, or a short text or setting in quotes, stays whole."""
    return _WORD.findall(line)[:-1] or [""]


def print_json(data: object) -> None:
    """Print plain data: in ASCII, so that no terminal obeys any of it and no encoding lacks any."""
    text = json.dumps(data, indent=1).replace("\x7f", "\\u007f")
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _text_shown(text: Text) -> Text:
    """Escape control characters of a text; only the style of the whole text stays."""
    return text.blank_copy(printable(text.plain)) if obeyed(text.plain) else text.copy()


# -- check -------------------------------------------------------------------------------------------------------
# The outcome of a check.


class Verdict(Enum):
    """Outcome of a check; the value is its style, which can be read on dark and on light."""

    PASS = "green"
    WARN = "black on yellow"
    FAIL = "bold red"


@dataclass(frozen=True)
class Check:
    """The outcome of one check.

    Attributes:
        name: Name of the check.
        verdict: Its outcome.
        detail: Findings in words.
        remedy: Advice to the user; empty where it passed.
    """

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def passed(name: str, detail: str) -> Check:
    """Return a passed check."""
    return Check(name, Verdict.PASS, detail)


def warned(name: str, detail: str, remedy: str) -> Check:
    """Return a check that works, but not fully."""
    return Check(name, Verdict.WARN, detail, remedy)


def failed(name: str, detail: str, remedy: str) -> Check:
    """Something does not work."""
    return Check(name, Verdict.FAIL, detail, remedy)


# -- watch -------------------------------------------------------------------------------------------------------
# Showing something again and again: redrawn in place on a terminal, elsewhere only what is new.


Draw = Callable[[Iterable[RenderableType]], None]


@contextmanager
def in_place(console: Console, *, stays: bool = False) -> Iterator[Draw]:
    """Redraw a part of the terminal each time; what does not fit is cut off.

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
        console: Console to print to.
        every_s: Seconds between two looks.
        look: Looks, and returns whether anything may still change.
        page: Returns the page for a terminal of so many columns and lines.
        lines: Returns what is new, where a page cannot be redrawn.
        sleep: Waits.

    Raises:
        KeyboardInterrupt: The user has seen enough.
    """
    with ExitStack() as drawn:
        draw = drawn.enter_context(in_place(console, stays=True)) if console.is_interactive else None
        while True:
            more = look()
            if draw is not None:
                draw(page(*console.size))
            for line in lines() if draw is None else ():
                say(console, line)
            if not more or _is_gone(console):
                return
            sleep(every_s)


def _is_gone(console: Console) -> bool:
    return is_gone(sys.stderr if console.stderr else sys.stdout)
