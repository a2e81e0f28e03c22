"""A worker process ends when it is told to, wherever a job has moved it."""

import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from pipeline.engine.devices.inventory import cpu_slots
from pipeline.engine.workers.messages import FromWorker, WorkerExited
from pipeline.engine.workers.process import LocalWorker, ProcessSettings

MOVES = """
import os, signal
os.setpgid(0, os.getpgid(os.getppid()))
print("moved", flush=True)
signal.pause()
"""


@pytest.mark.parametrize(
    ("tell", "number"),
    [(LocalWorker.kill, signal.SIGKILL), (LocalWorker.terminate, signal.SIGTERM)],
    ids=["kill", "terminate"],
)
def test_a_worker_that_has_left_its_process_group_is_ended(
    tell: Callable[[LocalWorker], None], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", MOVES], stdout=subprocess.PIPE, process_group=0
    ) as process:
        monkeypatch.setattr(LocalWorker, "_spawn", lambda _self, _fd: process)
        worker = LocalWorker(0, cpu_slots(1)[0], ProcessSettings(threads=1, heartbeat_s=1.0, log_dir=tmp_path))
        worker.start()
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"moved\n"
            tell(worker)
            said: list[FromWorker] = []
            while not said and wait(worker.sources()[-1:], 5):
                worker.receive(said.append)
            assert said == [WorkerExited(exit_code=-number)]
        finally:
            process.kill()
