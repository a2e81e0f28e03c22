"""The console of every command: what is foreign is shown as it is, and only what is ours is styled.

Markup is off: a square bracket in a name is a square bracket. Styled text is a `rich.text.Text`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from pipeline.terminal.columns import in_lines
from pipeline.terminal.text import edges, encodable, obeyed, printable

_WORD = re.compile(r"((?:`[^`]*`|(?<![^ (=])'(?:[^']{,60}|[\w.]+=[^']*)'(?![^ ).,:;])|[^ ])*)(?: |$)")
NO_TERMINAL_WIDTH = 1000
"""Columns where output is no terminal and so has no width of its own: enough for every table."""
NOTEBOOK_WIDTH = 100
"""Columns of the output of a notebook's cell, on the screens that most have."""


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
        width=None if stream is not None and stream.isatty() else _width_of(stream),
        force_jupyter=False,  # what rich shows in a notebook by itself does not go through here
        force_interactive=real,
        color_system="auto" if real or _wants_colours(stream) else None,
        markup=False,
        emoji=False,
    )


def _width_of(stream: object) -> int:
    """Columns of what is no terminal: a notebook breaks lines that are wider than its cell."""
    return NOTEBOOK_WIDTH if _is_notebook(stream) else NO_TERMINAL_WIDTH


def _wants_colours(stream: object) -> bool:
    """Whether somebody has asked for them: a notebook's kernel sets the variable for programs that it starts."""
    return "FORCE_COLOR" in os.environ and not _is_notebook(stream)


def _is_notebook(stream: object) -> bool:
    return type(stream).__module__.startswith("ipykernel.")


def _can_be_styled() -> bool:
    """Whether the terminal knows cursor movement; one that does not say what it is is taken for one without."""
    return os.environ.get("TERM", "dumb").lower() not in ("", "dumb", "unknown")


def say(console: Console, text: str, style: str | None = None, *, copy: str = "") -> None:
    """Print text of which nothing is cut off, and no path, id or command broken, so that these can be copied.

    On a terminal lines end between words. What is too wide for a line begins one, and the terminal itself wraps
    it, so that it is whole when it is copied; so is what stands between backticks, and a short text in quotes.
    Elsewhere lines stay as they are.

    Args:
        console: Where to.
        text: Foreign, or ours.
        style: Of all of it.
        copy: What follows the text after a space, and is to be copied: a command, or a path that may have spaces.
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
    return "\n".join("\n".join(each) for each in lines)


def _words(line: str) -> list[str]:
    """What stands between spaces; a command in backticks is one word, and a short text or a setting in quotes."""
    return _WORD.findall(line)[:-1] or [""]


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
