"""A worker process ends when it is told to, wherever a job has moved it."""

import json
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from unittest.mock import Mock

import pytest

from pipeline.engine.devices.inventory import cpu_slots
from pipeline.engine.workers.messages import FromWorker, WorkerExited
from pipeline.engine.workers.pool import LocalWorker, ProcessSettings
from pipeline.machine import children
from pipeline.machine.children import Child
from pipeline.machine.descendants import Reaper
from tests.doubles import child as double


@pytest.mark.parametrize(
    ("tell", "number"),
    [(LocalWorker.kill, signal.SIGKILL), (LocalWorker.terminate, signal.SIGTERM)],
    ids=["kill", "terminate"],
)
def test_a_worker_that_has_left_its_process_group_is_ended(
    tell: Callable[[LocalWorker], None], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Child(
        double.__name__, os.environ, {"moves": True}, max_bytes=1 << 20, send_timeout_s=5.0, own_group=True
    )
    monkeypatch.setattr(LocalWorker, "_spawn", lambda _self: process)
    settings = ProcessSettings(threads=1, heartbeat_s=1.0, log_dir=str(tmp_path))
    worker = LocalWorker(0, cpu_slots(1)[0], settings, Mock(Reaper))
    worker.start()
    try:
        assert json.loads(next(process.channel.lines()))["group"] == os.getpgrp()
        tell(worker)
        said: list[FromWorker] = []
        while WorkerExited(exit_code=-number) not in said and wait(worker.sources()[-1:], 5):
            worker.receive(said.append)  # the double may have echoed what it was told
        assert said[-1] == WorkerExited(exit_code=-number)
    finally:
        children.end([process])
        process.wait()
