"""The pipe between a process and one that it has started."""

import socket
from collections.abc import Iterator

import pytest

from pipeline.errors import WorkerError
from pipeline.machine.children import Channel


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel, socket.socket]]:
    """Both ends as channels, and the socket under the second."""
    left, right = socket.socketpair()
    ours, theirs = Channel(left, send_timeout_s=0.2), Channel(right)
    yield ours, theirs, right
    ours.close()
    theirs.close()


Ends = tuple[Channel, Channel, socket.socket]
LARGE = b"m" * 3_000_000


def test_lines_are_waited_for_one_by_one_until_the_other_side_hangs_up(ends: Ends) -> None:
    ours, theirs, _ = ends
    theirs.send(b"1")
    theirs.send(b"2")
    lines = ours.lines()
    assert next(lines) == b"1"
    theirs.send(b"3")
    theirs.close()
    assert list(lines) == [b"2", b"3"]


def test_sending_to_one_who_takes_nothing_ends_in_time(ends: Ends) -> None:
    ours, _, _ = ends
    with pytest.raises(TimeoutError):
        ours.send(LARGE)


def test_a_line_without_end_is_refused() -> None:
    left, right = socket.socketpair()
    with left, right:
        right.send(b"x" * 200)
        with pytest.raises(WorkerError, match="more than 100 bytes"):
            list(Channel(left, max_bytes=100).receive())
