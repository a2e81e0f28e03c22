"""A program to launch: says what each rank sees once all ranks have met, and then does as it is told.

python tests/doubles/rank.py FOLDER [fail [leave] | kill RANK | hang]

With `kill` ranks meet over gloo and add up their numbers; else by files, which is quicker.
FOLDER/rank-N.json is what rank N saw. With `fail` rank 1 ends with 7, and rank 0 ignores requests to stop.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

from machine import listening  # beside this program

SEEN = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "SLURM_NTASKS",
)
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def main() -> None:
    folder, what, *details = Path(sys.argv[1]), *sys.argv[2:], ""
    if what == "fail" and RANK == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report = {"pid": os.getpid(), "left": [], **{name: os.environ.get(name) for name in SEEN}}
    if what == "hang" or details[0] == "leave":
        report["left"] = [subprocess.Popen(["sleep", "300"], start_new_session=True).pid]
    if what == "kill":
        add(folder, report, dies=int(details[0]))
        return
    write(folder, {**report, "listening": listening(os.getpid(), os.getppid())})
    while not all((folder / f"rank-{rank}.json").exists() for rank in range(WORLD_SIZE)):
        time.sleep(0.02)
    if what == "hang":
        time.sleep(300)
    if what == "fail" and RANK == 0:
        time.sleep(25)
        (folder / "outlived").touch()
    if what == "fail":
        sys.exit(7)


def add(folder: Path, report: dict[str, object], dies: int) -> None:
    gc.disable()  # what is imported is no garbage, and looking for some takes a quarter of the time
    import torch
    import torch.distributed as dist

    gc.freeze()  # nor does Python go through all of it as it ends
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    total = torch.tensor([float(RANK)])
    dist.all_reduce(total)
    write(folder, {**report, "sum": total.item()})
    dist.barrier()
    if dies == RANK:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(total)  # waits for one that is missing


def write(folder: Path, report: dict[str, object]) -> None:
    path = folder / f"rank-{RANK}.json"
    path.with_suffix(".new").write_text(json.dumps(report))
    path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    main()
