"""What the process of a trial says of a program that the system cannot start."""

import errno
import subprocess
from collections.abc import Callable

import msgspec
import pytest

from pipeline.foreign import read_json
from pipeline.machine.channel import Channel
from pipeline.sweeps.agents import trial_process
from pipeline.sweeps.agents.trial_process import Order, Said


def said_by(monkeypatch: pytest.MonkeyPatch, order: Order, carry_out: Callable[[Order], object]) -> Said:
    said: list[Said] = []

    class Ear:
        def send(self, line: bytes) -> None:
            said.append(read_json(line, Said))

    monkeypatch.setattr(trial_process, "begin", lambda _death: {"fd": 0, "order": msgspec.to_builtins(order)})
    monkeypatch.setattr(Channel, "inherited", lambda _fd: Ear())
    monkeypatch.setattr(trial_process, "_carry_out", carry_out)
    trial_process.main()
    return said[0]


def test_a_command_line_that_is_too_long_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(words=["true", "a" * 200_000], log="log", start="start")
    said = said_by(monkeypatch, order, lambda order: subprocess.Popen(order.words))
    assert said.refused.startswith(
        "its command line is longer than the system takes: 200,004 bytes, of which 200,000 in one word."
    )


def test_a_program_for_which_there_is_no_room_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(_: Order) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    said = said_by(monkeypatch, Order(words=["true"], log="log", start="start"), no_room)
    assert (said.refused, said.short[:33]) == ("", "there are as many processes as th")
