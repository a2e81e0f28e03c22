"""Foreign text made fit to be shown: without what a terminal obeys, in an encoding that may lack characters."""

from __future__ import annotations

import codecs
import re

_OBEYED = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed; ESC and CSI begin whole commands
    r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # what turns the direction of text, or ends its line
    r"\ud800-\udfff"  # halves of characters, which stand for bytes that are no text
)
_COLOUR = r"\x1b\[[0-9;:]{0,64}m"
_OBEYED_BY_A_TERMINAL = re.compile(f"[{_OBEYED}]")
_COLOUR_OR_OBEYED = re.compile(f"({_COLOUR})|[{_OBEYED}]")

FALLBACK = "pipeline.fallback"
"""Name of the error handler for characters that an encoding lacks: the nearest in ASCII, else their number."""
_NEAREST = {
    "\N{HORIZONTAL ELLIPSIS}": "~",
    "\N{MIDDLE DOT}": "-",
    "\N{CHECK MARK}": "+",
    "\N{EN DASH}": "-",
    "\N{EM DASH}": "-",
    "\N{MULTIPLICATION SIGN}": "x",
    "\N{PLUS-MINUS SIGN}": "~",
    "\N{RIGHTWARDS ARROW}": ">",
    "\N{BOX DRAWINGS LIGHT HORIZONTAL}": "-",
    "\N{BOX DRAWINGS HEAVY HORIZONTAL}": "-",
}
"""One character for one, so that columns stay where they are."""


def printable(text: str) -> str:
    r"""Foreign text as it may be printed: an ESC becomes ``\x1b``; line feeds and tabs stay."""
    return _OBEYED_BY_A_TERMINAL.sub(_escaped, text)


def on_one_line(text: str) -> str:
    r"""As `printable`, but a line feed becomes ``\n`` and a tab ``\t``, and so they have a width."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def printable_but_colours(text: str) -> str:
    """As `printable`, but what only sets colours stays."""
    return _COLOUR_OR_OBEYED.sub(lambda found: found[1] or _escaped(found), text)


def without_colours(text: str) -> str:
    """As `printable`, and what sets colours is left out."""
    return _COLOUR_OR_OBEYED.sub(lambda found: "" if found[1] else _escaped(found), text)


def encodable(text: str, encoding: str) -> str:
    """The text with what the encoding lacks replaced."""
    return text.encode(encoding, FALLBACK).decode(encoding)


def obeyed(text: str) -> bool:
    """Whether there is something in the text that a terminal would obey."""
    return _OBEYED_BY_A_TERMINAL.search(text) is not None


def edges(text: str) -> list[int]:
    """Where something begins that a terminal would obey, and where it ends."""
    return [at for found in _OBEYED_BY_A_TERMINAL.finditer(text) for at in found.span()]


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    near = (_NEAREST.get(char) or char.encode("unicode_escape").decode("ascii") for char in missing)
    return "".join(near), error.end


codecs.register_error(FALLBACK, _nearest)
