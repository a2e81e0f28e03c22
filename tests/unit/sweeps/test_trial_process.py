"""What the process of a trial says of its program: that it could not be started, or how it has ended."""

import errno
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.foreign import read_json
from pipeline.machine import descendants
from pipeline.machine.children import Channel
from pipeline.sweeps import trial_process
from pipeline.sweeps.trial_process import Order, Said


@pytest.mark.parametrize(
    ("words", "error", "kind", "said"),
    [
        (["true", "a" * 200_000], None, "refused", "200,004 bytes"),
        (["true", "\ud800"], None, "refused", "can't encode"),
        (["acelerate", "launch"], None, "refused", "there is no program acelerate"),
        (["true"], BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "busy", "unavailable"),
    ],
    ids=["too long", "no text", "not there", "no room"],
)
def test_a_program_that_cannot_be_started_is_one_message_and_waits_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch, words: list[str], error: OSError | None, kind: str, said: str
) -> None:
    order, told = Order(words=words, log="log", start="start"), list[Said]()

    def carry_out(order: Order) -> None:
        if error:
            raise error
        subprocess.Popen(order.words)

    class Ear:
        def send(self, line: bytes) -> None:
            told.append(read_json(line, Said))

    monkeypatch.setattr(trial_process, "begin", lambda _death: {"fd": 0, "order": msgspec.to_builtins(order)})
    monkeypatch.setattr(Channel, "inherited", lambda _fd: Ear())
    monkeypatch.setattr(trial_process, "_carry_out", carry_out)
    trial_process.main()
    assert said in getattr(told[0], kind)


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
