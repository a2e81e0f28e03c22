"""The pipe between engine and worker."""

import socket
import threading
from collections.abc import Iterator

import pytest

from pipeline.engine.workers import channel
from pipeline.engine.workers.channel import Channel
from pipeline.engine.workers.messages import Heartbeat, RunJob, decode_order, decode_report, encode
from pipeline.errors import WorkerError


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel, socket.socket]]:
    """Both ends as channels, and the socket under the second."""
    left, right = socket.socketpair()
    ours, theirs = Channel(left, send_timeout_s=0.2), Channel(right)
    yield ours, theirs, right
    ours.close()
    theirs.close()


Ends = tuple[Channel, Channel, socket.socket]


def beats(channel: Channel) -> list[int]:
    heard = [decode_report(line) for line in channel.receive()]
    return [message.rss_bytes for message in heard if isinstance(message, Heartbeat)]


def large_message() -> RunJob:
    payload = {"text": "m" * 3_000_000}
    return RunJob(
        job_id="a", attempt=1, key="", entry="", payload=payload, inputs={}, store="", scratch="", verified="",
        log_path="",
    )  # fmt: skip


def test_messages_arrive_in_order(ends: Ends) -> None:
    ours, theirs, _ = ends
    for number in range(3):
        theirs.send(Heartbeat(rss_bytes=number))
    assert beats(ours) == [0, 1, 2]
    assert beats(ours) == []
    assert not ours.closed


def test_half_a_message_waits_for_its_rest(ends: Ends) -> None:
    ours, _, raw = ends
    data = encode(Heartbeat(rss_bytes=7)) + b"\n"
    raw.send(data[:10])
    assert beats(ours) == []
    raw.send(data[10:] + data[:5])
    assert beats(ours) == [7]
    raw.send(data[5:])
    assert beats(ours) == [7]


def test_a_hang_up_is_noticed_after_the_last_message(ends: Ends) -> None:
    ours, theirs, raw = ends
    theirs.send(Heartbeat(rss_bytes=1))
    raw.send(b"half")
    theirs.close()
    assert beats(ours) == [1]
    assert ours.closed


def test_a_large_message_passes_while_the_other_side_reads(ends: Ends) -> None:
    ours, theirs, _ = ends
    message = large_message()
    sender = threading.Thread(target=theirs.send, args=[message])
    sender.start()
    lines: list[bytes] = []
    while not lines:
        ours.wait()
        lines += ours.receive()
    sender.join()
    assert decode_order(lines[0]) == message


def test_sending_to_one_who_takes_nothing_ends_in_time(ends: Ends) -> None:
    ours, _, _ = ends
    message = large_message()
    with pytest.raises(TimeoutError):
        ours.send(message)


def test_sending_to_one_who_hung_up_is_an_error(ends: Ends) -> None:
    ours, theirs, _ = ends
    theirs.close()
    with pytest.raises(OSError, match="Broken pipe"):
        ours.send(Heartbeat(rss_bytes=1))


def test_a_line_without_end_is_refused(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MAX_MESSAGE_BYTES", 100)
    ours, _, raw = ends
    raw.send(b"x" * 200)
    with pytest.raises(WorkerError, match="more than 100 bytes"):
        list(ours.receive())


def test_one_who_never_stops_sending_leaves_a_turn_for_others(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _, raw = ends
    line = encode(Heartbeat(rss_bytes=1)) + b"\n"
    receive = ours._socket.recv

    class Endless:
        def recv(self, size: int) -> bytes:
            raw.send(line)
            return receive(size)

    raw.send(line)
    monkeypatch.setattr(ours, "_socket", Endless())
    assert len(beats(ours)) > 10
    monkeypatch.undo()
    raw.send(line)
    assert beats(ours) == [1]


def test_threads_do_not_mix_their_messages(ends: Ends) -> None:
    ours, theirs, _ = ends
    senders = [
        threading.Thread(target=lambda: [theirs.send(Heartbeat(rss_bytes=1)) for _ in range(500)])
        for _ in range(4)
    ]
    for sender in senders:
        sender.start()
    received: list[int] = []
    while len(received) < 2_000:
        ours.wait()
        received += beats(ours)
    for sender in senders:
        sender.join()
