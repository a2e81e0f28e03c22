"""The console of every command: what is foreign is shown as it is, and only what is ours is styled.

Markup is off: a square bracket in a name is a square bracket. Styled text is a `rich.text.Text`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from pipeline.terminal.text import edges, encodable, obeyed, printable

NO_TERMINAL_WIDTH = 1000
"""Columns where output is no terminal and so has no width of its own: enough for every table."""


class Terminal(Console):
    """A console that lets nothing through to a terminal but text and what this program styles."""

    @property
    def file(self) -> IO[str]:
        """Where rendered text goes, which needs no filter any more."""
        file = super().file
        unfiltered: IO[str] = getattr(file, "unfiltered", file)
        return unfiltered

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render_str(self, text: str, **how: Any) -> Text:
        """Every string that is printed or is in a table comes through here, before anything is measured."""
        return super().render_str(self._shown(text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Every other text comes through here."""
        if isinstance(renderable, Text) and obeyed(renderable.plain):
            renderable = _text_shown(renderable)
        return super().render(renderable, options)

    def _shown(self, text: str) -> str:
        text = printable(text)
        return text if text.isascii() or self.encoding.startswith("utf") else encodable(text, self.encoding)


def make_console(*, stderr: bool = False) -> Terminal:
    """The console of standard output, or of standard error."""
    stream = sys.stderr if stderr else sys.stdout
    real = stream is not None and stream.isatty() and _can_be_styled()
    return Terminal(
        stderr=stderr,
        width=None if stream is not None and stream.isatty() else NO_TERMINAL_WIDTH,
        force_interactive=real,
        color_system="auto" if real or "FORCE_COLOR" in os.environ else None,
        markup=False,
        emoji=False,
    )


def _can_be_styled() -> bool:
    """Whether the terminal knows cursor movement; one that does not say what it is is taken for one without."""
    return os.environ.get("TERM", "dumb").lower() not in ("", "dumb", "unknown")


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print text of which nothing is cut off or folded, so that ids and paths can be copied."""
    # In a style of its own: one that is given to `print` would colour a live view below it as well.
    console.print(Text(printable(text), style=style or ""), highlight=False, soft_wrap=True)


def print_json(data: object) -> None:
    """Print plain data: in ASCII, so that no terminal obeys any of it and no encoding lacks any."""
    text = json.dumps(data, indent=1).replace("\x7f", "\\u007f")
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _text_shown(text: Text) -> Text:
    """The text with what a terminal would obey escaped, in the style of what it stands for."""
    shown = text.blank_copy()
    for part in text.divide(edges(text.plain)):
        if obeyed(part.plain):
            shown.append(printable(part.plain), part.spans[-1].style if part.spans else None)
        else:
            shown.append_text(part)
    return shown
