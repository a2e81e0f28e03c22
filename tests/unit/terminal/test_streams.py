"""Streams that last, whatever becomes of what they write to."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.terminal import streams


@pytest.fixture
def broken_pipe() -> Iterator[int]:
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.fixture
def full() -> Iterator[int]:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def closed_terminal() -> Iterator[int]:
    master, slave = pty.openpty()
    os.close(master)
    yield slave
    os.close(slave)


@pytest.mark.parametrize("where", ["broken_pipe", "full", "closed_terminal"])
def test_a_stream_that_cannot_be_written_takes_everything(where: str, request: pytest.FixtureRequest) -> None:
    told: list[OSError] = []
    stream = streams.LastingStream(streams.LastingFile(request.getfixturevalue(where), told.append), "utf-8")
    for _ in range(3):
        print("x" * 100_000, file=stream)
        stream.unfiltered.write("more\n")
    stream.close()
    assert len(told) == 1
    assert streams.is_gone(stream) == (where != "full")
    assert (streams.failure(stream) is not None) == (where == "full")


def test_text_is_written_in_order_and_only_colours_get_through(tmp_path: Path) -> None:
    path = tmp_path / "out"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    stream = streams.LastingStream(streams.LastingFile(descriptor), "ascii")
    print("\x1b[31mone\x1b[2J", end=" ", file=stream)
    stream.unfiltered.write("\x1b[2J ·")
    print("two\udcff", file=stream)
    os.close(descriptor)
    assert path.read_text() == "\x1b[31mone\\x1b[2J \x1b[2J \\xb7two\\udcff\n"
    assert streams.failure(stream) is None
    assert not streams.is_gone(stream)


def test_what_a_sleeping_reader_does_not_take_is_kept_for_later(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    stream = streams.LastingStream(streams.LastingFile(writing), "utf-8")
    with streams.never_waiting():
        for number in range(40):
            print(f"{number:02}" * 5_000, file=stream)  # a pipe takes 64 KiB
    assert os.get_blocking(writing)
    with (tmp_path / "out").open("wb") as out:
        child = subprocess.Popen(["cat"], stdin=reading, stdout=out)
    os.close(reading)
    stream.flush()  # a report may wait
    print("the end", file=stream)
    os.close(writing)
    assert child.wait(30) == 0
    lines = (tmp_path / "out").read_bytes().split(b"\n")
    assert lines == [*(b"%02d" % number * 5_000 for number in range(40)), b"the end", b""]


def test_a_reader_who_sleeps_for_long_is_told_that_something_was_left_out(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    stream = streams.LastingStream(streams.LastingFile(writing), "utf-8")
    with streams.never_waiting():
        for _ in range(300):
            print("x" * 9_999, file=stream)
    with (tmp_path / "out").open("wb") as out:
        child = subprocess.Popen(["cat"], stdin=reading, stdout=out)
    os.close(reading)
    print("the end", file=stream)
    os.close(writing)
    assert child.wait(30) == 0
    said = (tmp_path / "out").read_bytes()
    assert 1 << 20 < len(said) < 2 << 20
    assert said.endswith(b"x\n[what came here was left out: nothing was taken for too long]\nthe end\n")


CLOSED = """
import os, sys
for descriptor in (0, 1, 2):
    os.close(descriptor)
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], sys.argv[2]])
"""
FIRST_FILE = """
import sys
from pipeline.terminal import streams
streams.install()
file = open(sys.argv[1], "w")
print("to nobody")
print("to nobody", file=sys.stderr)
file.write(f"{file.fileno()} {sys.stdin.read()!r}")
"""


def test_files_never_get_the_numbers_of_streams_that_were_closed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    subprocess.run([sys.executable, "-c", CLOSED, FIRST_FILE, str(path)], check=True)
    number, read = path.read_text().split()
    assert int(number) > 2
    assert read == "''"


PRINTS = "import sys; from pipeline.terminal import streams; streams.install(); print('ä\\udcff' * 50000)"


@pytest.mark.parametrize("where", ["broken_pipe", "full"])
def test_the_interpreter_has_nothing_to_complain_of_in_the_end(where: str, request: pytest.FixtureRequest) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINTS],
        stdout=request.getfixturevalue(where),
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_DFL) and None,
    )
    assert (done.returncode, done.stderr) == (0, b"")


# -- test text ---------------------------------------------------------------------------------------------------
# Foreign text is shown, not obeyed.


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
    assert streams.printable(text) == shown


def test_colours_can_be_kept_or_left_out() -> None:
    text = "\x1b[1;31mred\x1b[0m \x1b[2K"
    assert streams.printable_but_colours(text) == "\x1b[1;31mred\x1b[0m \\x1b[2K"
    assert streams.without_colours(text) == "red \\x1b[2K"


@pytest.mark.properties
@given(st.text())
def test_any_text_comes_out_harmless_and_once(text: str) -> None:
    shown = streams.printable(text)
    assert streams.printable(shown) == shown
    shown.encode()
    assert all(char in "\n\t" or ord(char) > 0x9F or 0x20 <= ord(char) < 0x7F for char in shown)
    assert "\x1b" not in streams.without_colours(text)


# -- test log ----------------------------------------------------------------------------------------------------
# Logs on a terminal and elsewhere.


COLOURED = "\x1b[32mok\x1b[0m\n"


def shown(*pieces: str, raw: bool = False) -> str:
    reading, writing = os.pipe()
    before, sys.stdout = sys.stdout, streams.LastingStream(streams.LastingFile(writing), "utf-8")
    try:
        out = streams.LogOutput(raw=raw)
        for piece in pieces:
            out.write(piece)
        out.close()
    finally:
        sys.stdout = before
        os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        return pipe.read().decode()


def test_on_a_terminal_commands_are_shown() -> None:
    assert shown(COLOURED, "\x1b[2J\x1b]52;c;x\x07\n") == "ok\n\\x1b[2J\\x1b]52;c;x\\x07\n"


def test_a_progress_bar_is_a_line_for_each_of_its_states() -> None:
    assert shown("\r10 %\r20 %\r", "\ndone\r\n") == "\n10 %\n20 %\ndone\n"


def test_elsewhere_a_log_goes_out_as_it_is() -> None:
    assert shown("\r10 %\x1b[2J\x1b", raw=True) == "\r10 %\x1b[2J\x1b"


@pytest.mark.properties
@given(st.text(alphabet="\x1b[0;1mK\r\nx", max_size=40), st.integers(0, 40))
def test_where_a_log_is_cut_into_pieces_changes_nothing(text: str, cut: int) -> None:
    assert shown(text[:cut], text[cut:]) == shown(text)
