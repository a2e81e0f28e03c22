"""Ranks on another machine, as the worker that leads a job hears of them. The other machine is a socket here."""

from __future__ import annotations

import json
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.workers import gang, gang_part
from pipeline.engine.workers.gang import FarRanks, far_ranks
from pipeline.engine.workers.gang_part import meeting_path, start_part
from pipeline.engine.workers.messages import JobFinished, RunJob, encode

PATIENCE_S = 30.0


@pytest.fixture
def order(tmp_path: Path) -> RunJob:
    return RunJob(
        job_id="a/b", attempt=1, key="", entry="m:f", payload={}, inputs={}, store="", scratch=str(tmp_path),
        verified="", log_path=str(tmp_path / "log.txt"), gang=["", "", ""], spans=[1, 2], part=1,
    )  # fmt: skip


@pytest.fixture
def far(order: RunJob) -> Iterator[FarRanks]:
    with far_ranks(order, "127.0.0.1", 4321) as found:
        yield found


class Guest:
    """Somebody who connects."""

    def __init__(self, far: FarRanks, **hello: Any) -> None:
        self.far = far
        self.socket = socket.create_connection(far.listener.getsockname(), PATIENCE_S)
        self.say(**{"part": 1, "secret": far.meeting.secret, **hello})

    def say(self, **message: Any) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def hears(self, count: int) -> list[dict[str, Any]]:
        """What it is told; whoever leads is given its turns until then."""
        self.socket.settimeout(0.01)
        data = b""
        for _ in range(int(PATIENCE_S / 0.01)):
            self.far.hear()
            try:
                chunk = self.socket.recv(1 << 16)
            except TimeoutError:
                continue
            data += chunk
            if not chunk or data.count(b"\n") >= count:
                break
        return [json.loads(line) for line in data.splitlines()]


@pytest.fixture
def come() -> Iterator[Callable[..., Guest]]:
    """Have somebody connect."""
    with ExitStack() as sockets:

        def come(far: FarRanks, **hello: Any) -> Guest:
            guest = Guest(far, **hello)
            sockets.enter_context(guest.socket)
            return guest

        yield come


def hear(far: FarRanks, until: Any) -> None:
    for _ in range(int(PATIENCE_S / 0.01)):
        far.hear()
        if until():
            return
        gang.wait(far.sources(), 0.01)
    pytest.fail("nothing is heard")


def test_who_reads_the_folder_of_the_run_is_told_to_start_and_what_was_said_before(
    far: FarRanks, come: Callable[..., Guest]
) -> None:
    far.tell("stop")
    guest = come(far)
    assert guest.hears(2) == [{"what": "start", "port": 4321}, {"what": "stop", "port": 0}]
    done = JobFinished(job_id="a/b", attempt=1, load_s=0, run_s=0, samples=1, tokens=2)
    guest.say(rank=1, said=encode(done).decode())
    guest.say(rank=1, over=True, exit_code=0)
    guest.say(rank=2, over=True, exit_code=-9, how="signal 9 (SIGKILL)")
    hear(far, lambda: all(rank.is_over for rank in far.ranks))
    assert [(rank.number, rank.said, rank.lost) for rank in far.ranks] == [
        (1, done, ""),
        (2, None, "signal 9 (SIGKILL)"),
    ]
    assert far.ranks[1].log.name == "log.rank2.txt"
    assert far.problem == ""


@pytest.mark.parametrize("hello", [{"secret": "0" * 64}, {"part": 0}, {"part": 2}, {"part": "x"}])
def test_who_does_not_is_told_nothing(far: FarRanks, hello: dict[str, Any], come: Callable[..., Guest]) -> None:
    assert come(far, **hello).hears(1) == []
    assert come(far).hears(1) != []  # and keeps nobody out
    assert come(far).hears(1) == []  # whose place is taken then


def test_a_machine_that_is_asked_to_end_says_so_to_the_one_that_leads(order: RunJob, far: FarRanks) -> None:
    """Else its ranks would go on until it is gone, and with it all that was not saved."""
    over = threading.Event()
    part = threading.Thread(target=start_part, args=[order, "cpu", over.is_set, lambda: True])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gang_part._Part, "_do", lambda *_: None)
        part.start()
        try:
            hear(far, lambda: far.stops)
        finally:
            over.set()
            part.join()
    assert far.problem == ""


def test_where_it_listens_is_for_the_user_alone_to_read_and_only_while_the_job_runs(order: RunJob) -> None:
    path = meeting_path(order)
    with far_ranks(order, "127.0.0.1", 1):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


def test_a_machine_that_is_gone_silent_or_never_came_is_told(
    far: FarRanks, order: RunJob, monkeypatch: pytest.MonkeyPatch, come: Callable[..., Guest]
) -> None:
    guest = come(far)
    guest.hears(1)
    guest.socket.close()
    hear(far, lambda: far.problem)
    assert (far.problem, far.missing) == ("the machine of ranks 1 to 2 of 3 has hung up", 1)
    for name, words in (("MEET_S", "did not come within 0 s"), ("_SILENT_S", "has not been heard of for 0 s")):
        monkeypatch.setattr(gang, name, 0.0)
        with far_ranks(order, "127.0.0.1", 1) as other:
            late = come(other) if name == "_SILENT_S" else None
            hear(other, lambda: other.problem)
            assert other.problem == f"the machine of ranks 1 to 2 of 3 {words}"
            assert late is None or late.socket.fileno() >= 0
        monkeypatch.undo()
