"""One process of a job that needs several devices, as the worker that leads it sees it."""

import os
from pathlib import Path

from pipeline.engine.workers.messages import AttemptStopped, JobProgress, RunJob, Shutdown, decode_report, encode
from pipeline.machine import children
from pipeline.machine.children import Child


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
