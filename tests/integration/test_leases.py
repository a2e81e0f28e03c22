"""Runs on one machine do not take each other's GPUs: real processes, a described machine."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.devices.inventory import find_gpus
from pipeline.engine.devices.select import holders
from tests.doubles import fake_nvml

ROOT = Path(__file__).parents[2]


class Program:
    """A process that leases GPUs when it is told to."""

    def __init__(self, experiment: str, count: int, wait: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.doubles.lease_holder", experiment, str(count), wait],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout
        message: dict[str, Any] = json.loads(self.process.stdout.readline())
        return message

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            with suppress(BrokenPipeError):
                pipe.close()
        self.process.wait()


Start = Callable[..., Program]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Start]:
    """Start programs on a machine of eight GPUs; all are over afterwards and hold nothing."""
    fake_nvml.use(monkeypatch, tmp_path, "eight")
    monkeypatch.setenv("PIPELINE_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    programs: list[Program] = []

    def start(experiment: str, count: int, wait: str = "refuse") -> Program:
        programs.append(Program(experiment, count, wait))
        return programs[-1]

    yield start
    for program in programs:
        program.end()
    assert holders(find_gpus()) == {}


def test_two_that_start_together_never_overlap_and_a_third_is_refused(start: Start) -> None:
    both = [start("first", 4), start("second", 4)]
    for program in both:
        program.go()
    taken = [set(program.hear()["holds"]) for program in both]
    assert [len(some) for some in taken] == [4, 4]
    assert taken[0] | taken[1] == set(range(8))
    third = start("third", 1)
    third.go()
    refused = third.hear()["refused"]
    assert "8 of these 8 are leased" in refused
    assert "'first' (pid " in refused
    assert f"'second' (pid {both[1].process.pid} since " in refused
    assert "\n" not in refused


def test_who_came_first_goes_first_when_the_holder_is_killed_though_he_wants_more(start: Start) -> None:
    holder = start("holder", 4)
    holder.go()
    holder.hear()
    large = start("large", 8, "wait")
    large.go()
    assert "4 of these 8 are leased: 'holder'" in large.hear()["waits"]
    # Four are free, but whoever takes one of them now would keep the other waiting.
    small = start("small", 1, "wait")
    small.go()
    assert "queued for them first" in small.hear()["waits"]
    pushing = start("pushing", 1)
    pushing.go()
    assert "queued for them first" in pushing.hear()["refused"]
    holder.kill()
    assert large.hear()["holds"] == list(range(8))
    large.kill()
    assert len(small.hear()["holds"]) == 1


def test_a_worker_that_outlives_its_engine_keeps_no_lease(start: Start, tmp_path: Path) -> None:
    """The child is started as workers are, and forked as libraries do, and both live on."""
    code = (
        "import os, subprocess, sys, time\n"
        "from pipeline.config.schema import DeviceChoice\n"
        "from pipeline.engine.devices.select import devices_of\n"
        "lease = devices_of(DeviceChoice.cuda, None).lease()\n"
        "read, write = os.pipe()\n"
        "ready, tell = os.pipe()\n"
        "live = 'import os; os.write(%d, b\\'.\\'); os.read(%d, 1)' % (tell, read)\n"
        "worker = subprocess.Popen([sys.executable, '-c', live], pass_fds=[read, tell])\n"
        "os.read(ready, 1)\n"  # the new program runs, so what it does not inherit is closed
        "forked = os.fork() or (os.write(tell, b'.'), os.read(read, 1), os._exit(0))\n"
        "os.read(ready, 1)\n"  # the child has run what is run after a fork
        "print(len(lease.devices), worker.pid, forked, flush=True)\n"
        "os.close(read)\n"
        "os.dup2(write, 1)\n"
        "time.sleep(60)\n"
    )
    engine = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert engine.stdout
    count, *children = (int(word) for word in engine.stdout.readline().split())
    assert count == len(holders(find_gpus())) == 8
    engine.kill()
    engine.wait()
    try:
        assert holders(find_gpus()) == {}
        for child in children:
            os.kill(child, 0)  # still there
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        engine.stdout.close()
