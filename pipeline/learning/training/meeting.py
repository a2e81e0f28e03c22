"""How the processes of one job find each other, and how they part."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from pipeline.config.schema import DType
from pipeline.errors import JobError
from pipeline.learning.training.distributed import Ranks, Spread

TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for the others before it fails; the engine's own limit on progress comes later."""
WHILE_SCORING = timedelta(days=7)
"""The same of ranks that write texts: they wait while the first one calls rewards, which may take any time."""


@contextmanager
def join(rank: int, size: int, device: str, spread: Spread, dtype: DType = DType.float32) -> Iterator[Ranks]:
    """Meet the other ranks where the environment says, and part from them at the end if all went well.

    Raises:
        JobError: There are not as many of them as the job has devices.
    """
    told = os.environ.get("WORLD_SIZE")
    if told != str(size):
        raise JobError(f"the job has {size} devices, but WORLD_SIZE={told}: its processes would wait for ever")
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(torch.device(device))
    # Numbers that ranks agree on are on the CPU, so that they do not wait for what the GPU has still to do.
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    timeout = WHILE_SCORING if spread.by_tensors else TIMEOUT
    options: dict[str, Any] = {"store": _meet(rank, size), "rank": rank, "world_size": size, "timeout": timeout}
    if on_gpu:
        options["device_id"] = torch.device(device)  # else NCCL guesses which device a rank has
    dist.init_process_group(backend, **options)
    yield Ranks(rank, size, device, spread, dtype)
    # Only where all went well: after a failure NCCL may wait for its peers for ever, before the error is told. The
    # process ends with the job, and the group with it.
    dist.destroy_process_group()


def _meet(rank: int, size: int) -> TCPStore:
    """The store through which ranks find each other. Left to itself, torch listens for them on every interface."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listener = None
    if rank == 0:  # the worker that leads the ranks holds the port, which SO_REUSEADDR lets this one listen at
        listener = socket.create_server((address, port)).detach()
    return TCPStore(address, port, size, rank == 0, timeout=TIMEOUT, master_listen_fd=listener)
