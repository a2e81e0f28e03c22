"""Logs on a terminal and elsewhere."""

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.terminal.streams import LastingFile, LastingStream, LogOutput

COLOURED = "\x1b[32mok\x1b[0m\n"


def shown(*pieces: str, raw: bool = False, colours: bool = True) -> str:
    reading, writing = os.pipe()
    before, sys.stdout = sys.stdout, LastingStream(LastingFile(writing), "utf-8")
    try:
        out = LogOutput(raw=raw, colours=colours)
        for piece in pieces:
            out.write(piece)
        out.close()
    finally:
        sys.stdout = before
        os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        return pipe.read().decode()


def test_on_a_terminal_colours_stay_and_commands_do_not() -> None:
    assert shown(COLOURED, "\x1b[2J\x1b]52;c;x\x07\n") == COLOURED + "\\x1b[2J\\x1b]52;c;x\\x07\n\x1b[0m"
    assert shown(COLOURED, colours=False) == "ok\n"


def test_a_progress_bar_is_a_line_for_each_of_its_states() -> None:
    assert shown("\r10 %\r20 %\r", "\ndone\r\n", colours=False) == "\n10 %\n20 %\ndone\n"


def test_elsewhere_a_log_goes_out_as_it_is() -> None:
    assert shown("\r10 %\x1b[2J\x1b", raw=True) == "\r10 %\x1b[2J\x1b"


@pytest.mark.properties
@given(st.text(alphabet="\x1b[0;1mK\r\nx", max_size=40), st.integers(0, 40), st.booleans())
def test_where_a_log_is_cut_into_pieces_changes_nothing(text: str, cut: int, colours: bool) -> None:
    assert shown(text[:cut], text[cut:], colours=colours) == shown(text, colours=colours)
