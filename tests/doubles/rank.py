"""A program to launch: says what each rank sees, adds up ranks over gloo, and then does as it is told.

python tests/doubles/rank.py FOLDER [exit CODE RANK | kill RANK | hang | deaf RANK | spawn]

FOLDER/rank-N.json is written once all ranks have met.
"""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

SEEN = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "SLURM_NTASKS",
)


def main() -> None:
    folder, what, *details = Path(sys.argv[1]), *sys.argv[2:], ""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total)
    rank = dist.get_rank()
    left = []
    if what == "deaf" and rank != int(details[0]):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if what == "spawn":
        left = [subprocess.Popen(["sleep", "300"], start_new_session=True).pid]
    seen = {"sum": total.item(), "pid": os.getpid(), "left": left, **{name: os.environ.get(name) for name in SEEN}}
    report = folder / f"rank-{rank}.json"
    report.with_suffix(".new").write_text(json.dumps(seen))
    dist.barrier()
    report.with_suffix(".new").replace(report)
    if what == "exit" and rank == int(details[1]):
        os._exit(int(details[0]))
    if what in ("kill", "deaf") and rank == int(details[0]):
        os.kill(os.getpid(), signal.SIGKILL)
    if what in ("exit", "kill"):
        dist.all_reduce(total)  # never ends, as one is missing
    if what in ("hang", "deaf"):
        time.sleep(300)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
