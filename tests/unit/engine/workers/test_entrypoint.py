"""What a worker process tells, from whichever of its threads."""

from __future__ import annotations

import socket
import threading

import pytest

from pipeline.engine.devices.inventory import cpu_slots
from pipeline.engine.workers import entrypoint
from pipeline.engine.workers.messages import FromWorker, Heartbeat, JobFinished, decode_report, encode
from pipeline.machine.channel import Channel

DONE = JobFinished(job_id="a", attempt=1, load_s=0, run_s=0, samples=0, tokens=0)


def test_an_answer_that_is_held_back_while_another_thread_speaks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    settings = entrypoint.Settings(device=cpu_slots(1)[0], heartbeat_s=1.0, level_bytes=None, free_timeout_s=1.0)
    worker, engine = entrypoint._Main(Channel(theirs), settings), Channel(ours)
    holder = threading.Thread(target=lambda: worker._hold(DONE))

    def slowly(message: FromWorker) -> bytes:
        if isinstance(message, Heartbeat):
            holder.start()
            holder.join(0.2)
        return encode(message)

    monkeypatch.setattr(entrypoint, "encode", slowly)
    worker.send(Heartbeat(rss_bytes=1))
    holder.join()
    worker.send()
    assert [decode_report(line) for line in engine.receive()] == [Heartbeat(rss_bytes=1), DONE]
    for channel in (worker.channel, engine):
        channel.close()
