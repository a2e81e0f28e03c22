"""The pipe between a process and one that it has started."""

import socket
import threading
from collections.abc import Iterator

import pytest

from pipeline.errors import WorkerError
from pipeline.machine import children
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


def test_a_large_line_passes_while_the_other_side_reads(ends: Ends) -> None:
    ours, theirs, _ = ends
    sender = threading.Thread(target=theirs.send, args=[LARGE])
    sender.start()
    assert next(ours.lines()) == LARGE
    sender.join()


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


def test_one_who_never_stops_sending_leaves_a_turn_for_others(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _, raw = ends
    receive = ours._socket.recv

    class Endless:
        def recv(self, size: int) -> bytes:
            raw.send(b"1\n")
            return receive(size)

    raw.send(b"1\n")
    monkeypatch.setattr(ours, "_socket", Endless())
    monkeypatch.setattr(children, "_CHUNK", 2)
    assert len(list(ours.receive())) > 10
    monkeypatch.undo()
    assert list(ours.receive()) == [b"1"]
