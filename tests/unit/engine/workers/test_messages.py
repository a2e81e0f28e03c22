"""Messages survive the pipe, and what is none is refused."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from pipeline.engine.workers.messages import (
    MAX_TEXT,
    AttemptStopped,
    FailureKind,
    GpuLoad,
    Heartbeat,
    JobFinished,
    JobProgress,
    JobRaised,
    JobStarted,
    Report,
    RunJob,
    Shutdown,
    WorkerReady,
    decode_order,
    decode_report,
    encode,
)
from pipeline.errors import WorkerError

ORDERS = [
    RunJob(
        job_id="a/b", attempt=2, key="k", entry="m:f", payload={"eta": math.inf, "text": "ä\n\u2028\udcff"},
        inputs={"x": ["k1"]}, store="/s\udcff", scratch="/t", verified="/v", log_path="/l", gang=["GPU-1", ""],
        keep_models=False, slots=3, shared=True,
    ),
    Shutdown(),
]  # fmt: skip
REPORTS: list[Report] = [
    WorkerReady(pid=1, device="cpu slot 0, 1 thread"),
    JobStarted(job_id="a", attempt=1),
    JobProgress(job_id="a", attempt=1, done=1, total=2, tokens=3),
    JobProgress(job_id="a", attempt=1, done=1, total=2, tokens=3, numbers={"loss": 0.5, "rewards/kl@2": None}),
    Heartbeat(rss_bytes=5),
    Heartbeat(rss_bytes=5, gpu=GpuLoad(label="GPU 0", used_bytes=1, total_bytes=2, utilization=None)),
    JobFinished(job_id="a", attempt=1, load_s=0.5, run_s=1.5, samples=2, tokens=3),
    JobFinished(
        job_id="a", attempt=1, load_s=0.5, run_s=1.5, samples=2, tokens=3, peak_mb=7, held_mb=2, left_changed="x",
    ),
    JobRaised(
        job_id="a", attempt=1, error_type="E", message="ä\n\tm", traceback="t", run_s=0.5, rank=1,
        kind=FailureKind.lost,
    ),
    AttemptStopped(job_id="a", attempt=1),
]  # fmt: skip


def name_of(message: object) -> str:
    return type(message).__name__


@pytest.mark.parametrize("message", ORDERS, ids=name_of)
def test_an_order_survives_the_pipe(message: RunJob | Shutdown) -> None:
    data = encode(message)
    assert b"\n" not in data  # or it could not be sent as a line
    assert decode_order(data) == message
    with pytest.raises(WorkerError, match="no message"):
        decode_report(data)


@pytest.mark.parametrize("message", REPORTS, ids=name_of)
def test_a_report_survives_the_pipe(message: Report) -> None:
    data = encode(message)
    assert b"\n" not in data
    assert decode_report(data) == message
    with pytest.raises(WorkerError, match="no message"):
        decode_order(data)


def altered(message: Report, field: str, value: object) -> bytes:
    name, content = json.loads(encode(message))
    return json.dumps([name, {**content, field: value}]).encode()


WRONG: list[tuple[str, str, list[Any]]] = [
    ("WorkerReady", "pid", [0, "1", True, 2**60]),
    ("WorkerReady", "device", [None, "\x1b[2J", "a\nb", "\udcff", "x" * 5000]),
    ("JobProgress", "tokens", [-1, math.nan]),
    ("JobProgress", "numbers", [{"a b": 1.0}, {"a" * 41: 1.0}, {"a": 1e101}, {f"x{at}": 1.0 for at in range(9)}]),
    ("Heartbeat", "gpu", [{}, {"label": "\x1b[31m", "used_bytes": 1, "total_bytes": 2}]),
    ("JobFinished", "run_s", [-1.0, 10**400]),
    ("JobFinished", "more", [1]),
    ("JobRaised", "kind", ["nothing"]),
    ("JobRaised", "message", ["\x1b[31m", "m" * (MAX_TEXT + 1)]),
]


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [(name, field, value) for name, field, values in WRONG for value in values],
    ids=lambda value: str(value)[:20].encode("ascii", "backslashreplace").decode(),
)
def test_a_field_that_cannot_be_is_refused(message: str, field: str, value: object) -> None:
    sent = next(one for one in reversed(REPORTS) if name_of(one) == message)
    with pytest.raises(WorkerError, match="no message"):
        decode_report(altered(sent, field, value))


# -- generated -------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=()))  # half characters too
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(0, 5) | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
one_field_wrong = st.sampled_from(REPORTS).flatmap(
    lambda message: st.builds(
        lambda field, value: altered(message, field, value),
        st.sampled_from([field.name for field in fields(message)]),
        values,
    )
)


@pytest.mark.properties
@given(st.binary() | values.map(lambda value: json.dumps(value).encode()) | one_field_wrong)
def test_whatever_is_sent_is_a_message_or_refused(data: bytes) -> None:
    for decode in (decode_report, decode_order):
        try:
            message = decode(data)
        except WorkerError:
            continue
        assert decode(encode(message)) == message


@pytest.mark.properties
@given(texts, texts, texts, texts)
def test_what_a_worker_can_say_an_engine_can_read(device: str, kind: str, said: str, trace: str) -> None:
    ready = WorkerReady(pid=1, device=device, visible=kind, node=trace, unfit=said)
    failed = JobRaised(
        job_id="a", attempt=1, error_type=kind, message=said, traceback=trace, run_s=0, kind=FailureKind.bug,
    )  # fmt: skip
    assert decode_report(encode(ready)) == ready
    assert decode_report(encode(failed)) == failed
