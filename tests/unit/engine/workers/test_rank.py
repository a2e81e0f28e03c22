"""One process of a job that needs several devices, as the worker that leads it sees it."""

import os
import signal
from pathlib import Path

import pytest

from pipeline.engine.workers.messages import AttemptStopped, JobProgress, RunJob, Shutdown, decode_report, encode
from pipeline.engine.workers.rank import _Rank
from pipeline.machine import children
from pipeline.machine.children import Child
from pipeline.machine.descendants import NOTICES, held_back


def test_a_request_to_stop_that_comes_right_behind_the_job_is_heard(tmp_path: Path) -> None:
    order = RunJob(
        job_id="a", attempt=1, key="", entry="tests.doubles.bodies:ranks_stop_when_asked",
        payload={"flag": str(tmp_path)}, inputs={}, store=str(tmp_path), scratch="", verified="", log_path="",
        gang=["", ""],
    )  # fmt: skip
    rank = Child(
        "pipeline.engine.workers.rank", os.environ, {"rank": 1, "device": "cpu", "out": str(tmp_path)},
        max_bytes=1 << 20, send_timeout_s=60.0,
    )  # fmt: skip
    try:
        for message in (order, Shutdown()):  # long before the process reads
            rank.channel.send(encode(message))
        said = (decode_report(line) for line in rank.channel.lines())
        last = next(message for message in said if not isinstance(message, JobProgress))
        assert last == AttemptStopped(job_id="a", attempt=1)
        assert rank.process.wait() == 0
    finally:
        children.end([rank])
        rank.wait()


def test_a_notice_that_comes_behind_the_request_of_its_leader_lets_it_save() -> None:
    """Slurm tells every process of a job, and the engine's own request may be there before."""
    rank = _Rank()
    rank.stop_requested = True
    for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
        rank.on_signal(number, None)
    with pytest.raises(KeyboardInterrupt):
        rank.on_signal(signal.SIGTERM, None)


@pytest.mark.parametrize("number", NOTICES, ids=lambda one: one.name)
def test_a_notice_that_comes_while_a_rank_starts_is_taken_once_it_can_be(
    tmp_path: Path, number: signal.Signals
) -> None:
    order = RunJob(
        job_id="a", attempt=1, key="", entry="tests.doubles.bodies:ranks_stop_when_asked",
        payload={"flag": str(tmp_path)}, inputs={}, store=str(tmp_path), scratch="", verified="", log_path="",
        gang=["", ""],
    )  # fmt: skip
    with held_back(NOTICES):
        rank = Child(
            "pipeline.engine.workers.rank", os.environ, {"rank": 1, "device": "cpu", "out": str(tmp_path)},
            max_bytes=1 << 20, send_timeout_s=60.0,
        )  # fmt: skip
    try:
        rank.process.send_signal(number)
        rank.channel.send(encode(order))
        said = (decode_report(line) for line in rank.channel.lines())
        last = next(message for message in said if not isinstance(message, JobProgress))
        assert last == AttemptStopped(job_id="a", attempt=1)
    finally:
        children.end([rank])
        rank.wait()
