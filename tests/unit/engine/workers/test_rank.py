"""One process of a job that needs several devices, as the worker that leads it sees it."""

import os
import signal
from pathlib import Path

import pytest

from pipeline.engine.workers.entrypoint import _Main
from pipeline.engine.workers.messages import (
    AttemptStopped,
    JobProgress,
    JobStarted,
    RunJob,
    Shutdown,
    decode_report,
    encode,
)
from pipeline.machine import children
from pipeline.machine.children import Child
from pipeline.machine.descendants import NOTICES, held_back


def test_a_notice_that_comes_behind_the_request_of_its_leader_lets_it_save() -> None:
    """Slurm tells every process of a job, and the engine's own request may be there before."""
    process = _Main()
    process.runner.stop_requested = process.runner._in_body = True
    for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
        process.on_signal(number, None)
    with pytest.raises(KeyboardInterrupt):
        process.on_signal(signal.SIGTERM, None)


@pytest.mark.parametrize("asks", [*NOTICES, Shutdown()], ids=str)
def test_a_request_to_stop_that_comes_while_a_rank_starts_is_heard_once_it_can_be(
    tmp_path: Path, asks: signal.Signals | Shutdown
) -> None:
    order = RunJob(
        job_id="a", attempt=1, key="", entry="tests.doubles.bodies:ranks_stop_when_asked",
        payload={"flag": str(tmp_path)}, inputs={}, store=str(tmp_path), scratch="", verified="", log_path="",
        gang=["", ""],
    )  # fmt: skip
    with held_back(NOTICES):
        rank = Child(
            "pipeline.engine.workers.entrypoint", os.environ, {"rank": 1, "device": "cpu", "out": str(tmp_path)},
            max_bytes=1 << 20, send_timeout_s=60.0,
        )  # fmt: skip
    try:
        if isinstance(asks, signal.Signals):
            rank.process.send_signal(asks)
        rank.channel.send(encode(order))
        if isinstance(asks, Shutdown):  # right behind the job
            rank.channel.send(encode(asks))
        said = (decode_report(line) for line in rank.channel.lines())
        last = next(message for message in said if not isinstance(message, JobProgress | JobStarted))
        assert last == AttemptStopped(job_id="a", attempt=1)
        assert rank.process.wait() == 0
    finally:
        children.end([rank])
        rank.wait()
