"""What the process of a trial says of a program that the system cannot start."""

import subprocess

import msgspec
import pytest

from pipeline.foreign import read_json
from pipeline.machine.channel import Channel
from pipeline.sweeps.agents import trial_process
from pipeline.sweeps.agents.trial_process import Order, Said


def test_a_command_line_that_is_too_long_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(words=["true", "a" * 200_000], log="log", start="start")
    said: list[Said] = []

    class Ear:
        def send(self, line: bytes) -> None:
            said.append(read_json(line, Said))

    monkeypatch.setattr(trial_process, "begin", lambda _death: {"fd": 0, "order": msgspec.to_builtins(order)})
    monkeypatch.setattr(Channel, "inherited", lambda _fd: Ear())
    monkeypatch.setattr(trial_process, "_carry_out", lambda order: subprocess.Popen(order.words))
    trial_process.main()
    assert said[0].refused.startswith(
        "its command line is longer than the system takes: 200,004 bytes, of which 200,000 in one word."
    )
