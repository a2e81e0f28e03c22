"""Foreign text is shown, not obeyed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.terminal.streams import FALLBACK, encodable, printable, printable_but_colours, without_colours


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("50 %\rdone", r"50 %\rdone"),
        ("\x9b31mred", r"\x9b31mred"),
        ("user\u202etxt.exe", r"user\u202etxt.exe"),
        ("raw \udcff byte", r"raw \udcff byte"),
        ("\x00\x7f", r"\x00\x7f"),
        ("a\tb\nc", "a\tb\nc"),
        ("naïve 数 👩‍🔬", "naïve 数 👩‍🔬"),
        (r"\[/red] and [bold]", r"\[/red] and [bold]"),
    ],
    ids=["escape", "carriage return", "C1", "bidi", "surrogate", "null", "layout", "letters", "markup"],
)
def test_what_a_terminal_obeys_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_colours_can_be_kept_or_left_out() -> None:
    text = "\x1b[1;31mred\x1b[0m \x1b[2K"
    assert printable_but_colours(text) == "\x1b[1;31mred\x1b[0m \\x1b[2K"
    assert without_colours(text) == "red \\x1b[2K"


def test_what_an_encoding_lacks_has_a_likeness_or_a_number() -> None:
    assert encodable("a · b ✓ … 数 ü", "ascii") == r"a - b + ~ \u6570 \xfc"
    assert encodable("a · b ü", "latin-1") == "a · b ü"


@pytest.mark.properties
@given(st.text())
def test_any_text_comes_out_harmless_and_once(text: str) -> None:
    shown = printable(text)
    assert printable(shown) == shown
    shown.encode()
    assert all(char in "\n\t" or ord(char) > 0x9F or 0x20 <= ord(char) < 0x7F for char in shown)
    assert shown.encode("ascii", FALLBACK).isascii()
    assert "\x1b" not in without_colours(text)
