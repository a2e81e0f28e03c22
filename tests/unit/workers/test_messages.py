"""Messages survive the pipe, and what is none is refused."""

import math

import pytest

from pipeline.errors import WorkerError
from pipeline.workers.messages import JobFinished, JobProgress, RunJob, Shutdown, WorkerReady, decode, encode

MESSAGES = [
    RunJob(
        job_id="a/b", attempt=2, key="k", entry="m:f", payload={"eta": math.inf, "text": "ä\n\u2028"},
        inputs={"x": ["k1", "k2"]}, store="/s", scratch="/t", verified="/v", log_path="/l", gang=["GPU-1", ""],
        keep_models=False, slots=3, shared=True,
    ),
    Shutdown(),
    WorkerReady(pid=1, device="cpu slot 0, 1 thread"),
    JobProgress(job_id="a", attempt=1, done=1, total=2, tokens=3),
    JobFinished(job_id="a", attempt=1, load_s=0.5, run_s=1.5, samples=2, tokens=3),
    JobFinished(job_id="a", attempt=1, load_s=0.5, run_s=1.5, samples=2, tokens=3, peak_mb=7, held_mb=2),
]  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_pipe(message: object) -> None:
    data = encode(message)  # type: ignore[arg-type]
    assert b"\n" not in data  # or it could not be sent as a line
    assert decode(data) == message


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\x00", b"{}", b"[]", b"null", b'["Nothing",{}]', b'["Shutdown",{"x":1}]', b'["RunJob",{}]',
     b'["Shutdown",[]]', b'[["Shutdown"],{}]', b'["Shutdown"', b'["WorkerExited",{"exit_code":0}]'],
)  # fmt: skip
def test_garbage_is_an_error_of_the_worker(data: bytes) -> None:
    with pytest.raises(WorkerError, match="unreadable message"):
        decode(data)
