"""What the process of a trial says of its program: that it could not be started, or how it has ended."""

import errno
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.foreign import read_json
from pipeline.machine import descendants
from pipeline.machine.children import Channel
from pipeline.sweeps import trial_process
from pipeline.sweeps.trial_process import Order, Said


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


@pytest.mark.parametrize(("word", "refused"), [("a" * 200_000, "200,004 bytes"), ("\ud800", "can't encode")])
def test_a_command_line_that_the_system_does_not_take_is_one_message(
    monkeypatch: pytest.MonkeyPatch, word: str, refused: str
) -> None:
    order = Order(words=["true", word], log="log", start="start")
    said = said_by(monkeypatch, order, lambda order: subprocess.Popen(order.words))
    assert refused in said.refused


def test_a_program_for_which_there_is_no_room_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(_: Order) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    said = said_by(monkeypatch, Order(words=["true"], log="log", start="start"), no_room)
    assert (said.refused, bool(said.busy)) == ("", True)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(descendants, "end_own"), (trial_process, "wait_until_free")],
    ids=["ending", "freeing"],
)
def test_a_program_that_has_ended_well_counts_though_a_request_to_stop_comes_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """While what it has left is ended, or its devices get free: it is not to be run again."""

    def told(*_: object) -> list[str]:
        os.kill(os.getpid(), signal.SIGTERM)
        return []

    monkeypatch.setattr(owner, name, told)
    monkeypatch.setenv("PIPELINE_LEASE_DIR", str(tmp_path / "leases"))
    order = Order(words=["true"], log=str(tmp_path / "log"), start=str(tmp_path / "start"))
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert trial_process._carry_out(order).exit_code == 0
    finally:
        signal.signal(signal.SIGTERM, before)
