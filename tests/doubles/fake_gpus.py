"""`run_parallel.py` on GPUs that only the driver of `fake_nvml` tells of: its jobs compute on the CPU.

    python tests/doubles/fake_gpus.py GATE experiment.name=NAME ...

Everything else is as it is: leases, one worker on each GPU with its environment, the journal. Workers start only
once the file GATE exists, so that a test decides how long a run holds its devices.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

GATE = "PIPELINE_TEST_GATE"
ENTRYPOINT = "pipeline.engine.workers.entrypoint"
OURS = "tests.doubles.fake_gpus"


def engine(gate: str, arguments: list[str]) -> int:
    """What run_parallel.py does, with workers that run this file."""
    from pipeline.cli import main

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, command: list[str], **options: Any) -> None:
            super().__init__([OURS if word == ENTRYPOINT else word for word in command], **options)

    os.environ[GATE] = gate
    subprocess.Popen = Popen  # type: ignore[misc]
    return main(arguments)


def worker() -> None:
    """A worker's own main function, with jobs that are told to compute on the CPU."""
    from pipeline.engine.workers import entrypoint

    class OnCpu(entrypoint.JobRunner):
        device = property(lambda _: "cpu", lambda *_: None)  # type: ignore[assignment]

    gate, parent = Path(os.environ[GATE]), os.getppid()
    while not gate.exists() and os.getppid() == parent:
        time.sleep(0.05)
    entrypoint.JobRunner = OnCpu  # type: ignore[misc]
    entrypoint.main()


if __name__ == "__main__":
    if sys.argv[1].startswith("{"):
        worker()
    else:
        sys.exit(engine(str(Path(sys.argv[1]).resolve()), sys.argv[2:]))
